"""User metrics in the activity figure: a row for each of the first few, on the same time axis."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..sample import Device
from ..user_metrics import MetricsReader, UserMetric, UserMetrics
from .lines import Line, Row, plain_text
from .palette import COLORS, DEVICES

#: Maximum number of rows, to leave space for the GPUs.
_MAX_ROWS = 3
#: Maximum number of lines in a row: one per launch, or one per rank of the newest launch.
_MAX_LAUNCHES = 6
_MAX_RANKS = 8
#: Metrics that are not drawn: step counters and their totals.
COUNTERS = frozenset({"step", "optimizer_step", "global_step", "iteration", "iter", "epoch", "batch"}) | {
    f"{most}{counted}"
    for most in ("", "total_", "max_", "num_")
    for counted in ("steps", "iterations", "iters", "epochs", "batches")
}

#: Metrics of a launch's step hooks, which stand behind those that the program logs.
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
        parts = [
            "metrics",
            self.metric.name,
            *([launch] if launch else ()),
            *([] if rank is None else [f"rank-{rank}"]),
        ]
        return "/".join(parts)


@dataclass(frozen=True)
class MetricRow:
    """One metric and its row in the figure, with a line per rank and launch."""

    lines: tuple[MetricLine, ...]
    row: Row

    @property
    def name(self) -> str:
        """The metric's name."""
        return self.lines[0].metric.name

    def traces(self, number: int, points: Callable[..., Any], *, dark: bool) -> tuple[dict[str, Any], ...]:
        """Return the traces for the figure's row `number`; the function `points` averages long lines."""
        return tuple(self._trace(each, number, points, dark=dark) for each in self.lines)

    def _trace(
        self, drawn: MetricLine, number: int, points: Callable[..., Any], *, dark: bool
    ) -> dict[str, Any]:
        axis = "" if number == 1 else str(number)
        line = drawn.line
        # Metrics are logged at irregular intervals, so that no pause is a gap.
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
    """Return the rows of the first metrics that are not counters, a line per rank of the newest launch.

    The newest few launches are drawn; of all but the newest only the lowest rank.
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
        title = _title(metrics, series, len(launches))
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
    parts = [_launch_label(metric.launch, launches)] if len({each.launch for each in drawn}) > 1 else []
    if metric.rank is not None and sum(each.launch == metric.launch for each in drawn) > 1:
        parts.append(f"rank {metric.rank}")
    return Line(f"metrics/{metric.name}", " \u00b7 ".join(parts) or "no rank", light, dark, dash, "", 1.0)


def _launch_label(launch: str, launches: tuple[str, ...]) -> str:
    """Return a label with a launch's number, and with its run where there are several runs."""
    if not launch:
        return "outside of launches"
    run, _, number = launch.rpartition("/")
    several = len({each.rpartition("/")[0] for each in launches if each}) > 1
    return f"launch {plain_text(f'{run}/{number}' if several else number)}"


def _title(metrics: UserMetrics, drawn: list[UserMetric], launches: int) -> str:
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
        """Return new points by trace like :func:`activity.figure_delta`; None if a new figure is needed."""
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
