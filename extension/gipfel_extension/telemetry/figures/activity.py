"""The activity figure of a live view, and its deltas: a plot per GPU, then plots of hosts and user metrics.

Pure functions; plotly is not imported. ``layout.meta`` holds data for live views: ``window_s``, the length
of the time axis in seconds, and ``simulated``. The first few user metrics have a row each, on the same time
axis.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sample import Columns, Device, Sample, SampleTable, group_means
from ..user_metrics import MetricsReader, UserMetric, UserMetrics
from .lines import GPU_LINES, LINES, Line, Row, activity_rows, line_trace, plain_text
from .palette import COLORS, DEVICES, base_layout, empty_plot, simulated_mark
from .stack import axes, axis_suffix, legend, plot_title

#: Maximum number of rows of user metrics, to leave space for the GPUs.
_MAX_ROWS = 3
#: Maximum number of lines in a row: one per launch, or one per rank of the newest launch.
_MAX_LAUNCHES = 6
_MAX_RANKS = 8
#: Names of metrics that are not drawn: step counters and their totals.
COUNTERS = frozenset({"step", "optimizer_step", "global_step", "iteration", "iter", "epoch", "batch"}) | {
    f"{most}{counted}"
    for most in ("", "total_", "max_", "num_")
    for counted in ("steps", "iterations", "iters", "epochs", "batches")
}

#: Metrics of a launch's step hooks, which are drawn after the metrics that the program logs itself.
DURATIONS = frozenset({"step_s", "work_s"})
_METRICS_DEVICE = Device("metrics", "host", "", None)


@dataclass(frozen=True)
class MetricLine:
    """One metric of one rank of a launch, or of a process outside of launches, and its line style."""

    metric: UserMetric
    line: Line

    @property
    def uid(self) -> str:
        """The trace's ``uid``."""
        launch, rank = self.metric.launch, self.metric.rank
        own = (launch, "" if rank is None else f"rank-{rank}")
        return "/".join(("metrics", self.metric.name, *filter(None, own)))


@dataclass(frozen=True)
class MetricRow:
    """One metric and its row in the figure, with a line per rank and launch."""

    lines: tuple[MetricLine, ...]
    row: Row

    def traces(self, number: int, points: Callable[..., Any], *, dark: bool) -> tuple[dict[str, Any], ...]:
        """Return the traces for the figure's row `number`; the function `points` averages long lines."""
        return tuple(self._trace(each, number, points, dark=dark) for each in self.lines)

    def _trace(
        self, drawn: MetricLine, number: int, points: Callable[..., Any], *, dark: bool
    ) -> dict[str, Any]:
        axis, line = axis_suffix(number), drawn.line
        # Metrics are logged at irregular intervals: a pause does not mean missing values (infinite interval).
        x, y = points(drawn.metric.time_ns, drawn.metric.values, np.inf)
        return {
            "type": "scatter",
            "mode": "lines+markers" if len(x) < 50 else "lines",
            "marker": {"size": 3},
            "uid": drawn.uid,
            "name": line.label,
            "legend": f"legend{axis}",
            "legendgroup": drawn.uid,
            # The row's title names a single line.
            "showlegend": len(self.lines) > 1,
            "x": x,
            "y": y,
            "xaxis": f"x{axis}",
            "yaxis": f"y{axis}",
            "connectgaps": False,
            "line": {"color": line.dark if dark else line.light, "dash": line.dash, "width": 1.6},
            "hovertemplate": f"{line.label} %{{y:.5~g}}<extra></extra>",
        }


