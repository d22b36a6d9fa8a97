"""Notes on what limits a score, such as missing metrics, one sentence each."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..telemetry.sample import SampleTable
from .levels import column, host_of
from .result import GpuScore, Trace
from .settings import Thresholds

#: Points of ``unexplained`` from which a note names the metrics that would explain more.
_MIN_UNEXPLAINED = 10.0
_FINE_S = Thresholds().fine


def notes_of(table: SampleTable, scores: Sequence[GpuScore], traces: Sequence[Trace]) -> tuple[str, ...]:
    """Return the notes of a scored table."""
    return tuple(_notes(table, scores, traces))


def _notes(table: SampleTable, scores: Sequence[GpuScore], traces: Sequence[Trace]) -> Iterator[str]:
    if table.simulated:
        yield "The samples are simulated or replayed: this is not a measurement of a GPU in use."
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
            "and utilization alone does not show saturation."
        )
    unknown = sorted({score.device.name or "a GPU without a name" for score in scores if not score.model})
    if unknown:
        yield (f"No ceilings are known for {', '.join(unknown)}: without links, the score is a lower bound.")
    scored = [score for score in scores if score.total is not None]
    yield from _missing(table, scored)
    if any(
        score.total is not None and score.total.losses["unexplained"] >= _MIN_UNEXPLAINED for score in scored
    ):
        yield from _unrecorded(table, scored)


def _faulty(traces: Sequence[Trace]) -> Iterator[str]:
    metrics = sorted({metric for trace in traces for metric in trace.levels.faulty})
    if metrics:
        yield (
            f"{', '.join(metrics)}: values above 1 are not fractions, so they count as missing. "
            "The source may count in per cent."
        )


def _unrecorded(table: SampleTable, scores: Sequence[GpuScore]) -> Iterator[str]:
    """Yield a note on what to record, so that more of the loss can be explained."""
    unrecorded = []
    if any(host_of(table, score.device) is None for score in scores):
        unrecorded.append("the host (--source host)")
    elif len(scores) > 1 and not _recorded(table, [host.uuid for host in table.hosts], "NET_TX_BYTES"):
        unrecorded.append("the network's counters")
    uuids = [score.device.uuid for score in scores]
    metrics = ("SM_OCCUPANCY", "POWER_USAGE", "SM_CLOCK")
    unrecorded += [metric for metric in metrics if not _recorded(table, uuids, metric)]
    if table.interval > _FINE_S and not any("SCORE_SHARE" in table[uuid] for uuid in uuids):
        unrecorded.append(f"samples every {_FINE_S:g} s or faster")
    if unrecorded:
        yield f"To explain more of the loss, record {', '.join(unrecorded)}."


def _recorded(table: SampleTable, uuids: Sequence[str], metric: str) -> bool:
    return any(np.isfinite(column(table[uuid], metric)).any() for uuid in uuids)


def _missing(table: SampleTable, scores: Sequence[GpuScore]) -> Iterator[str]:
    if not scores:
        return
    uuids = [score.device.uuid for score in scores]
    metrics = ("SM_ACTIVE", "GR_ENGINE_ACTIVE", "DRAM_ACTIVE", "PIPE_TENSOR_ACTIVE", "SM_CLOCK")
    recorded = {metric: _recorded(table, uuids, metric) for metric in metrics}
    if not recorded["SM_ACTIVE"]:
        yield "SM_ACTIVE is missing: SMs without work and SMs that wait can't be distinguished."
    if not recorded["GR_ENGINE_ACTIVE"]:
        yield "GR_ENGINE_ACTIVE is missing: GPU_UTIL is used instead where it was recorded."
    if not recorded["SM_CLOCK"]:
        yield "SM_CLOCK is missing: clocks below the maximum can't be seen, and the score may be too high."
    for metric, part in (("DRAM_ACTIVE", "memory"), ("PIPE_TENSOR_ACTIVE", "tensor pipes")):
        if not recorded[metric]:
            yield f"{metric} is missing: the score is a lower bound without {part}."


def _count(number: int, part: str) -> str:
    return f"{number} {part}{'s' if number != 1 else ''}"
