"""Overview of a run: minimum, mean and maximum of every device in a few hundred time buckets.

Long time ranges are read from the summaries of the segments, short ones from the segments themselves.
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

__all__ = ["Overview", "last_sample_ns", "read_overview"]

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

#: A range with more samples than this (of all devices together) is read from 10 s summaries, although samples
#: would be finer.
_MAX_ROWS = 300_000
_COARSE, _FINE = 60, 10
#: Number of files that are probed to choose a summary level.
_PROBED = 16


@dataclass(frozen=True)
class Overview:
    """Values of several devices over time, in buckets of equal length.

    Parameters
    ----------
    time_ns
        UTC start time of each of the T buckets.
    bucket_ns
        Length of a bucket.
    mean
        Arrays by metric, float[D, T] for D devices and T buckets; NaN where no value is known.
    count
        Number of samples of each value by metric, int[D, T].
    """

    devices: tuple[Device, ...]
    time_ns: Numbers
    bucket_ns: int
    mean: Mapping[str, Floats]
    count: Mapping[str, Numbers]

    @classmethod
    def from_table(
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
            Maximum number of buckets; one more where the range does not start at a bucket's start.
        start_ns, end_ns
            UTC time range, both ends included; by default that of the samples.
        metrics
            Metrics to include; by default all that any device has.
        """
        parts = SummaryParts((), (table,))
        first, last = _range(parts.time_ranges(), start_ns, end_ns)
        bucket = _bucket(last - first, buckets, round(table.interval * 1e9))
        all_metrics = (name for device in table.devices for name in metric_names(table[device.uuid]))
        return BucketGrid(table.devices, _selected(metrics, all_metrics), first, last, bucket).overview_of(
            parts
        )


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
        UTC time range, both ends included; None for the first and the last sample.
    buckets
        Maximum number of buckets; fewer where samples or summaries are coarser.
    metrics
        Metrics to include; by default all of each kind of device.

    Returns
    -------
    Overview
        Without devices where nothing is recorded. Summaries may lack the last 10 s of a recorder
        that is running or was killed.
    """
    selected = None if metrics is None else tuple(metrics)
    files = [file for file in segment_files(telemetry) if file.overlaps(start_ns, end_ns)]
    parts = read_parts(_probed_files(files), _COARSE, tail=_FINE, metrics=())
    first, last = _range(parts.time_ranges(), start_ns, end_ns)
    target = (last - first) / max(1, buckets)
    devices = len(parts.devices) * len(files) / max(1, len(_probed_files(files)))
    level = _level(target, (last - first) / 1e9, devices, parts.interval)
    if level == 0:
        # Fine samples are useful only where the buckets are shorter than the interval.
        read = read_finest if target < parts.interval * 1e9 else read_samples
        table = read(telemetry, since_ns=start_ns, until_ns=end_ns, metrics=selected)
        return Overview.from_table(table, buckets, start_ns=start_ns, end_ns=end_ns, metrics=selected)
    tail = _FINE if level == _COARSE else None
    parts = read_parts(files, level, tail=tail, metrics=selected)
    return _of_parts(parts, _range(parts.time_ranges(), start_ns, end_ns), buckets, level, selected)


def last_sample_ns(telemetry: Path) -> int | None:
    """Return the time of the newest sample of a run folder's telemetry in UTC ns; None without any."""
    parts = read_parts(_probed_files(segment_files(telemetry)), _COARSE, tail=_FINE, metrics=())
    bound = max((end for _, end in parts.time_ranges()), default=None)
    if bound is None:
        return None
    # A summary's last bucket ends up to one bucket length after the last sample.
    newest = read_samples(telemetry, since_ns=bound - _COARSE * 10**9, metrics=()).last_ns
    return bound if newest is None else newest


