"""A stretch of a run as it was: from summaries where it is long, from the samples where it is short."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..saturation import advise, document_of, score_table
from ..telemetry.events import Event, read_events
from ..telemetry.metrics import UserMetrics, read_metrics
from ..telemetry.overview_lines import coarser
from ..telemetry.ranks import gpus_by_rank, read_ranks
from ..telemetry.sample import METRICS, SampleTable
from ..telemetry.segments import read_samples
from ..telemetry.summaries import Overview, read_overview
from .views import BUCKETS, HEAT_BUCKETS, View, event_words, figures_of

#: More samples than this are scored by their means.
_MOST_ROWS = 400_000


class Stretch:
    """What was recorded of a run between two times, both UTC in nanoseconds; None is the run's own end."""

    def __init__(self, run: Path, start_ns: int | None = None, end_ns: int | None = None) -> None:
        self.telemetry = run / "telemetry"
        self.start_ns, self.end_ns = start_ns, end_ns
        self.overview: Overview = read_overview(
            self.telemetry, start_ns=start_ns, end_ns=end_ns, buckets=BUCKETS
        )
        self.metrics: UserMetrics | None = _metrics(run)
        self.events: tuple[Event, ...] = read_events(self.telemetry)

    def answer(self, view: View) -> dict[str, Any]:
        """Figures and events for a page; the score takes longer, and is asked for apart."""
        coarse = coarser(self.overview, HEAT_BUCKETS)
        figures = figures_of(self.overview, coarse, view, self.metrics, self.events)
        return {
            "figures": figures,
            "events": event_words(self.events),
            "devices": [device.to_json() for device in self.overview.devices],
            "bucket_s": self.overview.bucket_ns / 1e9,
        }

    def document(self) -> dict[str, Any]:
        """The score of the stretch, with a note where it is made of means."""
        table, note = self._table()
        job = score_table(table, ranks=gpus_by_rank(read_ranks(self.telemetry)))
        document = document_of(job, advise(table, job))
        return {**document, "notes": [*note, *document["notes"]]}

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
        """The samples themselves."""
        return read_samples(self.telemetry, since_ns=self.start_ns, until_ns=self.end_ns)

    def _table(self) -> tuple[SampleTable, list[str]]:
        counted = self.overview.count.get("CPU_UTIL"), self.overview.count.get("GPU_UTIL")
        rows = sum(int(np.nansum(each)) for each in counted if each is not None)
        if rows <= _MOST_ROWS:
            return self.samples(), []
        seconds = self.overview.bucket_ns / 1e9
        note = f"Scored by means over {seconds:g} s, since this is a long time; zoom in to score the samples."
        return table_of(self.overview), [note]


def table_of(overview: Overview) -> SampleTable:
    """An overview's means as if they were samples; buckets without any are left out."""
    columns = {}
    for row, device in enumerate(overview.devices):
        own = {
            metric: np.asarray(overview.mean[metric][row], np.float64)
            if metric in overview.mean
            else np.full(len(overview.time_ns), np.nan)
            for metric in METRICS[device.kind]
        }
        there = np.any([np.isfinite(values) for values in own.values()], axis=0)
        columns[device.uuid] = {
            "time_ns": overview.time_ns[there],
            "monotonic_ns": np.zeros(int(there.sum()), np.int64),
            **{metric: values[there] for metric, values in own.items()},
        }
    return SampleTable(overview.devices, columns, "summaries", overview.bucket_ns / 1e9)


def _metrics(run: Path) -> UserMetrics | None:
    try:
        return read_metrics(run)
    except OSError:
        return None
