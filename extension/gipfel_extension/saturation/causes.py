"""The losses of one GPU, sample by sample: its steps, each put down to what there is evidence for."""

from collections.abc import Mapping

import numpy as np

from .levels import Flags, Floats, Levels
from .settings import LOSSES
from .signs import Signs
from .staircase import Staircase


def losses_of(
    levels: Levels, steps: Staircase, signs: Signs | None, before_work: Flags
) -> Mapping[str, Floats]:
    """Return losses that add up, with the saturation, to 1 in every known sample, and are NaN in the others.

    What no recorded series gives evidence for is ``unexplained``.

    Parameters
    ----------
    signs
        None for a GPU that never worked: it waited for nothing, so all that was off is ``idle``.
    before_work
        The samples before the job's work began, whose loss is ``start_up``, whatever was seen.
    """
    zero = np.zeros_like(steps.off)
    if signs is None:
        found = {"idle": steps.off, "launch": steps.empty, "unexplained": steps.waiting}
    else:
        found = _found(levels, steps, signs)
    losses = {name: np.where(before_work, zero, found.get(name, zero)) for name in LOSSES}
    losses["start_up"] = np.where(before_work, 1.0 - levels.saturation, zero)
    return losses


def _found(levels: Levels, steps: Staircase, signs: Signs) -> dict[str, Floats]:
    # What is certain first: what one cause explains, the next ones can't explain again.
    off, writes_off = _take(steps.off, signs.writes)
    off, talks_off = _take(off, signs.talks)
    off, loads = _take(off, signs.loads | signs.decodes)
    lags_off = np.minimum(off, signs.lags)
    off, launches_off = _take(off - lags_off, signs.launches)
    off, rests = _take(off, signs.rests)
    # A rank that waits for the others has a kernel that spins on few SMs: it is not off, but empty.
    empty, writes_empty = _take(steps.empty, signs.writes)
    empty, talks_empty = _take(empty, signs.talks)
    empty, decodes_empty = _take(empty, signs.decodes)
    lags_empty = np.minimum(empty, np.maximum(0.0, signs.lags - lags_off))
    empty, launches_empty = _take(empty - lags_empty, signs.computes)
    capped = _lost_clock(levels, steps)
    waiting, sparse = _take(steps.waiting - capped, signs.sparse)
    return {
        "idle": rests,
        "input": loads + decodes_empty,
        "launch": launches_off + launches_empty,
        "occupancy": sparse,
        "imbalance": lags_off + lags_empty,
        "communication": talks_off + talks_empty,
        "checkpoint": writes_off + writes_empty,
        "capped": capped,
        "unexplained": off + empty + waiting,
    }


def _lost_clock(levels: Levels, steps: Staircase) -> Floats:
    """Return what the clock below its maximum explains: at full clock, SMs would do their work in less time.

    Memory and links have clocks of their own: time in which they bind is not lost by the SMs' clock.
    """
    others = np.nan_to_num(np.fmax(levels.resources["memory"], levels.resources["interconnect"]))
    work = np.maximum(0.0, steps.busy - others)
    work = np.where(levels.pipes >= others, np.fmax(work, levels.pipes), work)
    capped: Floats = np.minimum(steps.waiting, (1.0 - levels.clock) * work)
    return capped


def _take(step: Floats, sign: Flags) -> tuple[Floats, Floats]:
    """Return what is left of a step, and what a sign takes of it."""
    return np.where(sign, 0.0 * step, step), np.where(sign, step, 0.0 * step)
