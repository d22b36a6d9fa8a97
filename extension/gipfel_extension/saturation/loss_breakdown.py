"""The staircase from 1 down to the saturation: three steps that add up exactly.

Begin of a job's work: what is before it is start-up.

The parts of a score that a recorder keeps of samples that are too many to keep for long.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..telemetry.metric_table import SCORE_PARTS
from ..telemetry.sample import Columns, Device
from .ceilings import ceilings_of
from .levels import Floats, Levels, kept, levels_of
from .settings import RESOURCES, Thresholds, Weights
from .time_grid import Beats, crowd


@dataclass(frozen=True)
class Staircase:
    """The steps of each sample; `off` + `empty` + `waiting` + saturation = 1, all NaN where not scored.

    Parameters
    ----------
    running
        The level above which nothing ran: L1.
    busy
        The level up to which SMs had work: L2.
    off
        Nothing on the GPU: 1 - L1.
    empty
        Engine on, SMs without work: L1 - L2.
    waiting
        SMs with work, pipes and memory waiting: L2 - L3.
    """

    running: Floats
    busy: Floats
    off: Floats
    empty: Floats
    waiting: Floats


def staircase_of(levels: Levels) -> Staircase:
    """The steps of one GPU.

    Without SM activity `empty` can't be told from `waiting`: both are in `waiting`. Without engine activity
    `empty` can't be told from `off`: both are in `off`.
    """
    third = levels.saturation
    second = np.fmax(levels.active, third)
    first = np.fmax(levels.engine, second)
    second = np.where(np.isnan(levels.active), first, second)
    second = np.fmax(kept(levels.parts, "SCORE_BUSY", second), third)
    first = np.fmax(kept(levels.parts, "SCORE_RUNNING", first), second)
    first, second = (np.where(levels.known, level, np.nan) for level in (first, second))
    return Staircase(first, second, 1.0 - first, first - second, second - third)


#: What a library's initialisation may do on the GPU: share of the time before work begins, and of all work.
_BLIPS, _OF_WORK = 0.03, 0.1


def work_begins(gpus: Sequence[tuple[Levels, Staircase]], beats: Beats, limits: Thresholds) -> int | None:
    """Return the UTC time (ns) at which the work of the job's first GPU begins; None where none ever works.

    That is the end of the longest pause before which hardly anything was done: a warm-up kernel or the
    first contact of ranks does not end the start-up.
    """
    rows = [(beats.places(levels.time_ns)[0], steps.running) for levels, steps in gpus]
    busiest = np.nan_to_num(crowd(rows, len(beats.occupied))[0]) if rows else np.zeros(0)
    works = busiest >= limits.works
    if not works.any():
        return None
    begins = np.flatnonzero(works & ~np.concatenate([[False], works[:-1]]))
    ends = np.flatnonzero(works & ~np.concatenate([works[1:], [False]]))
    before = (np.cumsum(busiest) - busiest)[begins]
    elapsed = beats.occupied[begins] + 1
    able = (before <= _BLIPS * elapsed) & (before <= _OF_WORK * busiest.sum())
    paused = beats.occupied[begins] - np.concatenate([[-1], beats.occupied[ends[:-1]]])
    begin = begins[int(np.argmax(np.where(able, paused, -1)))]
    return beats.first_ns + int(beats.occupied[begin] * beats.interval * 1e9)


def score_parts(gpu: Device, columns: Columns, share: float) -> dict[str, float | None]:
    """Return means over some samples of one GPU by the names of `SCORE_PARTS`; None where none is scored.

    Parameters
    ----------
    share
        The share of a second that one sample stands for.
    """
    levels = levels_of(columns, ceilings_of(gpu.name), Weights())
    steps, known = staircase_of(levels), levels.known
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
        "SCORE_LEAST": mean(levels.least),
        "SCORE_SPREAD": float(engine.std()) if len(engine) else None,
    }
    for part, values in (("POINTS", levels.points), ("BOUND", levels.bound), ("TURN", levels.in_turn)):
        for name in RESOURCES:
            found[f"SCORE_{part}_{name.upper()}"] = mean(values[name])
    return found
