"""The eight losses of one GPU, sample by sample: its steps, each put down to what the signs say."""

from collections.abc import Mapping

import numpy as np

from .levels import Floats
from .settings import LOSSES
from .signs import Signs
from .staircase import Staircase


def losses_of(steps: Staircase, signs: Signs | None) -> Mapping[str, Floats]:
    """Losses that add up, with the saturation, to 1 in every scored sample, and are NaN in the others.

    Parameters
    ----------
    signs
        None for a GPU that never worked: it waited for nothing, so all that was off is ``idle``.
    """
    zero = np.zeros_like(steps.off)
    losses = dict.fromkeys(LOSSES, zero)
    if signs is None:
        return {
            **losses,
            "idle": steps.off,
            "launch": steps.empty,
            "occupancy": steps.waiting,
        }
    # The most telling sign first: whatever it explains, the next ones can't explain again.
    off, writes = _take(steps.off, signs.writes)
    off, talks_off = _take(off, signs.talks)
    off, prepares = _take(off, signs.prepares)
    lags_off = np.minimum(off, signs.lags)
    # A rank that waits inside a collective has a kernel spinning on few SMs: it is not off, but empty.
    empty, talks_empty = _take(steps.empty, signs.talks)
    lags_empty = np.minimum(empty, signs.lags - lags_off)
    waiting, capped = _take(steps.waiting, signs.capped)
    return {
        "idle": off - lags_off,
        "input": prepares,
        "launch": empty - lags_empty,
        "occupancy": waiting,
        "imbalance": lags_off + lags_empty,
        "communication": talks_off + talks_empty,
        "checkpoint": writes,
        "capped": capped,
    }


def _take(step: Floats, sign: np.typing.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """What is left of a step, and what a sign takes of it."""
    return np.where(sign, 0.0 * step, step), np.where(sign, step, 0.0 * step)