def metric_rows(metrics: UserMetrics) -> list[MetricRow]:
    """Return the rows of the first few metrics that are not counters.

    A row has a line per rank of the newest launch, and a line of the lowest rank of a few launches before it.
    """
    found = []
    names = sorted(
        (name for name in metrics.names if name not in COUNTERS), key=lambda name: name in DURATIONS
    )
    for name in names[:_MAX_ROWS]:
        launches = metrics.launches(name)
        series = [
            each
            for launch in launches[-_MAX_LAUNCHES:]
            for each in _of_launch(metrics, name, launch, all_ranks=launch == launches[-1])
        ]
        if not series:
            continue
        lines = tuple(MetricLine(each, _line(metrics, series, each)) for each in series)
        title = _metric_title(metrics, series, len(launches))
        found.append(
            MetricRow(lines, Row(title, _METRICS_DEVICE, tuple(each.line for each in lines), percent=False))
        )
    return found


def _of_launch(metrics: UserMetrics, name: str, launch: str, *, all_ranks: bool) -> list[UserMetric]:
    ranks = _ranks(metrics, name, launch)[: _MAX_RANKS if all_ranks else 1]
    found = (metrics.find(name, rank, launch) for rank in ranks)
    return [each for each in found if each is not None]


def _ranks(metrics: UserMetrics, name: str, launch: str) -> list[int | None]:
    """Return the sorted ranks that logged a metric; None, a process without rank, comes first."""
    ranks = {each.rank for each in metrics.series if (each.name, each.launch) == (name, launch)}
    return sorted(ranks, key=lambda rank: -1 if rank is None else rank)


def _line(metrics: UserMetrics, drawn: list[UserMetric], metric: UserMetric) -> Line:
    """Return the line style of one rank of a launch, which is the same in all rows with several lines."""
    if len(drawn) == 1:
        return Line(f"metrics/{metric.name}", plain_text(metric.name), *COLORS["purple"], "solid", "", 1.0)
    launches = metrics.launches()
    style_index = launches.index(metric.launch) + max(0, metric.rank or 0)
    light, dark, dash = DEVICES[style_index % len(DEVICES)]
    drawn_launches = {each.launch for each in drawn}
    parts = [_launch_label(metric.launch, launches)] if len(drawn_launches) > 1 else []
    # All lines of a row are named alike, although only the newest launch has several ranks.
    if len(drawn) > len(drawn_launches):
        parts.append("no rank" if metric.rank is None else f"rank {metric.rank}")
    return Line(f"metrics/{metric.name}", " \u00b7 ".join(parts), light, dark, dash, "", 1.0)


def _launch_label(launch: str, launches: tuple[str, ...]) -> str:
    """Return a label with a launch's number, and with its run where there are several runs."""
    if not launch:
        return "outside of launches"
    run, _, number = launch.rpartition("/")
    several = len({each.rpartition("/")[0] for each in launches if each}) > 1
    return f"launch {plain_text(f'{run}/{number}' if several else number)}"


def _metric_title(metrics: UserMetrics, drawn: list[UserMetric], launches: int) -> str:
    # Names come from users and must not become markup.
    name, newest = plain_text(drawn[0].name), drawn[-1].launch
    if launches == 1 and newest:
        name = f"{name} · {_launch_label(newest, ())}"
    drawn_launches = len({each.launch for each in drawn})
    if launches > drawn_launches:
        name = f"{name} · the newest {drawn_launches} of {launches} launches"
    ranks = len(_ranks(metrics, drawn[0].name, newest))
    if ranks > _MAX_RANKS:
        name = f"{name} · the first {_MAX_RANKS} of {ranks} ranks"
    return name


