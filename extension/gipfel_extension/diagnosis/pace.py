"""Pace of a run: find the steps from which steps take longer or shorter, and compare it with other runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .robust import NORMAL, TRIMMED_ERROR, Floats, median, noise_of, quantile, scatter, tail, trimmed_mean
from .steps import StepTable
from .stragglers import usable_steps

#: Smallest change of the steps' duration that is reported, as a share, and for how many steps it must last.
_LEAST, _STEPS = 0.05, 20
#: Probability of a false change in a run, if noise has a normal distribution.
_FALSE_PER_RUN = 1e-3
#: Number of steps per window in which noise is measured (so short that a change spoils only one of many
#: windows), and least number of windows.
_NOISE_STEPS, _NOISE_TILES = 40, 5
#: A step is an outlier (checkpoint, evaluation, hiccup) if it exceeds the median of the steps around it by
#: this logarithm and by this many deviations; number of steps around it; largest share of outliers, above
#: which they count as usual.
_LONG, _LONG_SIGMAS, _AROUND, _MOST_LONG = math.log(1.3), 5.0, 21, 0.2
_SHRINK = math.sqrt(0.5)
#: Numbers of steps before and after a change for which the resolution is reported.
_BEFORE, _AFTER = 50, 20
_ABOVE, _SLACK = 0.9, 0.15
#: Smallest difference between runs that is reported, as a share, and in standard errors.
_LEAST_DIFFERENCE, _Z = 0.05, 3.0
#: Least number of earlier runs from which the scatter between runs is estimated.
LEAST_RUNS = 5
#: Scatter that is assumed with fewer runs: runs of one script on one kind of GPU differ by 1 %.
_ASSUMED = 0.01
#: Least number of steps after warm-up from which a pace is computed.
LEAST_STEPS = 20
_WARM_UP, _BLOCK = 10, 20


@dataclass(frozen=True)
class Change:
    """A step from which the duration of steps is different.

    Parameters
    ----------
    column
        First column of the new level.
    before_s, after_s
        Seconds per step before and after it, up to the neighbouring changes.
    share
        Change of the duration: 0.1 is 10 % longer.
    z
        The change of the duration's logarithm, divided by its standard error.
    confidence
        Probability that noise alone makes no such change anywhere in the run.
    """

    column: int
    before_s: float
    after_s: float
    share: float
    z: float
    confidence: float


@dataclass(frozen=True)
class ChangeSearch:
    """Changes in a run, sorted by time.

    Parameters
    ----------
    resolution
        Smallest change, as a share, that would have been found in 20 steps after 50; None if the run is too
        short.
    """

    changes: tuple[Change, ...] = ()
    resolution: float | None = None


def find_changes(seconds: Floats, *, warm_up: int = 10) -> ChangeSearch:
    """Return the changes in the durations of steps, in seconds, shape (m,); NaN stands for missing.

    Parameters
    ----------
    warm_up
        Number of steps at the beginning that are left out; at most a third of all steps are.
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
    """Return which steps are much longer than the steps around them; none if too many are."""
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
        """Standard error of a mean, times the square root of the number of steps."""
        return TRIMMED_ERROR * self.sigma * self.memory


