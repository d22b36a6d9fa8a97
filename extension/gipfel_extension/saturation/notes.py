"""Notes: what a reader must know to trust or to doubt a score, one sentence each."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..telemetry.sample import SampleTable
from .host_signs import host_of
from .levels import column
from .result import GpuScore, Trace
from .settings import Thresholds

#: Points of ``unexplained`` from which it is said what would have to be recorded to tell its cause.
_WORTH_TELLING = 10.0
_FINE_S = Thresholds().fine


def notes_of(table: SampleTable, scores: Sequence[GpuScore], traces: Sequence[Trace]) -> tuple[str, ...]:
    """Return the notes of a scored table."""
    return tuple(_notes(table, scores, traces))


def _notes(table: SampleTable, scores: Sequence[GpuScore], traces: Sequence[Trace]) -> Iterator[str]:
    if table.simulated:
        yield "The samples are simulated or replayed: they say nothing about a GPU of today."
    for state in ("torn", "unreadable"):
        names = [segment.name for segment in table.segments if segment.state == state]
        if names:
            yield f"{_count(len(names), 'segment')} {state}: {', '.join(names[:3])}."
    if not scores:
        yield "There is no GPU in the recording."
        return
    yield from _faulty(traces)
    unscored = [score for score in scores if score.total is None]
    if unscored:
        yield (
            f"{_count(len(unscored), 'GPU')} without a score: no activity of pipes or memory was recorded, "
            "and utilization alone says nothing about saturation."
        )
    unknown = sorted({score.device.name or "a GPU without a name" for score in scores if not score.model})
    if unknown:
        yield (f"No ceilings are known for {', '.join(unknown)}: without links, the score is a lower bound.")
    scored = [score for score in scores if score.total is not None]
    yield from _missing(table, scored)
    if any(
        score.total is not None and score.total.losses["unexplained"] >= _WORTH_TELLING for score in scored
    ):
        yield from _untold(table, scored)


def _faulty(traces: Sequence[Trace]) -> Iterator[str]:
    metrics = sorted({metric for trace in traces for metric in trace.levels.faulty})
    if metrics:
        yield (
            f"{', '.join(metrics)}: values above 1 are no fractions, so they count as missing. "
            "The source counts per cent or something else."
        )


def _untold(table: SampleTable, scores: Sequence[GpuScore]) -> Iterator[str]:
    """Say what would have to be recorded to tell the causes of what is unexplained."""
    lacking = []
    if any(host_of(table, score.device) is None for score in scores):
        lacking.append("the host (--source host)")
    elif len(scores) > 1 and not _held(table, [host.uuid for host in table.hosts], "NET_TX_BYTES"):
        lacking.append("the network's counters")
    uuids = [score.device.uuid for score in scores]
    metrics = ("SM_OCCUPANCY", "POWER_USAGE", "SM_CLOCK")
    lacking += [metric for metric in metrics if not _held(table, uuids, metric)]
    if table.interval > _FINE_S and not any("SCORE_SHARE" in table.of(uuid) for uuid in uuids):
        lacking.append(f"samples every {_FINE_S:g} s or faster")
    if lacking:
        yield f"To tell more of what is unexplained, record {', '.join(lacking)}."


def _held(table: SampleTable, uuids: Sequence[str], metric: str) -> bool:
    return any(np.isfinite(column(table.of(uuid), metric)).any() for uuid in uuids)


def _missing(table: SampleTable, scores: Sequence[GpuScore]) -> Iterator[str]:
    if not scores:
        return
    uuids = [score.device.uuid for score in scores]
    metrics = ("SM_ACTIVE", "GR_ENGINE_ACTIVE", "DRAM_ACTIVE", "PIPE_TENSOR_ACTIVE", "SM_CLOCK")
    held = {metric: _held(table, uuids, metric) for metric in metrics}
    if not held["SM_ACTIVE"]:
        yield "SM_ACTIVE is missing: SMs without work can't be told from SMs that wait."
    if not held["GR_ENGINE_ACTIVE"]:
        yield "GR_ENGINE_ACTIVE is missing: GPU_UTIL, where there is any, stands in for it."
    if not held["SM_CLOCK"]:
        yield "SM_CLOCK is missing: clocks below the maximum can't be seen, and the score may be too high."
    for metric, what in (("DRAM_ACTIVE", "memory"), ("PIPE_TENSOR_ACTIVE", "tensor pipes")):
        if not held[metric]:
            yield f"{metric} is missing: the score is a lower bound without {what}."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
