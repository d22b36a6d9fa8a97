"""One page's part of the live feed: which figures it has, and what is new for each."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..telemetry.figures.heat import HEAT_METRICS
from ..telemetry.figures.rows import DETAIL_LINES
from ..telemetry.sample import Sample
from .views import View

Traces = dict[str, dict[str, list[Any]]]


class LiveView:
    """What was sent to a page, so that each point is sent once."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._sent: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    def drawn(self, figures: Mapping[str, Mapping[str, Any]], newest: Mapping[str, int]) -> None:
        """Note what figures hold; `newest` is the time of each device's newest sample in them."""
        for name in ("job", "host"):
            if name in figures:
                for trace in figures[name]["data"]:
                    self._sent[trace["uid"]] = trace["x"][-1] if trace["x"] else 0
        if "heat" in figures:
            devices = figures["heat"]["layout"]["meta"]["devices"]
            self._rows = {uuid: row for row, uuid in enumerate(devices)}
        for uuid in self.view.gpus:
            if f"gpu/{uuid}" in figures:
                self._sent[f"gpu/{uuid}"] = newest.get(uuid, 0)

    def news(self, samples: Sequence[Sample], job: Traces, own: Traces) -> dict[str, Any]:
        """New points of lines, and new cells of the heat map; empty where there are none."""
        traces = {**self._lines(job), **self._lines(own)}
        for sample in samples:
            key = f"gpu/{sample.device}"
            if key in self._sent and sample.time_ns > self._sent[key]:
                self._sent[key] = sample.time_ns
                _append(traces, sample)
        cells = self._cells(samples)
        return {**({"traces": traces} if traces or cells else {}), **({"cells": cells} if cells else {})}

    def _lines(self, points: Traces) -> Traces:
        traces: Traces = {}
        for uid, new in points.items():
            if uid not in self._sent:
                continue
            fresh = [place for place, x in enumerate(new["x"]) if x > self._sent[uid]]
            if fresh:
                self._sent[uid] = new["x"][fresh[-1]]
                traces[uid] = {axis: [new[axis][place] for place in fresh] for axis in ("x", "y")}
        return traces

    def _cells(self, samples: Sequence[Sample]) -> dict[str, list[Any]]:
        shown = HEAT_METRICS[self.view.metric]
        cells: dict[str, list[Any]] = {"row": [], "x": [], "y": []}
        for sample in samples:
            row, value = self._rows.get(sample.device), sample.values.get(self.view.metric)
            if row is not None and value is not None:
                cells["row"].append(row)
                cells["x"].append(sample.time_ns // 1_000_000)
                cells["y"].append(round(value * shown.factor, 1))
        return cells if cells["row"] else {}


def _append(traces: Traces, sample: Sample) -> None:
    for metric, line in DETAIL_LINES.items():
        if metric in sample.values:
            value = sample.values[metric]
            trace = traces.setdefault(f"{sample.device}/{metric}", {"x": [], "y": []})
            trace["x"].append(sample.time_ns // 1_000_000)
            trace["y"].append(None if value is None else round(value * line.factor, 3))
