"""Buckets of time by devices and metrics, filled from samples and from summaries."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sample import Columns, Device
from .files import Summary

_Floats = NDArray[np.float64]
_Numbers = NDArray[np.int64]


class Grid:
    """Sums, lowest and highest values of each bucket, for all devices and metrics in one array.

    Parameters
    ----------
    first_ns, last_ns
        The range that is covered, both included; what lies outside is left out.
    bucket_ns
        Length of a bucket; the buckets begin at multiples of it since the epoch.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        metrics: Sequence[str],
        first_ns: int,
        last_ns: int,
        bucket_ns: int,
    ) -> None:
        self.devices = tuple(devices)
        self.metrics = tuple(metrics)
        self.bucket_ns = bucket_ns
        self._first_ns, self._last_ns = first_ns, last_ns
        begin = first_ns // bucket_ns
        length = last_ns // bucket_ns - begin + 1 if devices and last_ns >= first_ns else 0
        self.time_ns: _Numbers = (begin + np.arange(length, dtype=np.int64)) * bucket_ns
        self._rows = {device.uuid: row for row, device in enumerate(self.devices)}
        self._places = {metric: place for place, metric in enumerate(self.metrics)}
        shape = (len(self.devices) * len(self.metrics), length)
        self._sum: _Floats = np.zeros(shape)
        self._low: NDArray[np.float32] = np.full(shape, np.inf, np.float32)
        self._high: NDArray[np.float32] = np.full(shape, -np.inf, np.float32)
        self._count: NDArray[np.int32] = np.zeros(shape, np.int32)

    def add_samples(self, device: str, columns: Columns) -> None:
        """Take in the samples of one device."""
        held = [metric for metric in self.metrics if metric in columns]
        inside = (columns["time_ns"] >= self._first_ns) & (columns["time_ns"] <= self._last_ns)
        if not held or not inside.any():
            return
        values = np.stack([columns[metric][inside] for metric in held])
        places = self._columns([(device, metric) for metric in held])
        count = np.isfinite(values).astype(np.int32)
        self._add(columns["time_ns"][inside], places, values, values, values, count)

    def add_summary(self, summary: Summary) -> None:
        """Take in the buckets of a summary that begin within a bucket of ours."""
        known = [
            n
            for n, (device, metric) in enumerate(summary.series)
            if metric in self._places and device in self._rows
        ]
        if not known or not len(self.time_ns):
            return
        end = int(self.time_ns[-1]) + self.bucket_ns
        rows = np.flatnonzero((summary.start_ns >= self.time_ns[0]) & (summary.start_ns < end))
        if not len(rows):
            return
        places = self._columns([summary.series[n] for n in known])
        mean, low, high, count = (
            each[rows][:, known].T for each in (summary.mean, summary.low, summary.high, summary.count)
        )
        self._add(summary.start_ns[rows], places, mean, low, high, count)

    def result(self) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
        """Mean, lowest, highest and count: metric to devices by buckets; NaN where the count is 0."""
        length, width = len(self.time_ns), len(self.metrics)
        shape = (len(self.devices), width, length)
        total, low, high, count = (
            each.reshape(shape) for each in (self._sum, self._low, self._high, self._count)
        )
        found: tuple[dict[str, Any], ...] = ({}, {}, {}, {})
        for place, metric in enumerate(self.metrics):
            known = count[:, place]
            empty = known == 0
            mean = total[:, place] / np.maximum(known, 1)
            parts = (mean, low[:, place], high[:, place])
            for each, values in zip(found, parts, strict=False):
                each[metric] = np.where(empty, np.nan, values.astype(np.float64))
            found[3][metric] = known.astype(np.int64)
        return found[0], found[1], found[2], found[3]

    def _columns(self, series: Sequence[tuple[str, str]]) -> _Numbers:
        width = len(self.metrics)
        return np.array([self._rows[d] * width + self._places[m] for d, m in series], np.int64)

    def _add(  # noqa: PLR0917 - the columns of a summary, in their order
        self, time_ns: _Numbers, places: _Numbers, mean: Any, low: Any, high: Any, count: Any
    ) -> None:
        """Series by times into their buckets; where the count is 0, the values are not looked at."""
        buckets = (time_ns - self.time_ns[0]) // self.bucket_ns
        none = count == 0
        sums = np.where(none, 0.0, mean * count.astype(np.float64))
        lows, highs = np.where(none, np.inf, low), np.where(none, -np.inf, high)
        if (np.diff(buckets) > 0).all():
            target = np.ix_(places, buckets)
        else:
            order = np.argsort(buckets, kind="stable")
            starts = np.flatnonzero(np.diff(buckets[order], prepend=-1))
            target = np.ix_(places, buckets[order][starts])
            sums = np.add.reduceat(sums[:, order], starts, axis=1)
            count = np.add.reduceat(count[:, order], starts, axis=1, dtype=np.int32)
            lows = np.minimum.reduceat(lows[:, order], starts, axis=1)
            highs = np.maximum.reduceat(highs[:, order], starts, axis=1)
        self._sum[target] += sums
        self._count[target] += count.astype(np.int32)
        self._low[target] = np.minimum(self._low[target], lows)
        self._high[target] = np.maximum(self._high[target], highs)
