"""Figures of a run: `LiveFigures` until now, `TimeRange` between two times, and exports of a range.

Short ranges are drawn from samples, recent ones in memory; long ranges are drawn from summaries.
"""

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from gipfel_cluster.model import Frozen

from ..rules.thresholds import drawn_rules
from ..telemetry.events import Event, read_events
from ..telemetry.figures.image import static_image
from ..telemetry.figures.lines import coarsened, gpus_of, with_devices
from ..telemetry.figures.run_figures import host_figure, time_series_figure
from ..telemetry.live.feed import SaturationFeed
from ..telemetry.metric_table import METRICS, SCORE_PARTS
from ..telemetry.sample import Device, SampleTable
from ..telemetry.store.fine import read_finest
from ..telemetry.store.overview import Overview, last_sample_ns, read_overview
from ..telemetry.store.parquet import write_export
from ..telemetry.store.segment_files import segment_files
from ..telemetry.user_metrics import METRICS_FILE, MetricsReader, UserMetrics
from ..training.results import saved_advice_effect
from .analysis import MEANS, score_document
from .views import BUCKETS, HEAT_BUCKETS, View, event_texts, figures_of, metrics_of

_MAX_RUNS = 4
#: If there are more samples, their means are scored instead.
_MAX_ROWS = 400_000
#: A recorder writes every few seconds; if its file has not changed for this time, the recorder has ended.
_SILENT_NS = 90 * 10**9
_LONGEST_S = 10 * 365 * 86_400
CONTENT_TYPES = {"parquet": "application/vnd.apache.parquet", "csv": "text/csv", "png": "image/png"}
_CHUNK_BYTES = 1 << 18
#: Seconds of samples that the feed keeps in memory.
LIVE_WINDOW_S = 600.0


@lru_cache(_MAX_RUNS)
def _metrics_reader(run: Path) -> tuple[MetricsReader, threading.Lock]:
    """Return the reader of a recent run's metrics, shared by all pages of the server.

    It continues where its last read ended: the file of a long run takes seconds to read, and a page draws
    again every few seconds.
    """
    return MetricsReader(run / METRICS_FILE), threading.Lock()


def metrics_of_run(run: Path) -> UserMetrics | None:
    """Return the metrics that the processes of a run have logged until now; None if unreadable."""
    reader, lock = _metrics_reader(run)
    with lock:
        try:
            reader.poll()
        except OSError:
            return None
        return reader.metrics()


class Times(Frozen):
    """Time range in a query: two times in UTC ms, or the ``last`` seconds up to the newest sample."""

    since: int | None = Field(None, ge=0, le=2**53 - 1)
    until: int | None = Field(None, ge=0, le=2**53 - 1)
    last: int | None = Field(None, ge=1, le=_LONGEST_S)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError("since must be before until")
        if self.last is not None and (self.since, self.until) != (None, None):
            raise ValueError("last takes the place of since and until")
        return self

    def range_ns(self, telemetry: Path) -> tuple[int | None, int | None]:
        """Return start and end in nanoseconds; None is the start or the end of the run. Reads files."""
        if self.last is not None:
            newest = last_sample_ns(telemetry)
            return None if newest is None else max(0, newest - self.last * 10**9), None
        start, end = (None if ms is None else ms * 1_000_000 for ms in (self.since, self.until))
        return start, end


class TimeRange:
    """Recording of a run between two times in UTC nanoseconds; None is the start or the end of the run."""

    def __init__(self, run: Path, start_ns: int | None = None, end_ns: int | None = None) -> None:
        self.telemetry = run / "telemetry"
        self.start_ns, self.end_ns = start_ns, end_ns
        self.metrics: UserMetrics | None = metrics_of_run(run)
        self.events: tuple[Event, ...] = read_events(self.telemetry)

    @cached_property
    def overview(self) -> Overview:
        """All metrics of the range, for the score; figures need only some of them."""
        return self._overview(None)

    def answer(self, view: View) -> dict[str, Any]:
        """Return events and the figures of a page's view; the score takes longer, and has its own request."""
        overview = self._overview(metrics_of(view))
        coarse = coarsened(overview, HEAT_BUCKETS)
        figures = figures_of(overview, coarse, view, self.metrics, self.events, rules=drawn_rules())
        return {
            "figures": figures,
            "events": event_texts(self.events),
            "devices": [device.to_json() for device in overview.devices],
            "bucket_s": overview.bucket_ns / 1e9,
            "growing": self.end_ns is None and is_recorded(self.telemetry),
        }

    def document(self) -> dict[str, Any]:
        """Return the score document of the range; ``means_s``, if set, is the seconds of each scored mean.

        For an entire run it also has, from ``score.json``, what changed since the run whose advice this one
        followed.
        """
        entire_run = self.start_ns is None and self.end_ns is None
        effect = saved_advice_effect(self.telemetry.parent) if entire_run else None
        content = None if effect is None else effect.model_dump(mode="json")
        return {**score_document(self._table(), self.telemetry), "advice_effect": content}

    def metric_means(self) -> Mapping[str, float]:
        """Return the mean of each of the user's metrics in the range, of the lowest rank that logged it."""
        if self.metrics is None:
            return {}
        inside = self.metrics.between(self.start_ns or 0, self.end_ns or 2**63 - 1)
        metrics = {name: inside.find(name) for name in inside.names}
        return {
            name: float(np.nanmean(metric.values))
            for name, metric in metrics.items()
            if metric is not None and np.isfinite(metric.values).any()
        }

    def samples(self) -> SampleTable:
        """Return the samples at the finest interval that was recorded."""
        return read_finest(self.telemetry, since_ns=self.start_ns, until_ns=self.end_ns)

    def _overview(self, metrics: Sequence[str] | None) -> Overview:
        return read_overview(
            self.telemetry, start_ns=self.start_ns, end_ns=self.end_ns, buckets=BUCKETS, metrics=metrics
        )

    def _table(self) -> SampleTable:
        counted = self.overview.count.get("CPU_UTIL"), self.overview.count.get("GPU_UTIL")
        rows = sum(int(np.nansum(each)) for each in counted if each is not None)
        return self.samples() if rows <= _MAX_ROWS else means_table(self.overview)


