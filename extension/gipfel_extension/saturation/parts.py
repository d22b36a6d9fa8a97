"""The parts of a score that a recorder keeps of samples that are too many to keep for long."""

import numpy as np

from ..telemetry.sample import SCORE_PARTS, Columns, Device
from .ceilings import ceilings_of
from .levels import Floats, levels_of
from .settings import RESOURCES, Weights
from .staircase import staircase_of


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
