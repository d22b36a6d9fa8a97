"""Rules applied live: the samples of any number of devices, in windows of bounded memory."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .robust import Floats
from .rules import COUNT, HIGHEST, INCREASE, LOWEST, TOTAL, VALID, Hit, Rule, empty_buckets

#: Series (device, or logged metric and rank) that one rule follows; further ones are left out.
_MOST_SERIES = 4096
#: Number of the current bucket before the first reading.
_NONE = -1


class Reading(NamedTuple):
    """One value for a rule; `key` identifies its series."""

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
    """Follower of one rule.

    Parameters
    ----------
    place_of
        Function that returns where a series is measured, called when it has a hit.
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
        #: Buckets since the condition held.
        self._quiet = np.empty(0)

    def add(self, readings: Sequence[Reading]) -> list[Hit]:
        """Add readings, none older than those before; return the hits of buckets that they completed."""
        found: list[Hit] = []
        numbers = np.array([each.time_ns // self.rule.bucket_ns for each in readings], np.int64)
        if not self.rule.device_kind and self._bucket != _NONE:
            # Ranks write what they log at their own time: what comes late counts now.
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
            # The first reading, or the clock was set back.
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
