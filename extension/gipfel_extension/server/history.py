"""A stretch of a run as it was: from summaries where it is long, from the samples where it is short."""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..telemetry.events import Event, read_events
from ..telemetry.figures.lines import coarser
from ..telemetry.metrics import UserMetrics
from ..telemetry.overview.read import Overview, read_overview
from ..telemetry.sample import METRICS, SCORE_PARTS, SampleTable
from ..telemetry.store.fine import read_finest
from ..telemetry.store.segment_files import segment_files
from ..training.results import kept_since
from .analysis import MEANS, judged
from .run_metrics import metrics_of_run
from .views import BUCKETS, HEAT_BUCKETS, View, event_words, figures_of, metrics_of

#: More samples than this are scored by their means.
_MOST_ROWS = 400_000
#: A recorder whose file has stood still for so long is gone; it writes every few seconds.
_SILENT_NS = 90 * 10**9


class Stretch:
    """What was recorded of a run between two times, both UTC in nanoseconds; None is the run's own end."""

    def __init__(self, run: Path, start_ns: int | None = None, end_ns: int | None = None) -> None:
        self.telemetry = run / "telemetry"
        self.start_ns, self.end_ns = start_ns, end_ns
        self.metrics: UserMetrics | None = metrics_of_run(run)
        self.events: tuple[Event, ...] = read_events(self.telemetry)

    @cached_property
    def overview(self) -> Overview:
        """All metrics of it, which the score may need and a picture doesn't."""
        return self._overview(None)

    def answer(self, view: View) -> dict[str, Any]:
        """Figures and events for a page; the score takes longer, and is asked for apart."""
        overview = self._overview(metrics_of(view))
        coarse = coarser(overview, HEAT_BUCKETS)
        figures = figures_of(overview, coarse, view, self.metrics, self.events)
        return {
            "figures": figures,
            "events": event_words(self.events),
            "devices": [device.to_json() for device in overview.devices],
            "bucket_s": overview.bucket_ns / 1e9,
            "growing": self.end_ns is None and _is_recorded(self.telemetry),
        }

    def document(self) -> dict[str, Any]:
        """The score of the stretch, which says so where it is made of means.

        That of a whole run has what became of the advice before it, as its ``score.json`` says.
        """
        whole = self.start_ns is None and self.end_ns is None
        since = kept_since(self.telemetry.parent) if whole else None
        told = None if since is None else since.model_dump(mode="json")
        return {**judged(self._table(), self.telemetry), "since": told}

    def rates(self) -> Mapping[str, float]:
        """Means of the user's own metrics within the stretch, of the lowest rank."""
        if self.metrics is None:
            return {}
        inside = self.metrics.between(self.start_ns or 0, self.end_ns or 2**63 - 1)
        found = {}
        for name in inside.names:
            metric = inside.of(name)
            if metric is not None and np.isfinite(metric.values).any():
                found[name] = float(np.nanmean(metric.values))
        return found

    def samples(self) -> SampleTable:
        """The samples themselves, the finest that are there."""
        return read_finest(self.telemetry, since_ns=self.start_ns, until_ns=self.end_ns)

    def _overview(self, metrics: Sequence[str] | None) -> Overview:
        return read_overview(
            self.telemetry, start_ns=self.start_ns, end_ns=self.end_ns, buckets=BUCKETS, metrics=metrics
        )

    def _table(self) -> SampleTable:
        counted = self.overview.count.get("CPU_UTIL"), self.overview.count.get("GPU_UTIL")
        rows = sum(int(np.nansum(each)) for each in counted if each is not None)
        return self.samples() if rows <= _MOST_ROWS else table_of(self.overview)


def table_of(overview: Overview) -> SampleTable:
    """An overview's means as if they were samples; buckets without any are left out."""
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


def _is_recorded(telemetry: Path) -> bool:
    """Whether a recorder has lately written here, on whichever node; its clock may be another."""
    now_ns = time.time_ns()
    files = segment_files(telemetry)
    return any(not each.closed and abs(now_ns - each.written_ns) < _SILENT_NS for each in files)
