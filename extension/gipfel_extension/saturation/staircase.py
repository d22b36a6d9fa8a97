"""The staircase from 1 down to the saturation: three steps that add up exactly."""

from dataclasses import dataclass

import numpy as np

from .levels import Floats, Levels, kept


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
