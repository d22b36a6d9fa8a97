"""Begin of a job's work: what is before it is start-up."""

from collections.abc import Sequence

import numpy as np

from .beats import Beats, crowd
from .levels import Levels
from .settings import Thresholds
from .staircase import Staircase

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
