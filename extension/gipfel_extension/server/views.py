"""Views of the samples on a page: their selection, their figures, and new points as samples arrive.

`figures_of` draws a `View`. `LiveView` and `JobMeans` compute the new points of its lines.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from gipfel_cluster.model import Frozen, OneLine

from ..diagnosis.rules import Rule
from ..rules.thresholds import with_thresholds
from ..telemetry.events import Event
from ..telemetry.figures.heat import HEAT_METRICS, heat_figure
from ..telemetry.figures.lines import (
    DETAIL_LINES,
    GAUGE_LINES,
    LINES,
    MEMORY_LINES,
    TEMPERATURE_LINES,
    gpus_of,
)
from ..telemetry.figures.lines import Line as FigureLine
from ..telemetry.figures.run_figures import (
    ADDED_LINES,
    JOB_LINES,
    MAX_LINES,
    gauge_figure,
    gpu_figure,
    host_figure,
    job_figure,
)
from ..telemetry.figures.stack import with_events
from ..telemetry.sample import Device, Sample
from ..telemetry.user_metrics import UserMetrics

if TYPE_CHECKING:
    from ..telemetry.store.overview import Overview


#: Longest time range that a page may request, in seconds.
MAX_WINDOW_S = 7 * 86400.0
#: Number of points of a line; a panel is a few hundred pixels wide.
BUCKETS = 600
HEAT_BUCKETS = 120
_MAX_GPUS = 64
Traces = dict[str, dict[str, list[Any]]]
#: Number of intervals for which the slowest node is awaited; later samples appear with the next complete
#: figure.
_MAX_WAITING = 8


def _known_metric(value: str) -> str:
    if value not in HEAT_METRICS:
        raise ValueError(f"the metrics of the heat map are {', '.join(HEAT_METRICS)}")
    return value


HeatMetric = Annotated[OneLine, AfterValidator(_known_metric)]


class View(Frozen):
    """Selection of samples on a page.

    ``window`` is the time range in seconds. ``gpus`` are the UUIDs of GPUs that have their own figure.
    ``metric`` is the metric of the heat map. ``gauges`` are metrics that have a figure of their own.
    """

    type: Literal["view"] = "view"
    window: float = Field(600.0, ge=10, le=MAX_WINDOW_S, allow_inf_nan=False)
    dark: bool = False
    metric: HeatMetric = "SM_ACTIVE"
    gpus: tuple[OneLine, ...] = Field((), max_length=_MAX_GPUS)
    gauges: tuple[OneLine, ...] = Field((), max_length=len(GAUGE_LINES))

    @field_validator("gauges")
    @classmethod
    def _are_known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [each for each in value if each not in GAUGE_LINES]:
            raise ValueError(f"{unknown[0]!r} is not one of {', '.join(GAUGE_LINES)}")
        return value


def metrics_of(view: View) -> tuple[str, ...]:
    """Return the metrics that the figures of a view are drawn from."""
    own = (*(DETAIL_LINES.values() if view.gpus else ()), *(GAUGE_LINES[each] for each in view.gauges))
    lines = (*LINES.values(), *MEMORY_LINES, *TEMPERATURE_LINES, *own)
    named = (name for line in lines for name in (line.metric, line.percent_of) if name)
    return tuple(dict.fromkeys((*named, view.metric)))


def figures_of(
    fine: "Overview",
    coarse: "Overview",
    view: View,
    metrics: UserMetrics | None,
    events: Sequence[Event] = (),
    *,
    only: Sequence[str] = (),
    rules: Sequence[Rule] = (),
) -> dict[str, dict[str, Any]]:
    """Return figures by name: ``job``, ``host``, ``heat``, and ``gpu/<uuid>``, ``gauge/<metric>``.

    Parameters
    ----------
    fine, coarse
        The same time range in :data:`BUCKETS` and in :data:`HEAT_BUCKETS`.
    only
        Names of the figures to draw; empty for all.
    rules
        Rules whose bounds are drawn.
    """
    dark = view.dark
    gpus = {gpu.uuid: gpu for gpu in gpus_of(fine)}

    def draw_gpu(uuid: str) -> dict[str, Any]:
        figure = gpu_figure(fine, gpus[uuid], metrics=metrics, dark=dark)
        return with_events(figure, [each for each in events if each.device in ("", uuid)], dark=dark)

    draw: dict[str, Callable[[], dict[str, Any]]] = {
        "job": lambda: with_events(job_figure(fine, metrics=metrics, dark=dark), events, dark=dark),
        "host": partial(host_figure, fine, dark=dark),
        "heat": partial(heat_figure, coarse, view.metric, dark=dark),
        **{f"gpu/{uuid}": partial(draw_gpu, uuid) for uuid in view.gpus if uuid in gpus},
        **{f"gauge/{metric}": partial(gauge_figure, fine, metric, dark=dark) for metric in view.gauges},
    }
    figures = {name: figure() for name, figure in draw.items() if not only or name in only}
    return {
        name: figure if name == "heat" else with_thresholds(figure, rules, dark=dark)
        for name, figure in figures.items()
    }


def event_texts(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return events for a page: the newest hundred, times in UTC milliseconds."""
    return [
        {
            "time_ms": event.time_ns // 1_000_000,
            "node": event.node,
            "kind": event.kind,
            "device": event.device,
            "message": event.message,
        }
        for event in events[-100:]
    ]


