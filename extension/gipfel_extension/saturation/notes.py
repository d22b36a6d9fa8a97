"""What a reader must know to trust or to doubt a score, one sentence each."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..telemetry.sample import SampleTable
from .levels import column
from .result import GpuScore


def notes_of(table: SampleTable, scores: Sequence[GpuScore]) -> tuple[str, ...]:
    """The notes of a scored table."""
    return tuple(_notes(table, scores))


def _notes(table: SampleTable, scores: Sequence[GpuScore]) -> Iterator[str]:
    if table.simulated:
        yield "The samples are simulated or replayed: they say nothing about a GPU of today."
    for state in ("torn", "unreadable"):
        names = [segment.name for segment in table.segments if segment.state == state]
        if names:
            yield f"{_count(len(names), 'segment')} {state}: {', '.join(names[:3])}."
    if not scores:
        yield "There is no GPU in the recording."
        return
    unscored = [score for score in scores if score.total is None]
    if unscored:
        yield (
            f"{_count(len(unscored), 'GPU')} without a score: no activity of pipes or memory was recorded, "
            "and utilization alone says nothing about saturation."
        )
    unknown = sorted({score.device.name or "a GPU without a name" for score in scores if not score.model})
    if unknown:
        yield (f"No ceilings are known for {', '.join(unknown)}: without links, the score is a lower bound.")
    yield from _missing(table, [score for score in scores if score.total is not None])


def _missing(table: SampleTable, scores: Sequence[GpuScore]) -> Iterator[str]:
    if not scores:
        return
    held = {
        metric: any(np.isfinite(column(table.of(score.device.uuid), metric)).any() for score in scores)
        for metric in ("SM_ACTIVE", "GR_ENGINE_ACTIVE", "DRAM_ACTIVE", "PIPE_TENSOR_ACTIVE")
    }
    if not held["SM_ACTIVE"]:
        yield "SM_ACTIVE is missing: launch can't be told from occupancy, both stand under occupancy."
    if not held["GR_ENGINE_ACTIVE"]:
        yield "GR_ENGINE_ACTIVE is missing: GPU_UTIL, where there is any, stands in for it."
    for metric, what in (("DRAM_ACTIVE", "memory"), ("PIPE_TENSOR_ACTIVE", "tensor pipes")):
        if not held[metric]:
            yield f"{metric} is missing: the score is a lower bound without {what}."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
