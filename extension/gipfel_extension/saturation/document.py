"""A scored job as the document of ``gipfel score --json`` and of ``score.json``."""

from collections.abc import Mapping, Sequence
from typing import Any

from .advice.model import Advice
from .result import GpuScore, JobScore, RankScore, Total
from .settings import LOSSES, RESOURCES
from .workload import Workload

#: Raised when the meaning of a key changes; readers refuse what is newer than they know.
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
        "whole_points": None if job.total is None else job.total.whole_points,
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
        "interval_s": _number(job.finest),
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
        "range": [_number(total.least), _number(total.most)],
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