def means_table(overview: Overview) -> SampleTable:
    """Return the means of an overview as a table of samples, without empty buckets."""
    columns = {}
    for row, device in enumerate(overview.devices):
        kept = SCORE_PARTS if device.kind == "gpu" and "SCORE_SHARE" in overview.mean else ()
        own = {
            metric: np.asarray(overview.mean[metric][row], np.float64)
            if metric in overview.mean
            else np.full(len(overview.time_ns), np.nan)
            for metric in (*METRICS[device.kind], *kept)
        }
        there = np.any([np.isfinite(values) for values in own.values()], axis=0)
        columns[device.uuid] = {
            "time_ns": overview.time_ns[there],
            "monotonic_ns": np.zeros(int(there.sum()), np.int64),
            **{metric: values[there] for metric, values in own.items()},
        }
    return SampleTable(overview.devices, columns, MEANS, overview.bucket_ns / 1e9)


def is_recorded(telemetry: Path) -> bool:
    """Return whether a recorder on any node has recently written here; clocks of nodes may differ."""
    now_ns = time.time_ns()
    files = segment_files(telemetry)
    return any(not each.closed and abs(now_ns - each.written_ns) < _SILENT_NS for each in files)


def export_content(time_range: TimeRange, kind: str) -> Iterator[bytes]:
    """Yield the content of a file in chunks; `kind` is one of :data:`CONTENT_TYPES`."""
    if kind == "png":
        draw = time_series_figure if gpus_of(time_range.overview) else host_figure
        yield static_image(draw(time_range.overview))
        return
    with tempfile.TemporaryDirectory(prefix="gipfel-") as folder:
        path = Path(folder) / f"samples.{kind}"
        write_export(time_range.samples(), path)
        with path.open("rb") as file:
            while piece := file.read(_CHUNK_BYTES):
                yield piece


@dataclass(frozen=True)
class DrawnFigures:
    """Figures by name, their devices, and the time in nanoseconds of each device's newest sample."""

    figures: Mapping[str, dict[str, Any]]
    devices: tuple[Device, ...]
    newest: Mapping[str, int]


class LiveFigures:
    """Figures up to now, from the samples in a feed's memory; longer windows are read from the run folder."""

    def __init__(self, feed: SaturationFeed, run: Path) -> None:
        self._feed = feed
        self._run = run

    def draw(self, view: View, events: Sequence[Event], only_names: Sequence[str] = ()) -> DrawnFigures:
        """Return the figures of a view; reads files, so call it on a thread."""
        table = self._feed.table(min(view.window, LIVE_WINDOW_S))
        table = replace(table, interval=_interval(table))
        times = {device.uuid: table[device.uuid]["time_ns"] for device in table.devices}
        newest = {device: int(column[-1]) for device, column in times.items() if len(column)}
        fine = self._overview(table, view.window, metrics_of(view))
        # A column of the heat map that is shorter than two sampling intervals would have gaps.
        buckets = max(1, round(2 * table.interval * 1e9 / max(1, fine.bucket_ns)))
        coarse = coarsened(fine, min(HEAT_BUCKETS, max(1, len(fine.time_ns) // buckets)))
        metrics = metrics_of_run(self._run)
        figures = figures_of(fine, coarse, view, metrics, events, only=only_names, rules=drawn_rules())
        for figure in figures.values():
            # The page keeps this time range, even if less has been recorded so far.
            figure["layout"].setdefault("meta", {})["window_s"] = view.window
        return DrawnFigures(figures, fine.devices, newest)

    def table(self, window_s: float) -> SampleTable:
        """Return the table to score: samples, or means if the window exceeds the samples in memory."""
        table = self._feed.table(min(window_s, LIVE_WINDOW_S))
        return table if window_s <= LIVE_WINDOW_S else means_table(self._overview(table, window_s))

    def _overview(
        self, table: SampleTable, window_s: float, metrics: Sequence[str] | None = None
    ) -> Overview:
        if window_s <= LIVE_WINDOW_S:
            firsts = [int(times[0]) for d in table.devices if len(times := table[d.uuid]["time_ns"])]
            span_s = ((table.last_ns or 0) - min(firsts, default=0)) / 1e9
            # A bucket that is shorter than the sampling interval would be a gap.
            buckets = max(1, min(BUCKETS, int(span_s / _interval(table))))
            return Overview.from_table(table, buckets, metrics=metrics)
        start = (table.last_ns or time.time_ns()) - int(window_s * 1e9)
        overview = read_overview(self._run / "telemetry", start_ns=start, buckets=BUCKETS, metrics=metrics)
        return with_devices(overview, {device.uuid for device in table.devices})


def _interval(table: SampleTable) -> float:
    """Return the sampling interval in seconds: as the recorder declared, else the median of the samples."""
    steps = [np.diff(times) for d in table.devices if len(times := table[d.uuid]["time_ns"]) > 1]
    return table.interval or max([float(np.median(each)) / 1e9 for each in steps], default=1.0) or 1.0
