"""Statistics of samples: median, p10, spread, two modes; only the standard library."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: Makes a MAD comparable to a standard deviation of normal noise.
NORMAL = 1.4826
#: Two modes are this far apart, as a share of the upper one, and this many times what each of them spreads.
_APART, _TIMES = 0.08, 3.0
#: Fewer samples than this in a mode are outliers.
_LEAST_IN_A_MODE = 2


@dataclass(frozen=True)
class Summary:
    """Summary of a few repeated samples.

    Parameters
    ----------
    p10
        The tenth percentile, between samples.
    spread
        MAD over median, scaled to a standard deviation.
    bimodal
        Two groups far apart, each of several samples.
    lower, upper
        The medians of the two groups; both the median where there is one group.
    """

    count: int
    median: float
    p10: float
    spread: float
    bimodal: bool
    lower: float
    upper: float


def summary(samples: Sequence[float]) -> Summary:
    """Return the summary of samples; ValueError where there is none."""
    if not samples:
        raise ValueError("There is no sample.")
    values = sorted(samples)
    middle = statistics.median(values)
    lower, upper = two_modes(values)
    spread = NORMAL * mad(values) / middle if middle else 0.0
    return Summary(len(values), middle, percentile(values, 0.10), spread, lower != upper, lower, upper)


def mad(values: Sequence[float]) -> float:
    """Return the median distance to the median."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of sorted values lies, interpolated."""
    place = share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])


def two_modes(values: Sequence[float]) -> tuple[float, float]:
    """Return the medians of two groups of sorted values that lie far apart, or the median twice."""
    middle = statistics.median(values)
    one = (middle, middle)
    if len(values) < 2 * _LEAST_IN_A_MODE:
        return one
    gaps = [(values[index] - values[index - 1], index) for index in range(1, len(values))]
    gap, cut = max(gaps)
    low, high = values[:cut], values[cut:]
    if min(len(low), len(high)) < _LEAST_IN_A_MODE:
        return one
    # The widest step within a group: noise makes steps, too, but none that is much wider than the others.
    within = max((step for step, index in gaps if index != cut), default=0.0)
    top = statistics.median(high)
    if gap < _APART * top or gap < _TIMES * within:
        return one
    return statistics.median(low), top
