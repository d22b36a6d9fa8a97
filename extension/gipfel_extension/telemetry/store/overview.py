"""An overview of a run: lowest, mean and highest value of every device in some hundred buckets of time.

Long ranges come from the summaries beside the segments, short ones from the segments of that range.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metric_table import METRICS
from ..sample import Columns, Device, SampleTable, metric_names
from .fine import read_finest
from .segment_files import SegmentFile, segment_files
from .segments import read_samples
from .summaries import Summary
from .summary_parts import SummaryParts, read_parts

__all__ = ["Overview", "read_overview"]

_Floats = NDArray[np.float64]
_Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

#: So many samples of all devices, and a range is drawn from 10 s summaries though samples would be finer.
_MOST_ROWS = 300_000
_COARSE, _FINE = 60, 10
#: Files that are probed to choose one of these.
_PROBED = 16


@dataclass(frozen=True)
class Overview:
    """Values of several devices over time, in buckets of one length.

    Parameters
    ----------
    time_ns
        UTC time at which each bucket begins, T of them.
    bucket_ns
        Length of a bucket.
    mean, low, high
        Metric to an array of devices by buckets, float[D, T]; NaN where nothing is known.
    count
        Metric to how many samples each value is of, int[D, T].
    level
        Seconds of the summaries that it was made of, 0 where of samples.
    interval
        Seconds between two samples, 0 where unknown.
    """

    devices: tuple[Device, ...]
    time_ns: Numbers
    bucket_ns: int
    mean: Mapping[str, Floats]
    low: Mapping[str, Floats]
    high: Mapping[str, Floats]
    count: Mapping[str, Numbers]
    source: str = ""
    interval: float = 0.0
    level: int = 0

    @classmethod
    def of_table(
        cls,
        table: SampleTable,
        buckets: int = 600,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
        metrics: Iterable[str] | None = None,
    ) -> "Overview":
        """Return the overview of a table's samples.

        Parameters
        ----------
        buckets
            How many there are at most, but for one more where the range doesn't begin with one.
        start_ns, end_ns
            UTC range, both included; by default that of the samples.
        metrics
            By default all that any device has.
        """
        columns = table.columns or {}
        spans = [(int(c["time_ns"][0]), int(c["time_ns"][-1])) for c in columns.values() if len(c["time_ns"])]
        first, last = _range(spans, start_ns, end_ns)
        bucket = _bucket(last - first, buckets, round(table.interval * 1e9))
        every = (name for device in table.devices for name in metric_names(table.of(device.uuid)))
        grid = Grid(table.devices, _wanted(metrics, every), first, last, bucket)
        for device in table.devices:
            grid.add_samples(device.uuid, table.of(device.uuid))
        return _overview(grid, table.source, table.interval, 0)


def read_overview(
    telemetry: Path,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
    buckets: int = 600,
    metrics: Iterable[str] | None = None,
) -> Overview:
    """Return the overview of a run folder's telemetry.

    Parameters
    ----------
    start_ns, end_ns
        UTC range, both included; None from the first sample, to the last.
    buckets
        How many there are at most, as far as samples or summaries are that fine.
    metrics
        By default all that a device of its kind has.

    Returns
    -------
    Overview
        Without devices where nothing is recorded. One from summaries may lack the last 10 s of a recorder
        that runs, or was killed.
    """
    wanted = None if metrics is None else tuple(metrics)
    files = [file for file in segment_files(telemetry) if file.within(start_ns, end_ns)]
    parts = read_parts(_some(files), _COARSE, tail=_FINE, metrics=())
    first, last = _range(parts.spans(), start_ns, end_ns)
    target = (last - first) / max(1, buckets)
    devices = len(parts.devices) * len(files) / max(1, len(_some(files)))
    level = _level(target, (last - first) / 1e9, devices, parts.interval)
    if level == 0:
        # Finer than a second is of use where buckets are.
        read = read_finest if target < parts.interval * 1e9 else read_samples
        table = read(telemetry, since_ns=start_ns, until_ns=end_ns, metrics=wanted)
        return Overview.of_table(table, buckets, start_ns=start_ns, end_ns=end_ns, metrics=wanted)
    tail = _FINE if level == _COARSE else None
    parts = read_parts(files, level, tail=tail, metrics=wanted)
    return _of_parts(parts, _range(parts.spans(), start_ns, end_ns), buckets, level, wanted)


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
        """Return mean, lowest, highest and count: metric to devices by buckets; NaN where the count is 0."""
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
        """Add series by times to their buckets; where the count is 0, values are ignored."""
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


def _of_parts(
    parts: SummaryParts, span: tuple[int, int], buckets: int, level: int, wanted: Sequence[str] | None
) -> Overview:
    first, last = span
    step = level * 10**9
    bucket = -(-_bucket(last - first, buckets, step) // step) * step
    kinds = {device.kind for device in parts.devices}
    every = [name for kind in kinds for name in METRICS[kind]]
    grid = Grid(parts.devices, _wanted(wanted, (*every, *parts.extra)), first, last, bucket)
    for summary in parts.summaries:
        grid.add_summary(summary)
    for table in parts.tables:
        for device in table.devices:
            grid.add_samples(device.uuid, table.of(device.uuid))
    return _overview(grid, parts.source, parts.interval, level)


def _some(files: Sequence[SegmentFile]) -> Sequence[SegmentFile]:
    """Return some of many files, with the earliest and the latest, from which the run's length is known."""
    if len(files) <= _PROBED:
        return files
    by_start = sorted(files, key=lambda file: file.start_ns or 0)
    return [by_start[n * (len(files) - 1) // (_PROBED - 1)] for n in range(_PROBED)]


def _level(target_ns: float, seconds: float, devices: float, interval: float) -> int:
    """Return the bucket length of the summaries that a range is drawn from, in seconds; 0 for its samples."""
    if target_ns >= 0.5 * _COARSE * 1e9:
        return _COARSE
    rows = devices * seconds / (interval or 1.0)
    if target_ns >= 0.5 * _FINE * 1e9 or (rows > _MOST_ROWS and seconds > 3 * _FINE):
        return _FINE
    return 0


def _range(spans: Sequence[tuple[int, int]], start_ns: int | None, end_ns: int | None) -> tuple[int, int]:
    if not spans:
        return 0, -1
    first = min(begin for begin, _ in spans) if start_ns is None else start_ns
    last = max(end for _, end in spans) if end_ns is None else end_ns
    return first, last


def _bucket(span_ns: int, buckets: int, step_ns: int) -> int:
    """Return nanoseconds of a bucket: whole steps, so that each holds as many samples as the next."""
    least = max(1, -(-(span_ns + 1) // max(1, buckets)))
    return -(-least // step_ns) * step_ns if step_ns > 0 else least


def _wanted(metrics: Iterable[str] | None, every: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(every if metrics is None else metrics))


def _overview(grid: Grid, source: str, interval: float, level: int) -> Overview:
    mean, low, high, count = grid.result()
    return Overview(
        grid.devices, grid.time_ns, grid.bucket_ns, mean, low, high, count, source, interval, level
    )
