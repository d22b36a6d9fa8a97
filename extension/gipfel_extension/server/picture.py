"""The figures of a run as it is now: from memory where the time is short, else from its files."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..telemetry.events import Event
from ..telemetry.figures.lines import coarser, only
from ..telemetry.overview.read import Overview, read_overview
from ..telemetry.sample import Device, SampleTable
from ..telemetry.stream import SaturationFeed
from .history import table_of
from .run_metrics import metrics_of_run
from .views import BUCKETS, HEAT_BUCKETS, View, figures_of, metrics_of

#: What the feed keeps in memory, in seconds.
LIVE_WINDOW_S = 600.0


@dataclass(frozen=True)
class Drawn:
    """Figures by name, the devices in them, and the time of each one's newest sample."""

    figures: Mapping[str, dict[str, Any]]
    devices: tuple[Device, ...]
    newest: Mapping[str, int]


class Picture:
    """Draws what a feed holds, and what its run folder holds beyond."""

    def __init__(self, feed: SaturationFeed, run: Path) -> None:
        self._feed = feed
        self._run = run

    def draw(self, view: View, events: Sequence[Event], only_names: Sequence[str] = ()) -> Drawn:
        """The figures of a view; reads files, so on a thread."""
        table = self._feed.table(min(view.window, LIVE_WINDOW_S))
        table = replace(table, interval=_interval(table))
        times = {device.uuid: table.of(device.uuid)["time_ns"] for device in table.devices}
        newest = {device: int(column[-1]) for device, column in times.items() if len(column)}
        fine = self._overview(table, view.window, metrics_of(view))
        # A column of the heat map that is shorter than two samples would have holes.
        beats = max(1, round(2 * table.interval * 1e9 / max(1, fine.bucket_ns)))
        coarse = coarser(fine, min(HEAT_BUCKETS, max(1, len(fine.time_ns) // beats)))
        metrics = metrics_of_run(self._run)
        figures = figures_of(fine, coarse, view, metrics, events, only=only_names)
        for figure in figures.values():
            # What a live view keeps, also where less has been recorded so far.
            figure["layout"].setdefault("meta", {})["window_s"] = view.window
        return Drawn(figures, fine.devices, newest)

    def table(self, window_s: float) -> SampleTable:
        """What is scored: the samples, or means of a time that is too long to be in memory."""
        table = self._feed.table(min(window_s, LIVE_WINDOW_S))
        return table if window_s <= LIVE_WINDOW_S else table_of(self._overview(table, window_s))

    def _overview(
        self, table: SampleTable, window_s: float, metrics: Sequence[str] | None = None
    ) -> Overview:
        if window_s <= LIVE_WINDOW_S:
            firsts = [int(times[0]) for d in table.devices if len(times := table.of(d.uuid)["time_ns"])]
            span_s = ((table.last_ns or 0) - min(firsts, default=0)) / 1e9
            # A bucket that is shorter than the time between two samples would be a gap.
            buckets = max(1, min(BUCKETS, int(span_s / _interval(table))))
            return Overview.of_table(table, buckets, metrics=metrics)
        start = (table.last_ns or time.time_ns()) - int(window_s * 1e9)
        overview = read_overview(self._run / "telemetry", start_ns=start, buckets=BUCKETS, metrics=metrics)
        return only(overview, {device.uuid for device in table.devices})


def _interval(table: SampleTable) -> float:
    """Seconds between two samples: as the recorder said, else as they came."""
    steps = [np.diff(times) for d in table.devices if len(times := table.of(d.uuid)["time_ns"]) > 1]
    return table.interval or max([float(np.median(each)) / 1e9 for each in steps], default=1.0) or 1.0
