"""Reading of the summaries of several segments; samples replace missing summaries."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..metric_table import METRICS
from ..sample import Device, SampleTable
from .segment_files import SegmentFile
from .segments import read_segment
from .summaries import Summary, read_summary, summary_path

#: A summary whose last modification is older than its segment's by more than this is incomplete.
_STALE_NS = 30 * 10**9


@dataclass(frozen=True)
class SummaryParts:
    """Summaries of segments, and samples of the segments that have no summary."""

    summaries: tuple[Summary, ...]
    tables: tuple[SampleTable, ...]

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices, without duplicates."""
        devices = [device for summary in self.summaries for device in summary.provenance.devices]
        devices += [device for table in self.tables for device in table.devices]
        return tuple({device.uuid: device for device in devices}.values())

    @property
    def extra(self) -> tuple[str, ...]:
        """Metrics that were requested in addition to those of each kind of device."""
        always_recorded = {metric for names in METRICS.values() for metric in names}
        extra = (metric for summary in self.summaries for metric in summary.provenance.extra)
        return tuple(dict.fromkeys(metric for metric in extra if metric not in always_recorded))

    @property
    def interval(self) -> float:
        """Seconds between two samples; 0 where unknown."""
        intervals = [summary.provenance.interval for summary in self.summaries]
        intervals += [table.interval for table in self.tables]
        return next((interval for interval in reversed(intervals) if interval > 0), 0.0)

    def time_ranges(self) -> list[tuple[int, int]]:
        """Return first and last time of each part in UTC nanoseconds."""
        found = [
            (int(summary.start_ns.min()), int(summary.start_ns.max()) + summary.level * 10**9 - 1)
            for summary in self.summaries
            if len(summary.start_ns)
        ]
        times = (columns["time_ns"] for table in self.tables for columns in (table.columns or {}).values())
        return found + [(int(each[0]), int(each[-1])) for each in times if len(each)]


def read_parts(
    files: Sequence[SegmentFile],
    level: int,
    *,
    tail: int | None = None,
    metrics: Sequence[str] | None = None,
) -> SummaryParts:
    """Read the summaries of some segments at one level.

    Parameters
    ----------
    tail
        A finer level to read for the time after the last bucket of `level`.
    metrics
        Metrics to read; None for all.
    """
    found = [_read(file, level, tail, metrics) for file in files]
    return SummaryParts(
        tuple(summary for summaries, _ in found for summary in summaries),
        tuple(table for _, tables in found for table in tables),
    )


def _read(
    file: SegmentFile, level: int, tail: int | None, metrics: Sequence[str] | None
) -> tuple[list[Summary], list[SampleTable]]:
    found = _summary(file, level, metrics)
    if found is None:
        with suppress(OSError):
            return [], [read_segment(file.path, metrics=metrics)]
        return [], []
    finer = None if tail is None else _summary(file, tail, metrics, last=level // tail + 1)
    if finer is None:
        return [found], []
    return [found, _after(finer, int(found.start_ns.max()) + level * 10**9)], []


def _summary(
    file: SegmentFile, level: int, metrics: Sequence[str] | None, *, last: int | None = None
) -> Summary | None:
    """Return a segment's summary; None where it has no bucket or ends long before its segment."""
    path = summary_path(file.stem, level)
    try:
        found = read_summary(path, last=last, metrics=metrics)
        stale = file.written_ns - path.stat().st_mtime_ns > level * 10**9 + _STALE_NS
    except (OSError, ValueError):
        return None
    return None if stale or not len(found.start_ns) else found


def _after(summary: Summary, time_ns: int) -> Summary:
    kept = summary.start_ns >= time_ns
    arrays = {name: getattr(summary, name)[kept] for name in ("start_ns", "mean", "low", "high", "count")}
    return replace(summary, **arrays)
