"""A scored job as JSON (``gipfel score --json``, ``score.json``), and differences of two such documents.

`score_text` formats a scored job as lines of text for a terminal of 80 columns.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
        Whether the second run is better; None if the change is small, or if it is unknown which is better.
    """

    name: str
    unit: str
    first: float | None
    second: float | None
    change: float | None
    better: bool | None


#: Smallest change, in points or per cent, that counts as better or worse.
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
        Users' metrics: name to the means of both runs. Whether a higher value is better is unknown.
    """
    found = [_difference("score", "points", first.get("score"), second.get("score"), more_is_better=True)]
    for name in LOSSES:
        pair = (first["losses"].get(name), second["losses"].get(name))
        if any(pair):
            found.append(_difference(name, "points", *pair, more_is_better=False))
    for name in RESOURCES:
        bound = (document["binding"].get(name) for document in (first, second))
        shares = [None if value is None else 100 * value for value in bound]
        if any(shares):
            found.append(_difference(f"{name} binding", "%", shares[0], shares[1]))
    found.append(_difference("confidence", "", first.get("confidence"), second.get("confidence")))
    found += [_difference(name, "", *pair) for name, pair in (rates or {}).items()]
    return tuple(found)


def _difference(
    name: str, unit: str, first: float | None, second: float | None, *, more_is_better: bool | None = None
) -> Difference:
    change = None if first is None or second is None else round(second - first, 4)
    better = None
    if change is not None and more_is_better is not None and abs(change) >= _MIN_CHANGE:
        better = (change > 0) == more_is_better
    return Difference(name, unit, first, second, change, better)


WIDTH = 80
_BAR = 32
#: Difference of the bounds of a score, in points, from which a note reports the bounds.
_MIN_RANGE = 5.0


def heading(job: JobScore, *, environment: str = "", width: int = WIDTH) -> str:
    """Return the first line: node, GPUs, environment, and whether they are simulated."""
    nodes = sorted({score.device.node for score in job.gpus if score.device.node})
    where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes" if nodes else ""
    names = {score.device.name.removeprefix("NVIDIA ") or "GPU" for score in job.gpus}
    gpus = f"{len(job.gpus)} \u00d7 {names.pop() if len(names) == 1 else 'GPU'}" if job.gpus else "no GPU"
    mark = "simulated" if job.simulated and "simulated" not in gpus else ""
    text = " · ".join(part for part in (where, gpus, mark, environment) if part)
    return shortened(f"GIPFEL   {text}", width)


def recording_line(job: JobScore, label: str, *, width: int = WIDTH) -> tuple[str, ...]:
    """Return the second line: recording, duration, interval, confidence; two lines where a name is long."""
    seconds = (job.last_ns - job.first_ns) / 1e9 + job.interval if job.first_ns and job.last_ns else 0.0
    pace = f"a sample every {job.scored_interval:g} s"
    tail = f"{_duration_text(seconds)}, {pace}, confidence {job.confidence:.2f}"
    whole = f"Saturation   {label}   {tail}"
    return (whole,) if len(whole) <= width else (shortened(f"Saturation   {label}", width), f"  {tail}")


def score_lines(job: JobScore) -> tuple[str, str]:
    """Return the third and the fourth line: the bar of the score, and the losses."""
    total = job.total
    if total is None:
        return f"  --  ┃{'·' * _BAR}┃ no score", "points lost: unknown"
    parts = total.integer_points
    score = parts.pop("score")
    full = score * _BAR // 100
    bar = f"{score:>4}  ┃{'█' * full}{'·' * (_BAR - full)}┃ {_bottleneck_text(total, job.scored_interval)}"
    lost = sorted((name for name in LOSSES if parts[name]), key=lambda name: -parts[name])
    listed = " · ".join(f"{name} {parts[name]}" for name in lost)
    head = f"{100 - score} points lost: " if lost else "nothing is lost"
    # Drop small losses first if there are too many for a line.
    while len(head + listed) > WIDTH and " · " in listed:
        listed = listed.removesuffix(" · …").rpartition(" · ")[0] + " · …"
    return bar, head + listed


def score_text(
    job: JobScore,
    advice: Sequence[Advice],
    *,
    label: str,
    environment: str = "",
    notes: Sequence[str] = (),
    advice_effect: Sequence[str] = (),
    energy: str = "",
) -> Iterator[str]:
    """Yield the text of ``gipfel score`` in lines of at most 80 columns.

    The first four lines are as in the panel; utilization, advice and notes follow. Control characters in
    names, which come from files, are removed.

    Parameters
    ----------
    advice_effect
        Sentences on whether the advice of the previous run helped.
    energy
        The energy of the run in one line; empty where it is unknown.
    """
    lines = [
        heading(job, environment=_printable(environment)),
        *recording_line(job, _printable(label)),
        *score_lines(job),
    ]
    if job.utilization is not None and job.total is not None:
        used = round(100 * job.utilization)
        lines.append(f"utilization {used} %: how often a kernel ran, not how much it loaded a GPU")
    yield from map(_printable, lines)
    bounds = None if job.total is None else (job.total.lower_bound, job.total.upper_bound)
    for paragraph in (
        *([f"energy {energy}"] if energy else []),
        *map(_advice_text, advice),
        *(f"↺ {sentence}" for sentence in advice_effect),
        *(
            f"note: {note}"
            for note in (range_sentence(bounds, job.scored_interval), *notes, *job.notes)
            if note
        ),
    ):
        yield from map(_printable, textwrap.wrap(paragraph, WIDTH, subsequent_indent="  "))


def _advice_text(advice: Advice) -> str:
    text = f"  Or: {advice.action}" if advice.alternative else f"⚑ {advice.sentence} {advice.action}"
    return f"{text} ({advice.gain_text})"


def range_sentence(bounds: Sequence[float] | None, interval: float) -> str | None:
    """Return a sentence on the bounds of a score at an interval in seconds; None where they are close."""
    if bounds is None or bounds[1] - bounds[0] < _MIN_RANGE:
        return None
    return (
        f"The score is between {bounds[0]:.0f} and {bounds[1]:.0f}: activity that alternates within "
        f"{interval:g} s looks like its mean. A shorter interval narrows it (gipfel record --interval)."
    )


def _bottleneck_text(total: Total, interval: float) -> str:
    name = total.bottleneck
    if name is None:
        return f"bottleneck unclear at {interval:g} s samples"
    if name in total.binding:
        return f"{name}-bound {100 * total.binding[name]:.0f} % of the time"
    return f"bottleneck: {name}"


def _duration_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def shortened(text: str, width: int) -> str:
    """Return a text of at most `width` characters, with an ellipsis where some are missing."""
    return text if len(text) <= width else text[: max(1, width - 1)] + "…"
