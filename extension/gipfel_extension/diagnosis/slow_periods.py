"""The robust rule: find rows that exceed their peers, and the GPU, NIC, node or switch that they share."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .robust import (
    ALIKE,
    TRIMMED_ERROR,
    Floats,
    Noise,
    median,
    noise_of,
    quantile,
    scatter,
    skewed,
    student,
    tail,
    trimmed_mean,
)
from .roles import LEVELS, Roles

#: Least number of rows from which the scatter between rows is estimated, and the share of that estimate that
#: is used, since chance may make it up to a sixth too large.
_LEAST_ROWS, _BETWEEN = 16, 0.85
#: Number of standard deviations at which single steps are clipped, and ratio of the error of a mean of
#: clipped steps to that of a plain mean of normal noise.
_REACH, _REACH_ERROR = 2.5, 1.02
#: Least number of steps in a part of a window for judging whether that part is slow.
_LEAST_PART = 4
#: A unit is at fault if at least this share of its ranks is slow, and at most this share of the other ranks.
_INSIDE, _OUTSIDE = 0.8, 0.1
#: A unit that holds this share of a group of peers moves the group's median.
_LARGE_SHARE = 0.25


@dataclass(frozen=True)
class Rule:
    """Thresholds of the robust rule.

    Parameters
    ----------
    least
        Smallest excess that matters, as a share.
    shortest
        Least number of steps that are judged.
    window
        Number of steps in the shortest window; error rates are counted per such window.
    false_per_run
        Probability that a healthy rank is named in a run, if noise has a normal distribution.
    above
        Share of the steps above the peers that is always sufficient.
    """

    least: float = 0.05
    shortest: int = 10
    window: int = 20
    false_per_run: float = 1e-3
    above: float = 0.75

    def lengths(self, steps: int) -> list[int]:
        """Return the lengths of windows for a number of steps, ascending."""
        length = self.window
        if self.shortest <= steps < 0.75 * length:
            return [steps]
        found = set()
        # Some of 20 steps may be checkpoints, which don't count, so a window may be a quarter shorter.
        while 0.75 * length <= steps:
            found.add(min(length, steps))
            length *= 4
        return sorted(found)

    def z(self, rows: int, steps: int) -> float:
        """Return the number of standard errors that makes an excess significant among rows and windows."""
        windows = max(1.0, steps / self.window)
        scales = max(1, len(self.lengths(steps)))
        return quantile(self.false_per_run / (windows * scales * max(1, rows)))


@dataclass(frozen=True)
class SlowPeriod:
    """A period in which a row exceeds its peers.

    Parameters
    ----------
    row
        Index of the row.
    first, last
        First and last column, both included.
    excess
        Excess as a share: 0.1 is 10 % longer.
    z
        Excess divided by its standard error, in the most significant window.
    share
        Share of the period's steps above the peers.
    """

    row: int
    first: int
    last: int
    excess: float
    z: float
    share: float


@dataclass(frozen=True)
class SlowSearch:
    """Findings of the rule, and the smallest excess that it could have found.

    Parameters
    ----------
    resolution
        Smallest excess, as a share, that 20 steps would have shown; NaN if nothing could be judged.
    """

    periods: tuple[SlowPeriod, ...]
    noise: Noise
    resolution: float


def find_slow(excess: Floats, rule: Rule, *, alike: bool = True, baseline: int | None = None) -> SlowSearch:
    """Return the periods in which rows exceed their peers.

    Parameters
    ----------
    excess
        Logarithm of each row's value divided by its peers', shape (n, m).
    alike
        Whether most rows are expected to differ only by noise, like ranks of equal role.
    baseline
        Number of steps from which each row's usual level was measured and subtracted; None if it was not.
    """
    steps = excess.shape[1]
    noise = noise_of(excess)
    z = student(rule.z(len(excess), steps), steps + ALIKE)
    hits: dict[int, list[tuple[int, int, float]]] = {}
    for length in rule.lengths(steps):
        error = noise.error(length) * (1.0 if baseline is None else math.sqrt(1 + length / baseline))
        for first, last in windows_of(steps, length):
            window = excess[:, first:last]
            level = _levels(window, noise.sigma)
            # Skewed noise raises means above medians, in all rows alike.
            usual = float(median(level)) if alike else 0.0
            own = _error(level, error, alike=alike, lasting=noise.memory > 1)
            threshold = skewed(z, noise.skew, length) * own
            slow = _slow_rows(window - usual, level - usual, threshold, noise, rule)
            for row in np.flatnonzero(slow):
                z_row = float((level[row] - usual) / own[row])
                hits.setdefault(int(row), []).append((first, last, z_row))
    least = skewed(z, noise.skew, rule.window) * float(median(noise.error(rule.window)))
    smallest = max(math.log1p(rule.least), least)
    periods = [
        _period(excess, row, windows, float(noise.sigma[row]))
        for row, found in hits.items()
        for windows in _joined(found)
    ]
    return SlowSearch(tuple(sorted(periods, key=lambda each: -each.z)), noise, math.expm1(smallest))


def windows_of(steps: int, length: int) -> list[tuple[int, int]]:
    """Return begin and end of windows from the last step backwards; the first may overlap the second."""
    return sorted({(max(0, end - length), max(length, end)) for end in range(steps, 0, -length)})


def _levels(window: Floats, sigma: Floats) -> Floats:
    """Return each row's mean in a window, with steps clipped at 2.5 standard deviations from its median."""
    middle, reach = median(window, axis=1)[:, None], _REACH * sigma[:, None]
    cut = np.clip(window, middle - reach, middle + reach)
    count = (~np.isnan(window)).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        level: Floats = np.where(np.isnan(cut), 0, cut).sum(axis=1) / count
    return level


