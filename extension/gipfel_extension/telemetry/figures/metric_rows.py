"""The user's own metrics in the activity figure: a row for each of the first few, on the same time axis."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..metrics import MetricsReader, UserMetric, UserMetrics
from ..sample import Device
from .rows import Line, Row

#: More rows would take the room of the GPUs.
_MOST = 3
#: They only count, as time does.
_COUNTERS = frozenset({"step", "global_step", "iteration", "iter", "epoch", "batch"})
#: To be seen on a light and on a dark ground.
_COLOUR = "#9467bd"
_NOBODY = Device("metrics", "host", "", None)


@dataclass(frozen=True)
class MetricRow:
    """One metric and the row that it is drawn in."""

    metric: UserMetric
    row: Row

    @property
    def uid(self) -> str:
        """The trace's name for a live view."""
        return f"metrics/{self.metric.name}"

    def trace(self, number: int, points: Callable[..., Any], *, dark: bool) -> dict[str, Any]:
        """The trace of the figure's row `number`; `points` is how a figure averages a long line."""
        axis = "" if number == 1 else str(number)
        (line,) = self.row.lines
        # Whoever logs every hundredth step made no pause.
        x, y = points(self.metric.time_ns, self.metric.values, np.inf)
        return {
            "type": "scatter",
            "mode": "lines+markers" if len(x) < 50 else "lines",
            "marker": {"size": 3},
            "uid": self.uid,
            "name": line.label,
            "legend": f"legend{axis}",
            "legendgroup": self.uid,
            "showlegend": False,
            "x": x,
            "y": y,
            "xaxis": f"x{axis}",
            "yaxis": f"y{axis}",
            "connectgaps": False,
            "line": {"color": line.dark if dark else line.light, "dash": line.dash, "width": 1.6},
            "hovertemplate": f"{line.label} %{{y:.5~g}}<extra></extra>",
        }


def metric_rows(metrics: UserMetrics) -> list[MetricRow]:
    """The rows of the first metrics that don't only count steps; of several ranks the lowest one's."""
    found = []
    for name in [name for name in metrics.names if name not in _COUNTERS][:_MOST]:
        metric = metrics.of(name)
        if metric is None:
            continue
        several = sum(each.name == name for each in metrics.series) > 1
        # What a person wrote must not become markup.
        label = name.replace("<", "_").replace("%{", "% {")
        title = f"{label} · rank {metric.rank}" if several and metric.rank is not None else label
        line = Line(f"metrics/{name}", label, _COLOUR, _COLOUR, "solid", "", 1.0)
        found.append(MetricRow(metric, Row(title, _NOBODY, (line,), percent=False)))
    return found


class MetricsFeed:
    """What a live view needs of a run's metrics: all of them for a figure, and what is new for its lines.

    Parameters
    ----------
    path
        ``metrics.jsonl``; it needn't be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._reader = MetricsReader(path)
        self._drawn: dict[str, int] = {}

    def drawn(self) -> UserMetrics:
        """Everything that is known now, for a figure; the next :meth:`new` begins after it."""
        with suppress(OSError):
            self._reader.poll()
        metrics = self._reader.metrics()
        self._drawn = {each.uid: int(each.metric.time_ns[-1]) for each in metric_rows(metrics)}
        return metrics

    def new(self) -> Mapping[str, dict[str, list[Any]]] | None:
        """New points by trace, as those of :func:`figures.figure_delta`; None where a figure is due."""
        try:
            if not self._reader.poll():
                return {}
        except OSError:
            # The samples beside it say more about a file system that has gone.
            return {}
        traces: dict[str, dict[str, list[Any]]] = {}
        for each in metric_rows(self._reader.metrics()):
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
