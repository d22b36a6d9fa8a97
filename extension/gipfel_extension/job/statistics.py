"""Statistics over many rows of values in time: bands, outliers, and rows that are put together."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Bands by name: lowest, 10 %, median, 90 %, highest.
BANDS: Mapping[str, float] = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "max": 1.0}
MOST_OUTLIERS = 8
#: Robust standard deviations, and share of the values' scale, from which a row is an outlier.
_DISTANCE, _LEAST = 5.0, 0.05
_TO_SIGMA = 1.4826
#: Fewer rows have no outliers: each of two is as far from the median as the other.
_LEAST_ROWS = 4
_LEVELS = 254
#: Byte of a missing value.
MISSING = 255


def bands(values: Floats) -> dict[str, Floats]:
    """Return the quantiles of each column by their name in :data:`BANDS`; NaN in columns without values.

    Parameters
    ----------
    values
        float[rows, times]; NaN where a value is missing.
    """
    ordered = np.sort(values, axis=0)  # NaN comes last
    count = np.isfinite(values).sum(axis=0)
    columns = np.arange(values.shape[1])
    found = {}
    for name, part in BANDS.items():
        place = part * np.maximum(count - 1, 0)
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, np.maximum(count - 1, 0))
        between = ordered[low, columns] * (1 - (place - low)) + ordered[high, columns] * (place - low)
        found[name] = np.where(count > 0, between, np.nan)
    return found


def outliers(values: Floats, most: int = MOST_OUTLIERS) -> list[int]:
    """Return the rows that are farthest from the others over all times, the farthest first.

    A row's distance is the median over time of its difference from the median of all rows, in robust standard
    deviations (1.4826 times the median absolute deviation) of the rows' distances. Rows below 5 of these, or
    within 5 % of the scale of the values, are none.
    """
    if values.shape[0] < _LEAST_ROWS or not values.size:
        return []
    middle = bands(values)["median"]
    distance = _median_of_rows(values - middle)
    known = np.isfinite(distance)
    if not known.any():
        return []
    center = float(np.median(distance[known]))
    spread = _TO_SIGMA * float(np.median(np.abs(distance[known] - center)))
    scale = float(np.nanmax(np.abs(np.where(np.isfinite(values), values, 0.0))))
    apart = np.where(known, np.abs(distance - center), -1.0)
    far = np.flatnonzero(apart > max(_DISTANCE * spread, _LEAST * scale))
    ordered: list[int] = far[np.argsort(-apart[far], kind="stable")][:most].tolist()
    return ordered


def level(values: Floats) -> Floats:
    """Return the median over time of each row; NaN for rows without values."""
    return _median_of_rows(values)


def worst_bins(values: Floats, most: int, *, highest: bool) -> tuple[Floats, list[range]]:
    """Return at most `most` rows, each the worst of neighbours at each time, and which rows it is of.

    Parameters
    ----------
    highest
        True where high values are the bad ones, as of temperatures.
    """
    count = values.shape[0]
    size = max(1, -(-count // most))
    parts = [range(first, min(first + size, count)) for first in range(0, count, size)]
    if size == 1:
        return values, parts
    filled = np.where(np.isfinite(values), values, -np.inf if highest else np.inf)
    reduce = np.maximum if highest else np.minimum
    found = reduce.reduceat(filled, np.arange(0, count, size), axis=0)
    return np.where(np.isfinite(found), found, np.nan), parts


def to_bytes(values: Floats, low: float, high: float) -> NDArray[np.uint8]:
    """Return values as bytes: 0 to 254 for `low` to `high`, :data:`MISSING` for NaN."""
    width = high - low or 1.0
    with np.errstate(invalid="ignore"):
        scaled = np.clip(np.round((values - low) / width * _LEVELS), 0, _LEVELS)
    return np.where(np.isfinite(values), scaled, MISSING).astype(np.uint8)


def on_grid(
    series: Sequence[tuple[NDArray[np.int64], Floats]], start_ns: int, bucket_ns: int, buckets: int
) -> Floats:
    """Return the mean of each series in each bucket, float[series, buckets]; NaN in empty buckets."""
    found = np.full((len(series), buckets), np.nan)
    for row, (time_ns, values) in enumerate(series):
        place = (time_ns - start_ns) // bucket_ns
        inside = (place >= 0) & (place < buckets) & np.isfinite(values)
        place = place[inside]
        count = np.bincount(place, minlength=buckets)
        total = np.bincount(place, weights=values[inside], minlength=buckets)
        found[row] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return found


def _median_of_rows(values: Floats) -> Floats:
    return bands(np.ascontiguousarray(values.T))["median"]
