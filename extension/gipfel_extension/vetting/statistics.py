"""Statistics of samples: median, tenth percentile, spread, two modes; only the standard library."""

import math
import statistics
from collections.abc import Sequence

#: Factor from the MAD (median absolute deviation) to the standard deviation, for normal noise.
NORMAL = 1.4826
#: The gap between two modes is at least this share of the upper mode, and this many times any gap within a
#: mode.
_MIN_GAP, _GAP_RATIO = 0.08, 3.0
#: A mode has at least this many samples; fewer are outliers.
_MIN_MODE_SIZE = 2


def relative_spread(samples: Sequence[float]) -> float:
    """Return the MAD divided by the median, scaled to a standard deviation."""
    middle = statistics.median(samples)
    return NORMAL * mad(samples) / middle if middle else 0.0


def mad(values: Sequence[float]) -> float:
    """Return the median absolute deviation: the median distance to the median."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of sorted values lies, interpolated."""
    position = share * (len(values) - 1)
    below = int(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (position - below) * (values[above] - values[below])


def two_modes(values: Sequence[float]) -> tuple[float, float]:
    """Return the medians of two groups of sorted values that lie far apart, or the median twice."""
    middle = statistics.median(values)
    one = (middle, middle)
    if len(values) < 2 * _MIN_MODE_SIZE:
        return one
    gaps = [(values[index] - values[index - 1], index) for index in range(1, len(values))]
    gap, cut = max(gaps)
    low, high = values[:cut], values[cut:]
    if min(len(low), len(high)) < _MIN_MODE_SIZE:
        return one
    # Noise makes gaps within a group too, but none that is much wider than the others.
    within = max((each for each, index in gaps if index != cut), default=0.0)
    top = statistics.median(high)
    if gap < _MIN_GAP * top or gap < _GAP_RATIO * within:
        return one
    return statistics.median(low), top


def student_t_tail(value: float, freedom: int) -> float:
    """Return the probability that Student's t, with an integer number of degrees of freedom, exceeds a value.

    Raises
    ------
    ValueError
        Fewer than one degree of freedom.

    Notes
    -----
    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    if freedom < 1:
        raise ValueError(f"Student's t needs a degree of freedom, not {freedom}.")
    angle = math.atan2(value, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for step in range(1, (freedom - 1) // 2 if odd else freedom // 2):
        term *= cosine**2 * (2 * step / (2 * step + 1) if odd else (2 * step - 1) / (2 * step))
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 * (1.0 - inside)