def _error(level: Floats, error: Floats, *, alike: bool, lasting: bool) -> Floats:
    """Return the standard error of levels, at least the scatter between rows that should be alike."""
    error = error * (_REACH_ERROR / TRIMMED_ERROR)
    if not alike or len(level) < _LEAST_ROWS:
        return error
    # Autocorrelated noise makes levels differ by more than the autocorrelations over a few steps show.
    return np.asarray(np.fmax(error, (1.0 if lasting else _BETWEEN) * float(scatter(level))))


def _slow_rows(
    window: Floats, level: Floats, threshold: Floats, noise: Noise, rule: Rule
) -> NDArray[np.bool_]:
    """Return which rows are slow in a window."""
    valid = ~np.isnan(window)
    parts = 4 if window.shape[1] >= 4 * _LEAST_PART else 2
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (window > 0).sum(axis=1) / valid.sum(axis=1)
        expected = np.array([1 - tail(each) for each in np.nan_to_num(level / noise.sigma)])
        lasts = [trimmed_mean(part) > level / (2 * parts) for part in np.array_split(window, parts, axis=1)]
    lasts.append(median(window, axis=1) > level / 2)
    large = level > np.fmax(math.log1p(rule.least), threshold)
    often = share >= np.minimum(rule.above, expected - 0.15)
    return np.asarray((valid.mean(axis=1) >= 0.8) & large & often & np.all(lasts, axis=0))


def _joined(windows: list[tuple[int, int, float]]) -> list[list[tuple[int, int, float]]]:
    """Return windows in groups that touch, or with gaps of at most two window lengths."""
    found: list[list[tuple[int, int, float]]] = []
    end = 0
    for window in sorted(windows):
        length = window[1] - window[0]
        if found and window[0] <= end + 2 * min(length, 20):
            found[-1].append(window)
            end = max(end, window[1])
        else:
            found.append([window])
            end = window[1]
    return found


def _period(excess: Floats, row: int, windows: list[tuple[int, int, float]], sigma: float) -> SlowPeriod:
    series = excess[row]
    steps = len(series)
    begin = min(windows, key=lambda window: (window[0], window[1]))
    end = max(windows, key=lambda window: (window[1], window[0]))
    first = _onset(series, begin[0], begin[1] - begin[0], sigma)
    last = steps - _onset(series[::-1], steps - end[1], end[1] - end[0], sigma)
    if last - first < min(last - first for first, last, _ in windows) // 2:
        first, last = begin[0], end[1]
    part = series[first:last]
    part = part[~np.isnan(part)]
    level = float(trimmed_mean(part[None, :])[0])
    z = max(window[2] for window in windows)
    return SlowPeriod(row, first, last - 1, math.expm1(level), z, float((part > 0).mean()))


