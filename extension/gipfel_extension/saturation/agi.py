"""The one public score formula: Alps GPU Insight, commit cf13c7a of 2024-03-14, ``docs/usage.md``.

It was fitted on synthetic data and dropped by its authors. Its maximum is about 0.913, and at F = 0 occupancy
alone still gives 0.77, so a copy kernel looks good. It stands here for comparison, under its own name.
"""

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import Columns

ALPHA = 24.021653821773356
BETA = 3.093540559022677
GAMMA = 2.0510278298480444
LAMBDA = 11.44627875155378

_FLOPS = ("PIPE_FP16_ACTIVE", "PIPE_FP32_ACTIVE", "PIPE_FP64_ACTIVE", "PIPE_TENSOR_ACTIVE")


def agi(
    active: NDArray[np.float64], flops: NDArray[np.float64], occupancy: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The formula on fractions from 0 to 1: SM_ACTIVE, the sum of the floating-point pipes, SM_OCCUPANCY."""
    work = BETA * flops + GAMMA * occupancy * np.exp(-LAMBDA * flops)
    scores: NDArray[np.float64] = 4.0 * (_logistic(ALPHA * active) - 0.5) * (_logistic(work) - 0.5)
    return scores


def agi_mean(columns: Columns) -> float | None:
    """Mean over the samples in which all six metrics are known; None where there is none."""
    flops = sum((columns[name] for name in _FLOPS[1:]), columns[_FLOPS[0]])
    scores = agi(columns["SM_ACTIVE"], flops, columns["SM_OCCUPANCY"])
    known = scores[np.isfinite(scores)]
    return float(known.mean()) if len(known) else None


def _logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-x))
    return result