def _error_of(values: Floats) -> _Error:
    length = min(_NOISE_STEPS, max(_STEPS, len(values) // _NOISE_TILES))
    rows = len(values) // length
    noise = noise_of(values[len(values) - rows * length :].reshape(rows, length))
    # Durations from a coarse clock may show no noise at all, so assume a minimum.
    return _Error(max(float(median(noise.sigma)), 1e-4), noise.memory)


def _split_error(error: _Error, before: int, after: int) -> float:
    return error.one * math.sqrt(1 / before + 1 / after)


def _intervals(steps: int) -> list[tuple[int, int]]:
    """Return intervals of many lengths, the shortest first; intervals of one length overlap by half."""
    found: set[tuple[int, int]] = set()
    length = float(steps)
    while length >= 2 * _STEPS:
        count = max(1, math.ceil(2 * steps / length) - 1)
        for start in np.linspace(0, steps - length, count):
            found.add((int(start), min(steps, math.ceil(start + length))))
        length *= _SHRINK
    return sorted(found, key=lambda each: (each[1] - each[0], each[0]))


def _best_split(values: Floats) -> int:
    """Return the least-squares split into two parts of at least 20 steps; 0 if there are too few steps."""
    count = len(values)
    if count < 2 * _STEPS:
        return 0
    level = np.clip(values, *np.quantile(values, (0.05, 0.95)))
    before = np.arange(_STEPS, count - _STEPS + 1)
    sums = np.cumsum(level)[before - 1]
    gain = (sums - level.sum() * before / count) ** 2 / (before * (count - before))
    return int(before[np.argmax(gain)])


def _dated(values: Floats, cuts: list[int]) -> list[int]:
    """Return the cuts, each moved to the best split between its neighbours, ascending."""
    edges = [0, *cuts, len(values)]
    # Two neighbouring cuts may move to the same step, or past each other.
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
    """Return the significant cuts: remove the least significant one and test again, until all are."""
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


@dataclass(frozen=True)
class RunPace:
    """Usual duration of a run's steps.

    Parameters
    ----------
    label
        Name of the run in sentences.
    seconds
        Trimmed mean of the steps' durations, computed from logarithms.
    error
        Standard error of `seconds` as a share, from the scatter within the run.
    steps
        Number of steps that the mean is from.
    ranks
        Number of ranks that logged steps.
    """

    label: str
    seconds: float
    error: float
    steps: int
    ranks: int = 1


def pace_of(table: StepTable, label: str) -> RunPace | None:
    """Return the pace of a run; None if it has fewer than 20 steps after warm-up."""
    table = table.part(min(_WARM_UP, len(table.steps) // 3))
    seconds = usable_steps(table).pace
    values: Floats = np.log(seconds[seconds > 0])
    if len(values) < LEAST_STEPS:
        return None
    rows = len(values) // _BLOCK
    blocks = values[len(values) - rows * _BLOCK :].reshape(rows, _BLOCK)
    within = float(np.median(noise_of(blocks).error(len(values))))
    # If the pace changes during the run, its mean is less certain than the noise of steps suggests.
    levels = trimmed_mean(blocks)
    between = float(scatter(levels)) / math.sqrt(rows) if rows >= 4 else 0.0
    pace = math.exp(float(trimmed_mean(values[None, :])[0]))
    return RunPace(label, pace, max(within, between), len(values), len(table.ranks))


@dataclass(frozen=True)
class PaceComparison:
    """Comparison of a run's steps with those of other runs.

    Parameters
    ----------
    verdict
        ``slower``, ``faster``, ``same`` (no difference above the resolution), or ``cannot tell``.
    share
        Change of the duration of a step: 0.1 is 10 % longer; None if there is nothing to compare.
    least, most
        Bounds of the 95 % interval of `share`.
    resolution
        Smallest change, as a share, that would have been reported.
    confidence
        Confidence (0 to 1) in the verdicts ``slower`` and ``faster``; 0 for the others.
    """

    verdict: Literal["slower", "faster", "same", "cannot tell"]
    sentence: str
    share: float | None = None
    least: float | None = None
    most: float | None = None
    resolution: float | None = None
    confidence: float = 0.0


def compare_paces(now: RunPace | None, earlier: Sequence[RunPace]) -> PaceComparison:
    """Compare a run with others of the same script, size and image, which the caller has chosen.

    Runs differ from each other by more than the scatter of their steps explains. With five or more other
    runs, this scatter between runs is estimated from them; with fewer, 1 % is assumed, and the sentence says
    so.
    """
    if now is None or not earlier:
        lacking = "This run has" if now is None else "The others have"
        return PaceComparison("cannot tell", f"{lacking} fewer than {LEAST_STEPS} steps to compare.")
    sizes = sorted({now.ranks, *(each.ranks for each in earlier)})
    if len(sizes) > 1:
        counts = " and ".join(map(str, sizes))
        return PaceComparison(
            "cannot tell", f"The runs have {counts} ranks: a step is not the same work in them."
        )
    paces = np.log([each.seconds for each in earlier])
    known = len(earlier) >= LEAST_RUNS
    # The scatter of few runs is uncertain, so weigh in the assumed scatter as if five more runs had shown it.
    own = float(scatter(paces)) if known else 0.0
    weight = len(earlier) if known else 0
    between = math.sqrt((weight * own**2 + LEAST_RUNS * _ASSUMED**2) / (weight + LEAST_RUNS))
    usual = float(np.median(paces))
    errors = float(np.mean([each.error**2 for each in earlier]))
    error = math.sqrt(between**2 * (1 + 1 / len(earlier)) + now.error**2 + errors / len(earlier))
    change = math.log(now.seconds) - usual
    threshold = max(math.log1p(_LEAST_DIFFERENCE), _Z * error)
    share, resolution = math.expm1(change), math.expm1(threshold)
    interval = math.expm1(change - 1.96 * error), math.expm1(change + 1.96 * error)
    basis = f"{len(earlier)} other run{'s'[: len(earlier) > 1]}"
    if not known:
        basis += f", assuming that runs differ by {_ASSUMED:.0%}"
    numbers = f"{now.seconds:.4g} s a step beside {math.exp(usual):.4g} s ({share:+.1%}, {basis})"
    if abs(change) > threshold:
        slower = change > 0
        text = f"This run is {'slower' if slower else 'faster'}: {numbers}."
        sure = min(0.99, 1 - 2 * tail(abs(change) / error))
        return PaceComparison("slower" if slower else "faster", text, share, *interval, resolution, sure)
    text = f"No difference beyond {resolution:.1%}, the smallest that these runs can show: {numbers}."
    return PaceComparison("same", text, share, *interval, resolution)
