"""An overview of a run: lowest, mean and highest value of every device in some hundred buckets of time.

Long ranges come from the summaries beside the segments, short ones from the segments of that range.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..sample import METRICS, Device, SampleTable, metric_names
from ..store.fine import read_finest
from ..store.segment_files import SegmentFile, segment_files
from ..store.segments import read_samples
from .grid import Grid
from .parts import SummaryParts, read_parts

__all__ = ["Overview", "read_overview"]

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

#: So many samples of all devices, and a range is drawn from 10 s summaries though samples would be finer.
_MOST_ROWS = 300_000
_COARSE, _FINE = 60, 10
#: Files that say which of these to read.
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
        """The overview of a table's samples.

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
    """The overview of a run folder's telemetry.

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
    """Some of many files, with the earliest and the latest: they say how long the run was."""
    if len(files) <= _PROBED:
        return files
    by_start = sorted(files, key=lambda file: file.start_ns or 0)
    return [by_start[n * (len(files) - 1) // (_PROBED - 1)] for n in range(_PROBED)]


def _level(target_ns: float, seconds: float, devices: float, interval: float) -> int:
    """Seconds of the summaries that a range is drawn from; 0 for its samples."""
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
    """Nanoseconds of a bucket: whole steps, so that each holds as many samples as the next."""
    least = max(1, -(-(span_ns + 1) // max(1, buckets)))
    return -(-least // step_ns) * step_ns if step_ns > 0 else least


def _wanted(metrics: Iterable[str] | None, every: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(every if metrics is None else metrics))


def _overview(grid: Grid, source: str, interval: float, level: int) -> Overview:
    mean, low, high, count = grid.result()
    return Overview(
        grid.devices, grid.time_ns, grid.bucket_ns, mean, low, high, count, source, interval, level
    )
