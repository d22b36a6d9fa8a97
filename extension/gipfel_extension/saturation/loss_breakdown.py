"""Breakdown of the time from 1 down to the saturation in three steps that add up exactly.

`loss_breakdown_of` makes it, `work_start_ns` finds the end of the start-up, and `score_parts` the ``SCORE_*``
columns that a recorder keeps of samples at 10 Hz, which are too many to keep for long.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..telemetry.metric_table import SCORE_PARTS
from ..telemetry.sample import Columns, Device
from .levels import Floats, Levels, levels_of, recorded_or
from .settings import RESOURCES, Thresholds, Weights, ceilings_of
from .time_grid import TimeGrid, max_and_median


@dataclass(frozen=True)
class LossBreakdown:
    """Lost levels of each sample; NaN where it is not scored.

    `gpu_idle` + `sms_empty` + `sms_stalled` + saturation = 1. The README calls the levels L1, L2 and L3.

    Parameters
    ----------
    running
        Level of time in which anything ran: L1.
    busy
        Level of time in which SMs had work: L2.
    gpu_idle
        Nothing on the GPU: 1 - L1.
    sms_empty
        Engine on, SMs without work: L1 - L2.
    sms_stalled
        SMs with work, pipes and memory waiting: L2 - L3.
    """

    running: Floats
    busy: Floats
    gpu_idle: Floats
    sms_empty: Floats
    sms_stalled: Floats


def loss_breakdown_of(levels: Levels) -> LossBreakdown:
    """Return the breakdown of one GPU.

    Without SM activity, `sms_stalled` includes `sms_empty`. Without engine activity, `gpu_idle` includes it.
    """
    third = levels.saturation
    second = np.fmax(levels.active, third)
    first = np.fmax(levels.engine, second)
    second = np.where(np.isnan(levels.active), first, second)
    second = np.fmax(recorded_or(levels.recorded_parts, "SCORE_BUSY", second), third)
    first = np.fmax(recorded_or(levels.recorded_parts, "SCORE_RUNNING", first), second)
    first, second = (np.where(levels.known, level, np.nan) for level in (first, second))
    return LossBreakdown(first, second, 1.0 - first, first - second, second - third)


#: Most work of initialisation: as a share of the time before the job's work begins, and of all work.
_MAX_BEFORE, _MAX_OF_WORK = 0.03, 0.1


def work_start_ns(
    gpus: Sequence[tuple[Levels, LossBreakdown]], grid: TimeGrid, limits: Thresholds
) -> int | None:
    """Return the UTC time (ns) at which the work of the job's first GPU begins; None where none ever works.

    That is the end of the longest pause that follows hardly any work: a warm-up kernel or the first
    connection of ranks does not end the start-up.
    """
    rows = [(grid.indices(levels.time_ns)[0], steps.running) for levels, steps in gpus]
    busiest = np.nan_to_num(max_and_median(rows, len(grid.occupied))[0]) if rows else np.zeros(0)
    works = busiest >= limits.works
    if not works.any():
        return None
    begins = np.flatnonzero(works & ~np.concatenate([[False], works[:-1]]))
    ends = np.flatnonzero(works & ~np.concatenate([works[1:], [False]]))
    before = (np.cumsum(busiest) - busiest)[begins]
    elapsed = grid.occupied[begins] + 1
    candidate = (before <= _MAX_BEFORE * elapsed) & (before <= _MAX_OF_WORK * busiest.sum())
    pause = grid.occupied[begins] - np.concatenate([[-1], grid.occupied[ends[:-1]]])
    begin = begins[int(np.argmax(np.where(candidate, pause, -1)))]
    return grid.first_ns + int(grid.occupied[begin] * grid.interval * 1e9)


def score_parts(gpu: Device, columns: Columns, share: float) -> dict[str, float | None]:
    """Return the means of a GPU's samples by the names of `SCORE_PARTS`; None where no sample is scored.

    Parameters
    ----------
    share
        Share of a second that one sample covers.
    """
    levels = levels_of(columns, ceilings_of(gpu.name), Weights())
    steps, known = loss_breakdown_of(levels), levels.known
    if not known.any():
        return dict.fromkeys(SCORE_PARTS)
    engine = levels.engine[known & np.isfinite(levels.engine)]
    scored = min(1.0, share * int(known.sum()))

    def mean(values: Floats) -> float:
        return scored * float(values[known].mean())

    found: dict[str, float | None] = {
        "SCORE_SHARE": scored,
        "SCORE_RUNNING": mean(steps.running),
        "SCORE_BUSY": mean(steps.busy),
        "SCORE_LOWER_BOUND": mean(levels.lower_bound),
        "SCORE_SPREAD": float(engine.std()) if len(engine) else None,
    }
    for part, values in (
        ("POINTS", levels.points),
        ("BINDING_SHARE", levels.binding_share),
        ("SEQUENTIAL_POINTS", levels.sequential_points),
    ):
        for name in RESOURCES:
            found[f"SCORE_{part}_{name.upper()}"] = mean(values[name])
    return found
