"""Robust statistics of matrices: one row per rank, one column per step; NaN is missing.

Medians, trimmed means and median absolute deviations, since step times have tails (garbage collection,
checkpoints, interference) that means and standard deviations would follow.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Makes a median absolute deviation comparable to the standard deviation of normal noise.
NORMAL = 1.4826
#: Share of values that a trimmed mean leaves out at each end, and by how much its standard error exceeds
#: that of a mean of normal noise (asymptotically; Huber & Ronchetti, Robust Statistics, 2009, section 3.3).
TRIMMED = 0.2
TRIMMED_ERROR = 1.07
#: Steps over which a rank's level is taken as constant when its noise is measured.
_TILE = 20
_LAGS = 8
_LAG_TILE = 100
#: Values from which on the autocorrelations of noise are known well.
_MANY = 1000
#: Steps that the assumption weighs that rows are as noisy as each other.
ALIKE = 30
#: Differences of neighbours are cut at this many times their median.
_FAR = 4.0
#: Values count at most as so many scaled MADs.
_TAILS = 3.0
_NORMAL = NormalDist()


def quantile(probability: float) -> float:
    """Return how many standard deviations a normal value exceeds with a probability."""
    return -_NORMAL.inv_cdf(max(probability, 1e-300))


def student(z: float, measured: float) -> float:
    """Return `z` for a standard deviation that was measured from so many values, not known.

    The first terms of the expansion of Student's t (Abramowitz & Stegun 26.7.5).
    """
    return z + (z**3 + z) / (4 * measured)


def skewed(z: float, skew: float, steps: int) -> float:
    """Return `z` for a mean of so many values of a skewed distribution: it is exceeded as often as normally.

    The first term of the expansion of Cornish and Fisher (Abramowitz & Stegun 26.2.49). Noise whose tail is
    the lower one leaves `z` as it is.
    """
    return z + max(0.0, skew) / math.sqrt(steps) * (z * z - 1) / 6


def tail(z: float) -> float:
    """Return the probability with which a normal value exceeds `z` standard deviations."""
    return _NORMAL.cdf(-z)


def median(values: Floats, axis: int | None = None) -> Floats:
    """Return medians that leave out NaN; NaN where nothing is left."""
    if not np.isnan(values).any():
        return np.asarray(np.median(values, axis=axis)) if values.size else np.asarray(np.nan)
    if axis is None:
        return median(values[~np.isnan(values)])
    ordered = np.sort(values, axis=axis)
    count = (~np.isnan(values)).sum(axis=axis, keepdims=True)
    picked = [
        np.take_along_axis(ordered, np.clip(place, 0, None), axis) for place in ((count - 1) // 2, count // 2)
    ]
    return np.asarray(np.squeeze((picked[0] + picked[1]) / 2, axis=axis))


def scatter(values: Floats, axis: int | None = None) -> Floats:
    """Return the median absolute deviation, scaled to a standard deviation of normal noise."""
    middle = median(values, axis)
    return NORMAL * median(np.abs(values - (middle if axis is None else np.expand_dims(middle, axis))), axis)


def trimmed_mean(values: Floats) -> Floats:
    """Return for each row the mean without a fifth of its values at each end; NaN where all are missing."""
    ordered = np.sort(values, axis=1)
    count = (~np.isnan(values)).sum(axis=1)
    cut = (TRIMMED * count).astype(int)
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(np.nan_to_num(ordered), axis=1)], axis=1)
    rows = np.arange(len(values))
    kept = count - 2 * cut
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Floats = (sums[rows, count - cut] - sums[rows, cut]) / kept
    return means


def median_of_others(values: Floats, least: int = 2) -> Floats:
    """Return for each value the median of the other rows in its column.

    NaN where the value is missing, or fewer than `least` others are there.
    """
    order = np.argsort(values, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(values))[:, None], axis=0)
    others = (~np.isnan(values)).sum(axis=0) - 1

    def smallest(number: NDArray[np.int64]) -> Floats:
        # Counted without the value itself, those from its own place on are one further.
        found = np.where(number < place, number, number + 1)
        return np.asarray(np.take_along_axis(ordered, np.clip(found, 0, len(values) - 1), axis=0))

    result = (smallest((others - 1) // 2) + smallest(others // 2)) / 2
    result[:, others < least] = np.nan
    result[np.isnan(values)] = np.nan
    return result


@dataclass(frozen=True)
class Noise:
    """Noise of each row from step to step.

    Parameters
    ----------
    sigma
        Standard deviation by row, at least that of the median row.
    memory
        By how much the standard error of a mean exceeds that of independent steps, at least 1: the square
        root of one plus twice the sum of the autocorrelations.
    rho
        Correlation of neighbouring steps.
    skew
        Third central moment over the cube of the standard deviation, the mean over rows.
    """

    sigma: Floats
    memory: float
    rho: float
    skew: float = 0.0

    def error(self, steps: int) -> Floats:
        """Return the standard error of a trimmed mean over so many steps, by row."""
        return np.asarray(TRIMMED_ERROR * self.sigma * self.memory / math.sqrt(steps))


def noise_of(values: Floats) -> Noise:
    """Return the noise of each row around its own level, which may change slowly or at once."""
    sigma = _sigma(values)
    rest = _residual(values, _LAG_TILE)
    bound = 3 * sigma[:, None]
    rest = np.clip(rest, -bound, bound)
    steps = rest.shape[1]
    lags = min(_LAGS, steps // 6)
    # Around a median that is not the mean, noise without memory looks as if it had some.
    parts = tiles(steps, _LAG_TILE)
    for first, last in parts:
        rest[:, first:last] -= _mean(rest[:, first:last])[:, None]
    there = (~np.isnan(rest)).sum(axis=1)
    rest = np.nan_to_num(rest)
    power = (rest * rest).sum(axis=1)
    alive = power > 0
    if not lags or not alive.any():
        return Noise(sigma, 1.0, 0.0)
    skew = float(((rest[alive] ** 3).sum(axis=1) * there[alive] ** 0.5 / power[alive] ** 1.5).mean())
    # The median row: one whose level changed looks like one with memory.
    rho = [
        float(np.median((rest[alive, lag:] * rest[alive, :-lag]).sum(axis=1) / power[alive]))
        for lag in range(1, lags + 1)
    ]
    # Around its own mean, white noise of n steps has autocorrelations of -1/n, and AR(1) noise of rho has
    # rho - (1 + 3 rho) / n (Kendall 1954, doi:10.1093/biomet/41.3-4.403).
    tile = steps / len(parts)
    next_to = min(0.95, (rho[0] + 1 / tile) / (1 - 3 / tile))
    squared = (1 + 2 * sum(rho)) / (1 - 2 * lags / tile)
    if lags < _LAGS:
        # Noise may remember beyond so few lags: half as if it did not, half as if it forgot at one rate.
        squared = (squared + max(squared, (1 + next_to) / (1 - next_to))) / 2
    # So much the medians of white noise may show by chance; of few rows more can't be ruled out.
    chance = 6 * math.sqrt(lags / (alive.sum() * steps)) if alive.sum() * steps >= _MANY else 0.0
    squared = squared if squared > 1 + chance else 1.0
    return Noise(sigma, squared**0.5, next_to, skew)


def _mean(values: Floats) -> Floats:
    """Return the mean of each row without NaN; 0 where all are missing."""
    there = ~np.isnan(values)
    return np.asarray(np.where(there, values, 0).sum(axis=1) / np.maximum(1, there.sum(axis=1)))


def _sigma(values: Floats) -> Floats:
    """Return the standard deviation of each row from step to step, at least the median row's."""
    rest = _residual(values, _TILE)
    bound = _TAILS * scatter(rest, axis=1)[:, None]
    # Not the MAD itself: where noise has tails, means of a few steps have some too.
    rest = np.clip(rest, -bound, bound)
    count = (~np.isnan(values)).sum(axis=1)
    around = np.sqrt(np.nan_to_num(rest * rest).sum(axis=1) / np.maximum(1, count))
    if values.shape[1] < 3:
        return np.asarray(np.fmax(around, median(around)))
    # Differences of neighbours don't see a level that changes, but see less of noise that remembers: by how
    # much, the median row shows.
    apart = np.abs(np.diff(values, axis=1))
    apart = np.fmin(apart, _FAR * median(apart, axis=1)[:, None])
    differences = _mean(apart)
    usual = median(around)
    with np.errstate(invalid="ignore", divide="ignore"):
        own = differences * np.nan_to_num(usual / median(differences), posinf=1.0)
    # Of a few steps, what a row's own noise is is known hardly better than that rows are alike.
    own = np.sqrt((count * own**2 + ALIKE * usual**2) / (count + ALIKE))
    return np.asarray(np.fmax(own, usual))


def _residual(values: Floats, length: int) -> Floats:
    """Return values without the median of each row in tiles of so many columns; the first tile is longer."""
    parts = []
    for first, last in tiles(values.shape[1], length):
        part = values[:, first:last]
        parts.append(part - median(part, axis=1)[:, None])
    return np.concatenate(parts, axis=1) if parts else values


def tiles(steps: int, length: int) -> list[tuple[int, int]]:
    """Return first and end of windows that cover all steps; the first takes what is left over."""
    count = max(1, steps // length)
    ends = [steps - length * number for number in range(count)][::-1]
    return list(zip([0, *ends[:-1]], ends, strict=True)) if steps else []
