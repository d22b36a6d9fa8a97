"""Robust statistics of matrices with one row per rank and one column per step; NaN stands for missing.

They are medians, trimmed means and median absolute deviations, since the distribution of step times has tails
(garbage collection, checkpoints, interference) that would distort means and standard deviations.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Factor from a median absolute deviation to the standard deviation of normal noise.
NORMAL = 1.4826
#: Share of values that a trimmed mean leaves out at each end, and by how much its standard error exceeds
#: that of a mean of normal noise (asymptotically; Huber & Ronchetti, Robust Statistics, 2009, section 3.3).
TRIMMED = 0.2
TRIMMED_ERROR = 1.07
#: Number of steps over which a rank's level is assumed constant when its noise is measured.
_TILE = 20
_LAGS = 8
_LAG_TILE = 100
#: Number of values from which the autocorrelations of noise are well known.
_MANY = 1000
#: Weight, in steps, of the assumption that all rows have the same noise.
ALIKE = 30
#: Differences between neighbouring steps are clipped at this many times their median.
_FAR = 4.0
#: Values are clipped at this many scaled median absolute deviations.
_TAILS = 3.0
_NORMAL = NormalDist()


def quantile(probability: float) -> float:
    """Return the number of standard deviations that a normal value exceeds with the given probability."""
    return -_NORMAL.inv_cdf(max(probability, 1e-300))


def student(z: float, measured: float) -> float:
    """Return the threshold that replaces `z` if the standard deviation was estimated from `measured` values.

    It uses the first terms of the expansion of Student's t (Abramowitz & Stegun 26.7.5).
    """
    return z + (z**3 + z) / (4 * measured)


def skewed(z: float, skew: float, steps: int) -> float:
    """Return the threshold that replaces `z` for a mean of `steps` values of a skewed distribution.

    The mean exceeds it as often as a normal value exceeds `z`, according to the first term of the
    Cornish-Fisher expansion (Abramowitz & Stegun 26.2.49). Negative skew does not change `z`.
    """
    return z + max(0.0, skew) / math.sqrt(steps) * (z * z - 1) / 6


def tail(z: float) -> float:
    """Return the probability with which a normal value exceeds `z` standard deviations."""
    return _NORMAL.cdf(-z)


def median(values: Floats, axis: int | None = None) -> Floats:
    """Return medians without NaN values; NaN if no values are left."""
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

    The result is NaN if the value is missing, or if fewer than `least` other rows have one.
    """
    order = np.argsort(values, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(values))[:, None], axis=0)
    others = (~np.isnan(values)).sum(axis=0) - 1

    def smallest(number: NDArray[np.int64]) -> Floats:
        # Numbers count the sorted values without the value itself, so those from its own position on move by
        # one.
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
        Standard deviation of each row, at least that of the median row.
    memory
        Ratio (at least 1) of the standard error of a mean to that of independent steps: the square root of
        one plus twice the sum of the autocorrelations.
    rho
        Correlation between neighbouring steps.
    skew
        Third central moment divided by the cube of the standard deviation; mean over rows.
    """

    sigma: Floats
    memory: float
    rho: float
    skew: float = 0.0

    def error(self, steps: int) -> Floats:
        """Return the standard error of a trimmed mean over a number of steps, for each row."""
        return np.asarray(TRIMMED_ERROR * self.sigma * self.memory / math.sqrt(steps))


def noise_of(values: Floats) -> Noise:
    """Return the noise of each row around its own level, which may change slowly or at once."""
    sigma = _sigma(values)
    rest = _residual(values, _LAG_TILE)
    bound = 3 * sigma[:, None]
    rest = np.clip(rest, -bound, bound)
    steps = rest.shape[1]
    lags = min(_LAGS, steps // 6)
    # Autocorrelations are around the mean: around a median that differs from it, independent noise would look
    # autocorrelated.
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
    # Use the median row, since a row whose level changed looks autocorrelated.
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
        # Noise may be correlated beyond these few lags: average the assumption that it is not with the
        # assumption of an exponential decay (AR(1)).
        squared = (squared + max(squared, (1 + next_to) / (1 - next_to))) / 2
    # White noise may show this much by chance. With few values, that can't be subtracted, so 0.
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
    # Use the standard deviation of clipped values instead of the MAD: if noise has tails, means of a few
    # steps have tails, too.
    rest = np.clip(rest, -bound, bound)
    count = (~np.isnan(values)).sum(axis=1)
    around = np.sqrt(np.nan_to_num(rest * rest).sum(axis=1) / np.maximum(1, count))
    if values.shape[1] < 3:
        return np.asarray(np.fmax(around, median(around)))
    # Differences between neighbours are not affected by a changing level, but underestimate autocorrelated
    # noise; the median row shows by how much.
    apart = np.abs(np.diff(values, axis=1))
    apart = np.fmin(apart, _FAR * median(apart, axis=1)[:, None])
    differences = _mean(apart)
    usual = median(around)
    with np.errstate(invalid="ignore", divide="ignore"):
        own = differences * np.nan_to_num(usual / median(differences), posinf=1.0)
    # With few steps, a row's own noise is hardly better known than that rows are alike, so combine both.
    own = np.sqrt((count * own**2 + ALIKE * usual**2) / (count + ALIKE))
    return np.asarray(np.fmax(own, usual))


def _residual(values: Floats, length: int) -> Floats:
    """Return values minus their row's median in tiles of columns; the first tile may be longer."""
    parts = []
    for first, last in tiles(values.shape[1], length):
        part = values[:, first:last]
        parts.append(part - median(part, axis=1)[:, None])
    return np.concatenate(parts, axis=1) if parts else values


def tiles(steps: int, length: int) -> list[tuple[int, int]]:
    """Return begin and end of windows that cover all steps; the first one also has the remaining steps."""
    count = max(1, steps // length)
    ends = [steps - length * number for number in range(count)][::-1]
    return list(zip([0, *ends[:-1]], ends, strict=True)) if steps else []