class MetricsFeed:
    """User metrics of a run for a live view: all metrics for a new figure, then new points for its lines.

    Parameters
    ----------
    path
        ``metrics.jsonl``, which may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._reader = MetricsReader(path)
        self._last_ns: dict[str, int] = {}

    def all_metrics(self) -> UserMetrics:
        """Return all metrics for a new figure; the next call of :meth:`new_points` continues after them."""
        with suppress(OSError):
            self._reader.poll()
        metrics = self._reader.metrics()
        self._last_ns = {each.uid: int(each.metric.time_ns[-1]) for each in _lines(metrics)}
        return metrics

    def new_points(self) -> Mapping[str, dict[str, list[Any]]] | None:
        """Return new points by ``uid`` like :func:`figure_delta`; None if new lines need a new figure."""
        try:
            if not self._reader.poll():
                return {}
        except OSError:
            # A lost file system is reported by the samples' reader.
            return {}
        traces: dict[str, dict[str, list[Any]]] = {}
        for each in _lines(self._reader.metrics()):
            last_ns = self._last_ns.get(each.uid)
            if last_ns is None:
                return None
            is_new = each.metric.time_ns > last_ns
            if is_new.any():
                self._last_ns[each.uid] = int(each.metric.time_ns[-1])
                values = each.metric.values[is_new].tolist()
                traces[each.uid] = {
                    "x": (each.metric.time_ns[is_new] // 1_000_000).tolist(),
                    "y": [value if np.isfinite(value) else None for value in values],
                }
        return traces


def _lines(metrics: UserMetrics) -> list[MetricLine]:
    return [line for row in metric_rows(metrics) for line in row.lines]


_ROW_PIXELS = 104
_TOP_PIXELS = 66
_BOTTOM_PIXELS = 42
_TITLE_PIXELS = 24
_EMPTY = "No samples yet.<br>The recorder starts with the job."
#: Lines with more points are averaged; a panel is a few hundred pixels wide.
_MAX_POINTS = 1200
#: A pause of more intervals than this is drawn as a gap.
_GAP_INTERVALS = 3.5


def saturation_figure(
    table: SampleTable, *, window_s: float, dark: bool = False, metrics: UserMetrics | None = None
) -> dict[str, Any]:
    """Return the figure of GPUs and hosts: a plot per GPU, CPU and memory, I/O, and user metrics.

    Parameters
    ----------
    window_s
        Length of the time axis in seconds; it ends at the newest sample.
    dark
        True for colors on a dark background.
    metrics
        User metrics of the same time; :func:`metric_rows` selects some of them.

    Returns
    -------
    dict
        ``data`` and ``layout`` for ``plotly.graph_objects.Figure``. x is UTC in milliseconds since the epoch,
        y percent or MB/s; a trace's ``uid`` is ``<device>/<metric>``. Missing values and pauses are gaps.
    """
    last = table.last_ns
    visible = table if last is None else table.between(_first(last, window_s))
    rows = activity_rows(visible)
    data = [
        _trace(line, row, number, visible, dark=dark)
        for number, row in enumerate(rows, start=1)
        for line in row.lines
    ]
    # One legend entry per metric: it shows and hides the metric of all GPUs.
    for first in {trace["legendgroup"]: trace for trace in reversed(data)}.values():
        first["showlegend"] = True
    user_rows = (
        [] if metrics is None or last is None else metric_rows(metrics.between(_first(last, window_s)))
    )
    for offset, each in enumerate(user_rows, start=1):
        data += each.traces(len(rows) + offset, _points, dark=dark)
    rows += [each.row for each in user_rows]
    return {"data": data, "layout": layout_of(rows, visible, window_s=window_s, dark=dark)}


def figure_delta(samples: Iterable[Sample]) -> dict[str, dict[str, list[Any]]]:
    """Return new points ``x`` and ``y`` by ``uid`` for the traces of :func:`saturation_figure`."""
    traces: dict[str, dict[str, list[Any]]] = {}
    for sample in sorted(samples, key=lambda sample: sample.time_ns):
        for metric, line in LINES.items():
            if metric in sample.values:
                trace = traces.setdefault(f"{sample.device}/{metric}", {"x": [], "y": []})
                trace["x"].append(sample.time_ns // 1_000_000)
                trace["y"].append(_value(sample, line))
    return traces


def layout_of(rows: list[Row], table: SampleTable, *, window_s: float, dark: bool) -> dict[str, Any]:
    """Return the layout of a table's rows; see :func:`saturation_figure` for the parameters."""
    height = _TOP_PIXELS + _BOTTOM_PIXELS + _ROW_PIXELS * max(1, len(rows))
    layout = base_layout(_title(table), height, dark=dark, top=_TOP_PIXELS, bottom=_BOTTOM_PIXELS)
    top = {"y": round(1 - _TITLE_PIXELS / height, 6), "yanchor": "top", "yref": "container"}
    layout |= {
        "margin": {"l": 42, "r": 8, "t": _TOP_PIXELS, "b": _BOTTOM_PIXELS},
        "hovermode": "x unified",
        "legend": legend(1.0) | top,
        "meta": {"window_s": window_s, "simulated": table.simulated},
    }
    if not rows:
        return layout | empty_plot(_EMPTY, dark=dark)
    # Each row consists of a title and a plot.
    share, last = 1.0 / len(rows), table.last_ns
    for number, row in enumerate(rows, start=1):
        bottom = 1.0 - number * share
        domain = [round(max(0.0, bottom), 6), round(bottom + 0.74 * share, 6)]
        layout |= axes(number, len(rows), domain, percent=row.percent, dark=dark)
        if last is not None:
            axis = layout[f"xaxis{axis_suffix(number)}"]
            axis["range"] = [last // 1_000_000 - int(window_s * 1000), last // 1_000_000]
        layout["annotations"].append(plot_title(row.title, number) | {"y": 1.02})
        if row.lines is not GPU_LINES and number > 1:
            layout[f"legend{number}"] = legend(domain[1]) | {"x": 1.0, "xanchor": "right"}
    if table.simulated:
        layout["annotations"].append(simulated_mark(dark=dark))
    return layout


def _title(table: SampleTable) -> str:
    simulated = sum(device.simulated for device in table.devices)
    if not table.devices:
        return "GPU and host activity"
    if not table.gpus:
        return "Host activity (simulated)" if simulated else "Host activity"
    if not simulated:
        return "GPU and host activity" if table.hosts else "GPU activity"
    return (
        "GPU activity (simulated)" if simulated == len(table.devices) else "GPU (simulated) and host activity"
    )


def _first(last_ns: int, window_s: float) -> int:
    return last_ns - int(window_s * 1e9)


def _trace(line: Line, row: Row, number: int, table: SampleTable, *, dark: bool) -> dict[str, Any]:
    axis, columns, uid = axis_suffix(number), table[row.device.uuid], f"{row.device.uuid}/{line.metric}"
    points = _points(columns["time_ns"], _series(columns, line), table.interval)
    # GPUs share the legend at the top; each row of a host has its own.
    group = row.lines is not GPU_LINES
    return line_trace(line, uid, points, dark=dark, scope=row.device.scope) | {
        "legend": f"legend{axis}" if group else "legend",
        "legendgroup": uid if group else line.metric,
        "showlegend": False,
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
    }


def _series(columns: Columns, line: Line) -> NDArray[np.float64]:
    values: NDArray[np.float64] = columns[line.metric] * line.factor
    if line.percent_of:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = values / columns[line.percent_of]
    return values


def _value(sample: Sample, line: Line) -> float | None:
    value = sample.values.get(line.metric)
    total = sample.values.get(line.percent_of) if line.percent_of else 1.0
    return None if value is None or not total else round(value * line.factor / total, 3)


def _points(
    times: NDArray[np.int64], values: NDArray[np.float64], interval: float
) -> tuple[list[int], list[float | None]]:
    """Return the points of one line, averaged where there are too many, with a null point in each pause."""
    size = -(-len(times) // _MAX_POINTS) if len(times) else 1
    if size > 1:
        starts = np.arange(0, len(times), size)
        times, values = times[starts], group_means(values, starts)
    milliseconds = times // 1_000_000
    step = interval * size or (float(np.median(np.diff(times))) / 1e9 if len(times) > 1 else 0.0)
    x: list[int] = []
    y: list[float | None] = []
    for time, value in zip(milliseconds.tolist(), values.tolist(), strict=True):
        if x and step and time - x[-1] > 1000 * _GAP_INTERVALS * step:
            x.append(x[-1] + int(1000 * step))
            y.append(None)
        x.append(time)
        y.append(round(value, 3) if np.isfinite(value) else None)
    return x, y
