"""The user's own metrics in the activity figure: a row for each of the first few, on the same time axis."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..sample import Device
from ..user_metrics import MetricsReader, UserMetric, UserMetrics
from .lines import Line, Row, plain_text
from .palette import DEVICES

#: More rows would take the room of the GPUs.
_MOST = 3
#: More lines in one of them can't be followed.
_MOST_LAUNCHES = 6
_MOST_RANKS = 8
#: They only count, as time does, or are the end of such a count.
_COUNTERS = frozenset({"step", "global_step", "iteration", "iter", "epoch", "batch"}) | {
    f"{most}{counted}"
    for most in ("", "total_", "max_", "num_")
    for counted in ("steps", "iterations", "iters", "epochs", "batches")
}

#: To be seen on a light and on a dark ground.
_COLOR = "#9467bd"
_NOBODY = Device("metrics", "host", "", None)


@dataclass(frozen=True)
class MetricLine:
    """One metric of one rank of a launch, or of a process in none, and its line."""

    metric: UserMetric
    line: Line

    @property
    def uid(self) -> str:
        """The trace's name for a live view."""
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
    """One metric and the row that it is drawn in, a line per rank and launch."""

    lines: tuple[MetricLine, ...]
    row: Row

    @property
    def name(self) -> str:
        """The metric's name."""
        return self.lines[0].metric.name

    def traces(self, number: int, points: Callable[..., Any], *, dark: bool) -> tuple[dict[str, Any], ...]:
        """Return the traces of the figure's row `number`; `points` is how a figure averages a long line."""
        return tuple(self._trace(each, number, points, dark=dark) for each in self.lines)

    def _trace(
        self, drawn: MetricLine, number: int, points: Callable[..., Any], *, dark: bool
    ) -> dict[str, Any]:
        axis = "" if number == 1 else str(number)
        line = drawn.line
        # Whoever logs every hundredth step made no pause.
        x, y = points(drawn.metric.time_ns, drawn.metric.values, np.inf)
        return {
            "type": "scatter",
            "mode": "lines+markers" if len(x) < 50 else "lines",
            "marker": {"size": 3},
            "uid": drawn.uid,
            "name": line.label,
            "legend": f"legend{axis}",
            "legendgroup": drawn.uid,
            # A single one is named by the row's title.
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
    """Return the rows of the first metrics that don't only count steps, a line per rank of the newest launch.

    Of several launches the newest few are drawn, those before the newest by their lowest rank.
    """
    found = []
    for name in [name for name in metrics.names if name not in _COUNTERS][:_MOST]:
        launches = metrics.launches(name)
        own = [
            each
            for launch in launches[-_MOST_LAUNCHES:]
            for each in _of_launch(metrics, name, launch, all_ranks=launch == launches[-1])
        ]
        if not own:
            continue
        lines = tuple(MetricLine(each, _line(metrics, own, each)) for each in own)
        title = _title(metrics, own, len(launches))
        found.append(MetricRow(lines, Row(title, _NOBODY, tuple(each.line for each in lines), percent=False)))
    return found


def _of_launch(metrics: UserMetrics, name: str, launch: str, *, all_ranks: bool) -> list[UserMetric]:
    ranks = _ranks(metrics, name, launch)[: _MOST_RANKS if all_ranks else 1]
    found = (metrics.of(name, rank, launch) for rank in ranks)
    return [each for each in found if each is not None]


def _ranks(metrics: UserMetrics, name: str, launch: str) -> list[int | None]:
    """Return the ranks that logged a metric; a process without one comes first."""
    ranks = {each.rank for each in metrics.series if (each.name, each.launch) == (name, launch)}
    return sorted(ranks, key=lambda rank: -1 if rank is None else rank)


def _line(metrics: UserMetrics, drawn: list[UserMetric], metric: UserMetric) -> Line:
    """Return the color and dash of one rank of a launch: alike in every row, its own where it is alone."""
    if len(drawn) == 1:
        return Line(f"metrics/{metric.name}", plain_text(metric.name), _COLOR, _COLOR, "solid", "", 1.0)
    launches = metrics.launches()
    place = launches.index(metric.launch) + max(0, metric.rank or 0)
    light, dark, dash = DEVICES[place % len(DEVICES)]
    parts = [_called(metric.launch, launches)] if len({each.launch for each in drawn}) > 1 else []
    if metric.rank is not None and sum(each.launch == metric.launch for each in drawn) > 1:
        parts.append(f"rank {metric.rank}")
    return Line(f"metrics/{metric.name}", " \u00b7 ".join(parts) or "no rank", light, dark, dash, "", 1.0)


def _called(launch: str, launches: tuple[str, ...]) -> str:
    """Return a launch's number, with its run where there are several."""
    if not launch:
        return "in no launch"
    run, _, number = launch.rpartition("/")
    several = len({each.rpartition("/")[0] for each in launches if each}) > 1
    return f"launch {plain_text(f'{run}/{number}' if several else number)}"


def _title(metrics: UserMetrics, drawn: list[UserMetric], launches: int) -> str:
    # What a person wrote must not become markup.
    name, newest = plain_text(drawn[0].name), drawn[-1].launch
    if launches == 1 and newest:
        name = f"{name} · {_called(newest, ())}"
    shown = len({each.launch for each in drawn})
    if launches > shown:
        name = f"{name} · the newest {shown} of {launches} launches"
    ranks = len(_ranks(metrics, drawn[0].name, newest))
    if ranks > _MOST_RANKS:
        name = f"{name} · the first {_MOST_RANKS} of {ranks} ranks"
    return name


class MetricsFeed:
    """A run's metrics for a live view: all of them for a figure, then what is new for its lines.

    Parameters
    ----------
    path
        ``metrics.jsonl``; it needn't be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._reader = MetricsReader(path)
        self._drawn: dict[str, int] = {}

    def drawn(self) -> UserMetrics:
        """Return all metrics that are known now, for a figure; the next :meth:`new` begins after them."""
        with suppress(OSError):
            self._reader.poll()
        metrics = self._reader.metrics()
        self._drawn = {each.uid: int(each.metric.time_ns[-1]) for each in _lines(metrics)}
        return metrics

    def new(self) -> Mapping[str, dict[str, list[Any]]] | None:
        """Return new points by trace, as :func:`activity.figure_delta`; None where a new figure is due."""
        try:
            if not self._reader.poll():
                return {}
        except OSError:
            # The samples report a lost file system better.
            return {}
        traces: dict[str, dict[str, list[Any]]] = {}
        for each in _lines(self._reader.metrics()):
            last_ns = self._drawn.get(each.uid)
            if last_ns is None:
                return None
            fresh = each.metric.time_ns > last_ns
            if fresh.any():
                self._drawn[each.uid] = int(each.metric.time_ns[-1])
                values = each.metric.values[fresh].tolist()
                traces[each.uid] = {
                    "x": (each.metric.time_ns[fresh] // 1_000_000).tolist(),
                    "y": [value if np.isfinite(value) else None for value in values],
                }
        return traces


def _lines(metrics: UserMetrics) -> list[MetricLine]:
    return [line for row in metric_rows(metrics) for line in row.lines]
