"""JSON document of a scored job (``gipfel score --json``, ``score.json``), and differences of two of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..advice.model import Advice, Workload
from ..result import GpuScore, JobScore, RankScore, Total
from ..settings import LOSSES, RESOURCES

#: Incremented when the meaning of a key changes. Programs refuse newer versions than they know.
SCHEMA_VERSION = 3

_DIGITS = 4


def document_of(
    job: JobScore, advice: Sequence[Advice] = (), workload: Workload | None = None
) -> dict[str, Any]:
    """Return the document; unknown numbers are None."""
    spread = job.spread
    return {
        "schema_version": SCHEMA_VERSION,
        **_total(job.total),
        "integer_points": None if job.total is None else job.total.integer_points,
        "advice": [each.to_json() for each in advice],
        "workload": (workload or Workload()).to_json(),
        "confidence": _number(job.confidence),
        "gpus": [_gpu(score) for score in job.gpus],
        "ranks": [_rank(rank) for rank in job.ranks],
        "spread": spread
        and {
            "p10": _number(spread.p10),
            "worst": _number(spread.worst),
            "worst_gpu": spread.worst_gpu,
            "gap": _number(spread.gap),
        },
        "startup_s": _number(job.startup),
        "interval_s": _number(job.scored_interval),
        "first_ns": job.first_ns,
        "last_ns": job.last_ns,
        "simulated": job.simulated,
        "notes": list(job.notes),
    }


def _total(total: Total | None) -> dict[str, Any]:
    if total is None:
        return {
            "score": None,
            "binding": dict.fromkeys(RESOURCES),
            "losses": dict.fromkeys(LOSSES),
            "bottleneck": None,
            "range": None,
        }
    return {
        "score": _number(total.score),
        "binding": _numbers(total.binding),
        "losses": _numbers(total.losses),
        "bottleneck": total.bottleneck,
        "range": [_number(total.lower_bound), _number(total.upper_bound)],
    }


def _gpu(score: GpuScore) -> dict[str, Any]:
    return {
        "uuid": score.device.uuid,
        "node": score.device.node,
        "index": score.device.index,
        "name": score.device.name,
        "ceilings": score.model or None,
        **_total(score.total),
        "levels": _numbers(score.levels),
        "utilization": _number(score.utilization),
        "agi": _number(score.agi),
        "samples": score.samples,
        "missing": score.missing,
        "confidence": _number(score.confidence),
    }


def _rank(score: RankScore) -> dict[str, Any]:
    total = _total(score.total)
    return {"rank": score.rank, "gpus": list(score.gpus), **total, "confidence": _number(score.confidence)}


def _numbers(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: _number(value) for name, value in values.items()}


def _number(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


@dataclass(frozen=True)
class Difference:
    """One value of two runs; None where unknown.

    Parameters
    ----------
    name
        ``score``, a loss, ``<resource> binding``, ``confidence``, or a user's metric.
    unit
        ``points``, ``%``, or empty.
    better
        True where the second is better; None where the change is small or its direction has no meaning.
    """

    name: str
    unit: str
    first: float | None
    second: float | None
    change: float | None
    better: bool | None

    def to_json(self) -> dict[str, Any]:
        """Return the difference for JSON."""
        return asdict(self)


#: Smallest change that counts.
_MIN_CHANGE = 0.5


def compare_documents(
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    rates: Mapping[str, tuple[float | None, float | None]] | None = None,
) -> tuple[Difference, ...]:
    """Return the differences of two documents of :func:`document_of`, without values that both lack.

    Parameters
    ----------
    rates
        Users' metrics: name to the means of the two runs. It is unknown whether more is better.
    """
    found = [_difference("score", "points", first.get("score"), second.get("score"), more_is_better=True)]
    for name in LOSSES:
        pair = (first["losses"].get(name), second["losses"].get(name))
        if any(pair):
            found.append(_difference(name, "points", *pair, more_is_better=False))
    for name in RESOURCES:
        shares = [None if value is None else 100 * value for value in (_of(first, name), _of(second, name))]
        if any(shares):
            found.append(_difference(f"{name} binding", "%", shares[0], shares[1]))
    found.append(_difference("confidence", "", first.get("confidence"), second.get("confidence")))
    for name, (a, b) in (rates or {}).items():
        found.append(_difference(name, "", a, b))
    return tuple(found)


def _of(document: Mapping[str, Any], resource: str) -> float | None:
    value: float | None = document["binding"].get(resource)
    return value


def _difference(
    name: str, unit: str, first: float | None, second: float | None, *, more_is_better: bool | None = None
) -> Difference:
    change = None if first is None or second is None else round(second - first, 4)
    better = None
    if change is not None and more_is_better is not None and abs(change) >= _MIN_CHANGE:
        better = (change > 0) == more_is_better
    return Difference(name, unit, first, second, change, better)