class LiveView:
    """Record of the points that a page was sent, so that each point is sent once."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._sent: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        #: Time of the newest sample that was sent for a gauge, by device and metric.
        self._gauges: dict[str, dict[str, int]] = {}

    def record_drawn(self, figures: Mapping[str, Mapping[str, Any]], newest: Mapping[str, int]) -> None:
        """Record the content of figures; `newest` is the time of each device's newest sample in them."""
        traces = [trace for name in ("job", "host") if name in figures for trace in figures[name]["data"]]
        self._sent |= {trace["uid"]: _last_x(trace) for trace in traces}
        if "heat" in figures:
            devices = figures["heat"]["layout"]["meta"]["devices"]
            self._rows = {uuid: row for row, uuid in enumerate(devices)}
        drawn_gpus = (uuid for uuid in self.view.gpus if f"gpu/{uuid}" in figures)
        self._sent |= {f"gpu/{uuid}": newest.get(uuid, 0) for uuid in drawn_gpus}
        gauges = [figures.get(f"gauge/{metric}", {"data": ()}) for metric in self.view.gauges]
        for trace in (trace for figure in gauges for trace in figure["data"]):
            device, _, metric = trace["uid"].rpartition("/")
            if device == "job":
                self._sent.setdefault(trace["uid"], _last_x(trace))
            else:
                self._gauges.setdefault(device, {})[metric] = newest.get(device, 0)

    def new_points(self, samples: Sequence[Sample], job: Traces, gpu_traces: Traces) -> dict[str, Any]:
        """Return new points of lines, and new cells of the heat map; empty if there are none."""
        traces = {**self._lines(job), **self._lines(gpu_traces)}
        for sample in samples:
            key = f"gpu/{sample.device}"
            if key in self._sent and sample.time_ns > self._sent[key]:
                self._sent[key] = sample.time_ns
                _append(traces, sample, DETAIL_LINES.values())
            sent = self._gauges.get(sample.device, {})
            new = [GAUGE_LINES[metric] for metric in sent if sample.time_ns > sent[metric]]
            sent.update({line.metric: sample.time_ns for line in new})
            _append(traces, sample, [line for line in new if key not in self._sent])
        cells = self._cells(samples)
        return {**({"traces": traces} if traces or cells else {}), **({"cells": cells} if cells else {})}

    def _lines(self, points: Traces) -> Traces:
        traces: Traces = {}
        for uid, new in points.items():
            if uid not in self._sent:
                continue
            unsent = [index for index, x in enumerate(new["x"]) if x > self._sent[uid]]
            if unsent:
                self._sent[uid] = new["x"][unsent[-1]]
                traces[uid] = {axis: [values[index] for index in unsent] for axis, values in new.items()}
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


def _last_x(trace: Mapping[str, Any]) -> int:
    return trace["x"][-1] if trace["x"] else 0


def _append(traces: Traces, sample: Sample, lines: Iterable[FigureLine]) -> None:
    for line in lines:
        if line.metric in sample.values:
            value = _scaled(sample, line)
            trace = traces.setdefault(f"{sample.device}/{line.metric}", {"x": [], "y": []})
            trace["x"].append(sample.time_ns // 1_000_000)
            trace["y"].append(None if value is None else round(value, 3))


class JobMeans:
    """Computes the job's lines as means over devices: one point for each line when an interval has ended."""

    def __init__(self) -> None:
        self._intervals: dict[int, dict[str, list[float]]] = {}
        self._done = 0

    def add(
        self, samples: Sequence[Sample], devices: Sequence[Device], interval: float
    ) -> dict[str, dict[str, list[Any]]]:
        """Add samples; return the points of ended intervals, by the ``uid`` of their trace.

        Parameters
        ----------
        interval
            Length of an interval in seconds.
        """
        interval_ms = max(100, round(1000 * interval))
        kinds = {device.uuid: device.kind for device in devices}
        for sample in samples:
            start_ms = sample.time_ns // 1_000_000 // interval_ms * interval_ms
            kind = kinds.get(sample.device)
            if kind is None or start_ms <= self._done:
                continue
            sums = self._intervals.setdefault(start_ms, {})
            lines = JOB_LINES[kind] + (ADDED_LINES if kind == "host" else ())
            for line in lines:
                value = _scaled(sample, line)
                if value is not None:
                    sums.setdefault(f"job/{line.metric}", []).append(value)
        return self._ended_points()

    def _ended_points(self) -> dict[str, dict[str, list[Any]]]:
        traces: dict[str, dict[str, list[Any]]] = {}
        newest = max(self._intervals, default=0)
        added = {f"job/{line.metric}" for line in ADDED_LINES}
        for start_ms in sorted(self._intervals):
            if start_ms == newest:
                break
            for uid, values in self._intervals.pop(start_ms).items():
                total = sum(values)
                trace = traces.setdefault(uid, {"x": [], "y": []})
                trace["x"].append(start_ms)
                trace["y"].append(round(total if uid in added else total / len(values), 3))
                if len(values) > MAX_LINES and uid not in added:
                    # With this many GPUs, gauges draw the range instead of a line for each GPU.
                    trace.setdefault("low", []).append(round(min(values), 3))
                    trace.setdefault("high", []).append(round(max(values), 3))
            self._done = start_ms
        while len(self._intervals) > _MAX_WAITING:
            self._intervals.pop(min(self._intervals))
        return traces


def _scaled(sample: Sample, line: FigureLine) -> float | None:
    value = sample.values.get(line.metric)
    total = sample.values.get(line.percent_of) if line.percent_of else 1.0
    return None if value is None or not total else value * line.factor / total