def _onset(series: Floats, first: int, length: int, sigma: float) -> int:
    """Return the column, within a window's length of `first`, from which values are high."""
    begin, end = max(0, first - length), min(len(series), first + length + length // 2)
    part = series[begin:end]
    part = np.where(np.isnan(part), np.nanmedian(part), part)
    level = np.clip(part, *np.quantile(part, (0.1, 0.9)))
    if len(level) < 4:
        return first
    # Least-squares split into a low part and a high part.
    counts = np.arange(1, len(level))
    sums = np.cumsum(level)[:-1]
    before, after = sums / counts, (level.sum() - sums) / (len(level) - counts)
    gain = np.where(after > before, counts * (len(level) - counts) / len(level) * (after - before) ** 2, 0.0)
    best = int(np.argmax(gain))
    # The best split of noise alone hardly ever gains more than this.
    return begin + best + 1 if gain[best] > 16 * sigma * sigma else first


@dataclass(frozen=True)
class Shared:
    """Slow ranks and the hardware unit that they share.

    Parameters
    ----------
    unit
        Level and name, such as ``"node nid001"``; None if they share no known unit.
    """

    ranks: tuple[int, ...]
    unit: str | None


def shared_units(slow: Collection[int], judged: Collection[int], roles: Roles) -> list[Shared]:
    """Return slow ranks grouped by the largest unit that explains them, then the remaining ranks one by one.

    A unit explains its slow ranks if there are several units of its level, it has several ranks, at least 80
    % of them are slow, and at most 10 % of the ranks outside such units are.
    """
    left, found = set(slow), []
    for level in LEVELS[:-1]:
        units = roles.units(level, judged)
        if len(units) < 2:
            continue
        full = {
            name: own
            for name, own in units.items()
            if len(own) > 1 and len(left.intersection(own)) >= _INSIDE * len(own)
        }
        inside = {rank for own in full.values() for rank in own}
        outside = set(judged) - inside
        if len(left & outside) > _OUTSIDE * len(outside) or not outside:
            continue
        for name, own in sorted(full.items()):
            # If the job has only one node on a switch, switch and node can't be distinguished.
            if level == "switch" and len(roles.units("node", own)) == 1:
                continue
            found.append(Shared(tuple(sorted(left.intersection(own))), f"{level} {name}"))
            left -= set(own)
    alone = [Shared((rank,), _own_unit(rank, judged, roles)) for rank in sorted(left)]
    return [*found, *alone]


def _own_unit(rank: int, judged: Collection[int], roles: Roles) -> str | None:
    """Return the smallest known unit that only this rank uses."""
    places = roles.places.get(rank, {})
    for level in ("gpu", "nic", "node"):
        if level in places and roles.units(level, judged)[places[level]] == [rank]:
            return f"{level} {places[level]}"
    return None


@dataclass(frozen=True)
class SlowUnit:
    """A hardware unit whose ranks are slow compared with their peers elsewhere."""

    unit: str
    ranks: tuple[int, ...]
    period: SlowPeriod


def find_slow_units(log_work: Floats, ranks: Sequence[int], roles: Roles, rule: Rule) -> list[SlowUnit]:
    """Return units that are slow as a whole, among units with a large part of a group of peers.

    If half of a group is on one slow node, the group's median lies between both halves and no rank stands
    out. So the ranks of such a unit are compared only with their peers on other units.
    """
    row = {rank: index for index, rank in enumerate(ranks)}
    groups = [set(group) for group in roles.groups(ranks)]
    for level in ("switch", "node"):
        units = roles.units(level, ranks)
        large = {
            name: own
            for name, own in units.items()
            if len(own) > 1
            and len(units) > 1
            and any(len(group.intersection(own)) >= _LARGE_SHARE * len(group) for group in groups)
            and not (level == "switch" and len(roles.units("node", own)) == 1)
        }
        names, rows, by_rank = [], [], []
        for name, own in sorted(large.items()):
            excess = _beside_others(log_work, own, groups, row)
            if excess is not None:
                names.append(name)
                rows.append(median(excess, axis=0))
                by_rank.append(excess)
        if not rows:
            continue
        found = []
        for period in find_slow(np.array(rows), rule, alike=False).periods:
            part = by_rank[period.row][:, period.first : period.last + 1]
            if (np.expm1(median(part, axis=1)) > period.excess / 2).mean() >= _INSIDE:
                name = names[period.row]
                found.append(SlowUnit(f"{level} {name}", tuple(sorted(large[name])), period))
        if found:
            return found
    return []


def _beside_others(
    log_work: Floats, own: Sequence[int], groups: Sequence[set[int]], row: dict[int, int]
) -> Floats | None:
    """Return the excess of a unit's ranks over their peers on other units; None with too few such peers."""
    parts = []
    for group in groups:
        inside, outside = group.intersection(own), group.difference(own)
        if inside and len(outside) >= 2:
            usual = median(log_work[[row[rank] for rank in outside]], axis=0)
            parts.append(log_work[[row[rank] for rank in sorted(inside)]] - usual)
    return np.concatenate(parts) if parts else None
