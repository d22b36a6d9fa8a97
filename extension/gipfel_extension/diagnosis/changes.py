"""Moments from which the steps of a run take longer, or less long, than before.

Intervals of many lengths are each split where their two parts differ most (seeded binary segmentation, Kovács
et al. 2023, doi:10.1093/biomet/asac052). Of the splits that noise does not explain, those of the shortest
intervals count (narrowest over threshold, Baranowski et al. 2019, doi:10.1111/rssb.12322), since a short
interval holds one change and dates it. The rest is compared again over everything between two changes.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .robust import NORMAL, TRIMMED_ERROR, Floats, median, noise_of, quantile, tail, trimmed_mean

#: Share by which steps must change, and for how many of them at least.
_LEAST, _STEPS = 0.05, 20
#: Probability of a false change in a run, as far as noise is normal.
_FALSE_PER_RUN = 1e-3
#: Steps in which the noise is measured: few enough for one change to spoil one of many.
_NOISE_STEPS, _NOISE_TILES = 40, 5
#: A step that is so much longer than those around it is a checkpoint, an evaluation or a hiccup.
_LONG, _LONG_SIGMAS, _AROUND, _MOST_LONG = math.log(1.3), 5.0, 21, 0.2
_SHRINK = math.sqrt(0.5)
#: Windows of the rule in the resolution that is reported: a baseline and what follows.
_BEFORE, _AFTER = 50, 20
_ABOVE, _SLACK = 0.9, 0.15


@dataclass(frozen=True)
class Change:
    """A moment from which steps take another time.

    Parameters
    ----------
    column
        First column of the new level.
    before_s, after_s
        Seconds of a step on both sides, up to the next change.
    share
        Change of the duration: 0.1 is 10 % longer.
    z
        The change of the logarithm over its standard error.
    confidence
        Probability that noise does not make such a change anywhere in the run.
    """

    column: int
    before_s: float
    after_s: float
    share: float
    z: float
    confidence: float


@dataclass(frozen=True)
class ChangeSearch:
    """Changes of a run, by time.

    Parameters
    ----------
    resolution
        Smallest share that 20 steps after 50 would have shown; None where the run is too short.
    """

    changes: tuple[Change, ...] = ()
    resolution: float | None = None


def find_changes(seconds: Floats, *, warm_up: int = 10) -> ChangeSearch:
    """Return the changes of durations of steps, shape (m,); NaN is missing.

    Parameters
    ----------
    warm_up
        Steps at the beginning that are left out, at most a third of all.
    """
    columns = np.flatnonzero(seconds > 0)
    columns = columns[columns >= min(warm_up, len(seconds) // 3)]
    values = np.log(seconds[columns])
    kept = ~_long_steps(values)
    columns, values = columns[kept], values[kept]
    if len(values) < 2 * _STEPS:
        return ChangeSearch()
    error = _error_of(values)
    intervals = _intervals(len(values))
    tests = len(values) / 10 * (1 + math.log2(len(values) / (2 * _STEPS)))
    z = quantile(_FALSE_PER_RUN / tests)
    cuts: list[int] = []
    for first, end in intervals:
        if any(first < cut < end for cut in cuts):
            continue
        cut = _best_split(values[first:end])
        if cut and _is_change(values[first : first + cut], values[first + cut : end], error, z):
            cuts.append(first + cut)
    kept_cuts = _confirmed(values, _dated(values, sorted(cuts)), error, z)
    edges = [0, *kept_cuts, len(values)]
    found = []
    for first, cut, end in zip(edges, kept_cuts, edges[2:], strict=False):
        before, after = _level(values[first:cut]), _level(values[cut:end])
        own_z = abs(after - before) / _split_error(error, cut - first, end - cut)
        found.append(
            Change(
                int(columns[cut]), math.exp(before), math.exp(after), math.expm1(after - before), own_z,
                min(0.99, max(0.0, 1 - tests * tail(own_z))),
            )
        )  # fmt: skip
    smallest = max(math.log1p(_LEAST), z * _split_error(error, _BEFORE, _AFTER))
    return ChangeSearch(tuple(found), math.expm1(smallest))


def _long_steps(values: Floats) -> NDArray[np.bool_]:
    """Return which steps stand out of those around them, unless too many do."""
    if len(values) < _AROUND:
        return np.zeros(len(values), bool)
    half = _AROUND // 2
    padded = np.pad(values, half, mode="reflect")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, _AROUND), axis=1)
    rest = values - around
    sigma = NORMAL * float(np.median(np.abs(rest)))
    long = np.abs(rest) > max(_LONG, _LONG_SIGMAS * sigma)
    return long if long.mean() <= _MOST_LONG else np.zeros(len(values), bool)


@dataclass(frozen=True)
class _Error:
    sigma: float
    memory: float

    @property
    def one(self) -> float:
        """Standard error of a mean, times the root of the number of steps."""
        return TRIMMED_ERROR * self.sigma * self.memory


def _error_of(values: Floats) -> _Error:
    length = min(_NOISE_STEPS, max(_STEPS, len(values) // _NOISE_TILES))
    rows = len(values) // length
    noise = noise_of(values[len(values) - rows * length :].reshape(rows, length))
    # A clock that counts too coarsely shows no noise at all.
    return _Error(max(float(median(noise.sigma)), 1e-4), noise.memory)


def _split_error(error: _Error, before: int, after: int) -> float:
    return error.one * math.sqrt(1 / before + 1 / after)


def _intervals(steps: int) -> list[tuple[int, int]]:
    """Return intervals of many lengths that overlap by half, the shortest first."""
    found: set[tuple[int, int]] = set()
    length = float(steps)
    while length >= 2 * _STEPS:
        count = max(1, math.ceil(2 * steps / length) - 1)
        for start in np.linspace(0, steps - length, count):
            found.add((int(start), min(steps, math.ceil(start + length))))
        length *= _SHRINK
    return sorted(found, key=lambda each: (each[1] - each[0], each[0]))


def _best_split(values: Floats) -> int:
    """Return where two parts of at least 20 steps differ most by least squares; 0 where there is no room."""
    count = len(values)
    if count < 2 * _STEPS:
        return 0
    level = np.clip(values, *np.quantile(values, (0.05, 0.95)))
    before = np.arange(_STEPS, count - _STEPS + 1)
    sums = np.cumsum(level)[before - 1]
    gain = (sums - level.sum() * before / count) ** 2 / (before * (count - before))
    return int(before[np.argmax(gain)])


def _dated(values: Floats, cuts: list[int]) -> list[int]:
    """Return the cuts where everything between their neighbours splits best, in order."""
    edges = [0, *cuts, len(values)]
    # Two neighbours may move to the same step, or past each other.
    best = {
        first + (_best_split(values[first:end]) or cut - first)
        for first, cut, end in zip(edges, cuts, edges[2:], strict=False)
    }
    return sorted(best)


def _is_change(before: Floats, after: Floats, error: _Error, z: float) -> bool:
    change = _level(after) - _level(before)
    threshold = max(math.log1p(_LEAST), z * _split_error(error, len(before), len(after)))
    if abs(change) <= threshold:
        return False
    beyond = ((after - float(np.median(before))) * change > 0).mean()
    return bool(beyond >= min(_ABOVE, 1 - tail(abs(change) / error.sigma) - _SLACK))


def _confirmed(values: Floats, cuts: list[int], error: _Error, z: float) -> list[int]:
    """Return the cuts that hold between their neighbours, taking away the least clear one at a time."""
    while cuts:
        edges = [0, *cuts, len(values)]
        doubtful = []
        for first, cut, end in zip(edges, cuts, edges[2:], strict=False):
            before, after = values[first:cut], values[cut:end]
            if not _is_change(before, after, error, z):
                doubtful.append((abs(_level(after) - _level(before)), cut))
        if not doubtful:
            break
        cuts = [cut for cut in cuts if cut != min(doubtful)[1]]
    return cuts


def _level(values: Floats) -> float:
    return float(trimmed_mean(values[None, :])[0])
