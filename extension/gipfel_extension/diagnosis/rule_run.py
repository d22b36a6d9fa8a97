"""Apply rules to samples: live, in windows of bounded memory, and to a recorded run."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import SampleTable
from ..telemetry.user_metrics import UserMetrics
from .robust import Floats
from .rules import COUNT, HIGHEST, INCREASE, LOWEST, TOTAL, VALID, Hit, Rule, empty_buckets

#: Most series (device, or logged metric and rank) that one rule follows; further series are left out.
_MOST_SERIES = 4096
#: Number of the current bucket before the first reading.
_NONE = -1
#: Most buckets of one series; buckets of one second cover 11 days.
_MOST_BUCKETS = 1_000_000
#: Number of windows that are evaluated together, which bounds memory.
_PIECE = 20_000
Times = NDArray[np.int64]


class Reading(NamedTuple):
    """One value for a rule; `key` identifies its series, `divisor` is what to divide it by, if anything."""

    key: Hashable
    time_ns: int
    value: float | None
    divisor: float | None = None


class Place(NamedTuple):
    """Metric, device, node and ranks of a series."""

    metric: str
    device: str
    node: str
    ranks: tuple[int, ...]


class RuleWatch:
    """Evaluates one rule on live readings.

    Parameters
    ----------
    place_of
        Function that returns where a series is measured; called when the series has a hit.
    """

    def __init__(self, rule: Rule, place_of: Callable[[Hashable], Place]) -> None:
        self.rule = rule
        self._place_of = place_of
        self._rows: dict[Hashable, int] = {}
        self._keys: list[Hashable] = []
        self._bucket = _NONE
        self._current = empty_buckets(0)
        self._window: deque[NDArray[np.float64]] = deque(maxlen=rule.buckets)
        self._previous = np.empty(0)
        #: Number of buckets since the condition last held, by series.
        self._quiet = np.empty(0)

    def add(self, readings: Sequence[Reading]) -> list[Hit]:
        """Add readings, none older than those before; return the hits of buckets that they completed."""
        found: list[Hit] = []
        numbers = np.array([each.time_ns // self.rule.bucket_ns for each in readings], np.int64)
        if not self.rule.device_kind and self._bucket != _NONE:
            # Ranks write their logs at their own pace: late values count in the current bucket.
            numbers = np.maximum(numbers, self._bucket)
        for number in np.unique(numbers):
            found += self._advance(int(number))
            if number == self._bucket:
                self._collect([each for each, own in zip(readings, numbers, strict=True) if own == number])
        return found

    def advance(self, time_ns: int) -> list[Hit]:
        """Complete the buckets before a time, after which no older reading comes; return their hits."""
        return self._advance(max(self._bucket, time_ns // self.rule.bucket_ns)) if self._rows else []

    def _advance(self, number: int) -> list[Hit]:
        """Complete the buckets before one; return their hits."""
        if self._bucket == _NONE or number < self._bucket - self.rule.buckets:
            # This is the first reading, or the clock was set back.
            self._begin(number)
            return []
        found: list[Hit] = []
        if number - self._bucket > 2 * self.rule.buckets:
            for _ in range(self.rule.buckets):
                found += self._complete()
            self._begin(number)
            self._quiet += self.rule.buckets
        while self._bucket < number:
            found += self._complete()
        return found

    def _begin(self, number: int) -> None:
        self._bucket = number
        self._current = empty_buckets(len(self._rows))
        self._window.clear()
        if not self.rule.device_kind:
            self._window.extend([self._current] * (self.rule.buckets - 1))

    def _complete(self) -> list[Hit]:
        rule, bucket = self.rule, self._bucket
        self._window.append(self._current)
        self._bucket = bucket + 1
        self._current = empty_buckets(len(self._rows))
        if len(self._window) < rule.buckets or not self._rows:
            return []
        windows = np.stack([_widened(each, len(self._rows)) for each in self._window])
        values = rule.statistic(windows)
        held = rule.holds(values)
        new = np.flatnonzero(held & (self._quiet >= rule.buckets))
        self._quiet = np.where(held, 0, self._quiet + 1)
        end_ns = (bucket + 1) * rule.bucket_ns
        since_ns = end_ns - rule.buckets * rule.bucket_ns
        return [
            Hit(rule, *self._place_of(self._keys[row]), since_ns, end_ns, end_ns, float(values[row]))
            for row in new
        ]

    def _collect(self, readings: Sequence[Reading]) -> None:
        known = [each for each in readings if self._row_of(each.key)]
        rows = np.array([self._rows[each.key] for each in known], np.int64)
        divisors = _numbers(each.divisor for each in known) if self.rule.condition.of else None
        values = self.rule.prepared(_numbers(each.value for each in known), divisors)
        self._current = _widened(self._current, len(self._rows))
        # Several readings of one series are added one after the other.
        while len(rows):
            _, first = np.unique(rows, return_index=True)
            self._add_each_once(rows[first], values[first])
            rest = np.ones(len(rows), bool)
            rest[first] = False
            rows, values = rows[rest], values[rest]

    def _add_each_once(self, rows: NDArray[np.int64], values: Floats) -> None:
        current, valid = self._current, ~np.isnan(values)
        current[rows, COUNT] += 1
        rows, values = rows[valid], values[valid]
        current[rows, VALID] += 1
        current[rows, TOTAL] += values
        current[rows, LOWEST] = np.minimum(current[rows, LOWEST], values)
        current[rows, HIGHEST] = np.maximum(current[rows, HIGHEST], values)
        # Comparisons with NaN, before the first value, are false.
        current[rows, INCREASE] += np.fmax(values - self._previous[rows], 0)
        self._previous[rows] = values

    def _row_of(self, key: Hashable) -> bool:
        if key in self._rows:
            return True
        if len(self._rows) >= _MOST_SERIES:
            return False
        self._rows[key] = len(self._rows)
        self._keys.append(key)
        self._previous = np.append(self._previous, np.nan)
        self._quiet = np.append(self._quiet, self.rule.buckets)
        return True


def _widened(bucket: NDArray[np.float64], series: int) -> NDArray[np.float64]:
    missing = series - len(bucket)
    return np.concatenate((bucket, empty_buckets(missing))) if missing else bucket


def _numbers(values: Iterable[float | None]) -> Floats:
    return np.array([np.nan if each is None else each for each in values], np.float64)


@dataclass(frozen=True)
class Series:
    """Values of one metric of one device, or of one rank that logs it, sorted by time."""

    metric: str
    device: str
    node: str
    ranks: tuple[int, ...]
    times: Times
    values: Floats


def hits_of(
    rules: Iterable[Rule],
    table: SampleTable,
    logged: UserMetrics = UserMetrics(),
    *,
    ranks_of: Callable[[str], tuple[int, ...]] = lambda _: (),
    selected: Callable[[Rule, Sequence[int]], bool] = lambda _, __: True,
) -> list[Hit]:
    """Return all hits of rules in a run, sorted by time.

    Parameters
    ----------
    ranks_of
        Function that returns the ranks on a GPU, by UUID, or on a node, by its name.
    selected
        Function that returns whether one of some ranks is in a rule's ``where``.
    """
    found: list[Hit] = []
    for rule in rules:
        for series in _series(rule, table, logged, ranks_of):
            if not rule.where or selected(rule, series.ranks):
                found += _hits(rule, series)
    return sorted(found, key=lambda hit: (hit.found_ns, hit.rule.name, hit.node, hit.device))


def _series(
    rule: Rule, table: SampleTable, logged: UserMetrics, ranks_of: Callable[[str], tuple[int, ...]]
) -> Iterator[Series]:
    if not rule.device_kind:
        for each in logged.series:
            if rule.fits(each.name):
                own = () if each.rank is None else (each.rank,)
                yield Series(each.name, "", each.node, own, each.time_ns, rule.prepared(each.values))
        return
    for device in table.devices:
        columns = table[device.uuid]
        if device.kind == rule.device_kind and rule.metric in columns:
            values = rule.prepared(columns[rule.metric], columns.get(rule.condition.of))
            ranks = ranks_of(device.uuid if device.kind == "gpu" else device.node)
            yield Series(rule.metric, device.uuid, device.node, ranks, columns["time_ns"], values)


def _hits(rule: Rule, series: Series) -> Iterator[Hit]:
    if not len(series.times):
        return
    buckets, first = bucket_statistics(series.times, series.values, rule.bucket_ns)
    width = rule.buckets
    # Devices are recorded continuously, so leave out the incomplete last bucket and windows that are not
    # full. Logged values count from the first to the last one.
    if not rule.device_kind:
        buckets, first = (
            np.concatenate((empty_buckets(width - 1), buckets, empty_buckets(1))),
            first - width + 1,
        )
    values = np.full(len(buckets), np.nan)
    for start in range(width - 1, len(buckets) - 1, _PIECE):
        end = min(start + _PIECE, len(buckets) - 1)
        piece = buckets[start - width + 1 : end]
        values[start:end] = rule.statistic(
            np.stack([piece[offset : offset + end - start] for offset in range(width)])
        )
    held = np.flatnonzero(rule.holds(values))
    if not len(held):
        return
    for group in np.split(held, np.flatnonzero(np.diff(held) > width) + 1):
        found, last = int(group[0]), int(group[-1])
        found_ns, until_ns = ((first + bucket + 1) * rule.bucket_ns for bucket in (found, last))
        since_ns = found_ns - width * rule.bucket_ns
        place = series.metric, series.device, series.node, series.ranks
        yield Hit(rule, *place, since_ns, found_ns, until_ns, float(values[found]))


def bucket_statistics(times: Times, values: Floats, bucket_ns: int) -> tuple[NDArray[np.float64], int]:
    """Return the statistics of each bucket from the first to the last sample, and the first one's number.

    A longer series is cut to its newest 1 000 000 buckets.
    """
    numbers = times // bucket_ns
    first = max(int(numbers[0]), int(numbers[-1]) - _MOST_BUCKETS + 1)
    kept = numbers >= first
    numbers, values = numbers[kept] - first, values[kept]
    found = empty_buckets(int(numbers[-1]) + 1)
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    rows = numbers[starts]
    valid = ~np.isnan(values)
    found[rows, COUNT] = np.diff(np.append(starts, len(numbers)))
    found[rows, VALID] = np.add.reduceat(valid, starts, dtype=np.float64)
    found[rows, TOTAL] = np.add.reduceat(np.where(valid, values, 0), starts)
    found[rows, LOWEST] = np.minimum.reduceat(np.where(valid, values, np.inf), starts)
    found[rows, HIGHEST] = np.maximum.reduceat(np.where(valid, values, -np.inf), starts)
    own = values[valid]
    np.add.at(found[:, INCREASE], numbers[valid][1:], np.maximum(np.diff(own), 0))
    return found, first