class BucketGrid:
    """Accumulator of sum and count per bucket, for all devices and metrics in one array.

    Parameters
    ----------
    first_ns, last_ns
        Time range, both ends included; values outside are ignored.
    bucket_ns
        Length of a bucket; buckets start at multiples of it since the epoch.
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
        self.time_ns: Numbers = (begin + np.arange(length, dtype=np.int64)) * bucket_ns
        self._rows = {device.uuid: row for row, device in enumerate(self.devices)}
        self._metric_index = {metric: index for index, metric in enumerate(self.metrics)}
        shape = (len(self.devices) * len(self.metrics), length)
        self._sum: Floats = np.zeros(shape)
        self._count: NDArray[np.int32] = np.zeros(shape, np.int32)

    def add_samples(self, device: str, columns: Columns) -> None:
        """Add the samples of one device."""
        held = [metric for metric in self.metrics if metric in columns]
        inside = (columns["time_ns"] >= self._first_ns) & (columns["time_ns"] <= self._last_ns)
        if not held or not inside.any():
            return
        values = np.stack([columns[metric][inside] for metric in held])
        series_rows = self._columns([(device, metric) for metric in held])
        count = np.isfinite(values).astype(np.int32)
        self._add(columns["time_ns"][inside], series_rows, values, count)

    def add_summary(self, summary: Summary) -> None:
        """Add the buckets of a summary that start within a bucket of the grid."""
        known = [
            n
            for n, (device, metric) in enumerate(summary.series)
            if metric in self._metric_index and device in self._rows
        ]
        if not known or not len(self.time_ns):
            return
        end = int(self.time_ns[-1]) + self.bucket_ns
        rows = np.flatnonzero((summary.start_ns >= self.time_ns[0]) & (summary.start_ns < end))
        if not len(rows):
            return
        series_rows = self._columns([summary.series[n] for n in known])
        mean, count = (each[rows][:, known].T for each in (summary.mean, summary.count))
        self._add(summary.start_ns[rows], series_rows, mean, count)

    def overview_of(self, parts: SummaryParts) -> Overview:
        """Return the overview of some summaries and samples."""
        for summary in parts.summaries:
            self.add_summary(summary)
        for table in parts.tables:
            for device in table.devices:
                self.add_samples(device.uuid, table[device.uuid])
        shape = (len(self.devices), len(self.metrics), len(self.time_ns))
        means = np.where(self._count > 0, self._sum / np.maximum(self._count, 1), np.nan).reshape(shape)
        counts = self._count.astype(np.int64).reshape(shape)
        return Overview(
            self.devices,
            self.time_ns,
            self.bucket_ns,
            {metric: means[:, index] for metric, index in self._metric_index.items()},
            {metric: counts[:, index] for metric, index in self._metric_index.items()},
        )

    def _columns(self, series: Sequence[tuple[str, str]]) -> Numbers:
        width = len(self.metrics)
        return np.array([self._rows[d] * width + self._metric_index[m] for d, m in series], np.int64)

    def _add(self, time_ns: Numbers, series_rows: Numbers, mean: Any, count: Any) -> None:
        """Add arrays of series by times to their buckets; values with a count of 0 are ignored."""
        buckets = (time_ns - self.time_ns[0]) // self.bucket_ns
        sums = np.where(count == 0, 0.0, mean * count.astype(np.float64))
        if (np.diff(buckets) > 0).all():
            target = np.ix_(series_rows, buckets)
        else:
            order = np.argsort(buckets, kind="stable")
            starts = np.flatnonzero(np.diff(buckets[order], prepend=-1))
            target = np.ix_(series_rows, buckets[order][starts])
            sums = np.add.reduceat(sums[:, order], starts, axis=1)
            count = np.add.reduceat(count[:, order], starts, axis=1, dtype=np.int32)
        self._sum[target] += sums
        self._count[target] += count.astype(np.int32)


def _of_parts(
    parts: SummaryParts, time_range: tuple[int, int], buckets: int, level: int, metrics: Sequence[str] | None
) -> Overview:
    first, last = time_range
    step = level * 10**9
    bucket = -(-_bucket(last - first, buckets, step) // step) * step
    kinds = {device.kind for device in parts.devices}
    all_metrics = [name for kind in kinds for name in METRICS[kind]]
    selected = _selected(metrics, (*all_metrics, *parts.extra))
    return BucketGrid(parts.devices, selected, first, last, bucket).overview_of(parts)


def _probed_files(files: Sequence[SegmentFile]) -> Sequence[SegmentFile]:
    """Return a few of many files, including the earliest and the latest, which give the run's length."""
    if len(files) <= _PROBED:
        return files
    by_start = sorted(files, key=lambda file: file.start_ns or 0)
    return [by_start[n * (len(files) - 1) // (_PROBED - 1)] for n in range(_PROBED)]


def _level(target_ns: float, seconds: float, devices: float, interval: float) -> int:
    """Return the level of the summaries to read for a time range, in seconds; 0 to read its samples."""
    if target_ns >= 0.5 * _COARSE * 1e9:
        return _COARSE
    rows = devices * seconds / (interval or 1.0)
    if target_ns >= 0.5 * _FINE * 1e9 or (rows > _MAX_ROWS and seconds > 3 * _FINE):
        return _FINE
    return 0


def _range(
    time_ranges: Sequence[tuple[int, int]], start_ns: int | None, end_ns: int | None
) -> tuple[int, int]:
    if not time_ranges:
        return 0, -1
    first = min(begin for begin, _ in time_ranges) if start_ns is None else start_ns
    last = max(end for _, end in time_ranges) if end_ns is None else end_ns
    return first, last


def _bucket(span_ns: int, buckets: int, step_ns: int) -> int:
    """Return the bucket length in ns, a multiple of the step: all buckets hold equally many samples."""
    least = max(1, -(-(span_ns + 1) // max(1, buckets)))
    return -(-least // step_ns) * step_ns if step_ns > 0 else least


def _selected(metrics: Iterable[str] | None, all_metrics: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(all_metrics if metrics is None else metrics))
