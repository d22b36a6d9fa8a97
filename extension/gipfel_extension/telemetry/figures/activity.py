"""Figures of samples as plain dictionaries that plotly draws: the same in panel, widget, notebook and report.

Pure functions; plotly isn't imported. ``layout.meta`` holds what a live view needs: ``window_s``, the seconds
that the time axis shows, and ``simulated``.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metrics import UserMetrics
from ..sample import Columns, Sample, SampleTable
from .layout import layout_of
from .metric_rows import metric_rows
from .rows import GPU_LINES, LINES, Line, Row, rows_of

#: More points than this in a line are averaged down; a panel is a few hundred pixels wide.
_POINTS = 1200
#: A pause of so many intervals is drawn as a gap.
_GAP_INTERVALS = 3.5


def saturation_figure(
    table: SampleTable, *, window_s: float, dark: bool = False, metrics: UserMetrics | None = None
) -> dict[str, Any]:
    """What GPUs and host did: a plot per GPU, then CPU and memory, I/O, and metrics of the user's own.

    Parameters
    ----------
    window_s
        Seconds before the newest sample that the time axis shows.
    dark
        Colours for a dark ground.
    metrics
        The user's own, of the same time; some of them are drawn (:func:`metric_rows.metric_rows`).

    Returns
    -------
    dict
        ``data`` and ``layout`` for ``plotly.graph_objects.Figure``. x is UTC in milliseconds since the epoch,
        y per cent or MB/s; a trace's ``uid`` is ``<device>/<metric>``. Missing values and pauses are gaps.
    """
    last = table.last_ns
    shown = table if last is None else table.since(_first(last, window_s))
    rows = rows_of(shown)
    data = [
        _trace(line, row, number, shown, dark=dark)
        for number, row in enumerate(rows, start=1)
        for line in row.lines
    ]
    # One entry a metric: it shows and hides the metric of every GPU.
    for first in {trace["legendgroup"]: trace for trace in reversed(data)}.values():
        first["showlegend"] = True
    own = [] if metrics is None or last is None else metric_rows(metrics.since(_first(last, window_s)))
    for place, each in enumerate(own, start=1):
        data += each.traces(len(rows) + place, _points, dark=dark)
    rows += [each.row for each in own]
    return {"data": data, "layout": layout_of(rows, shown, window_s=window_s, dark=dark)}


def figure_delta(samples: Iterable[Sample]) -> dict[str, dict[str, list[Any]]]:
    """New points for the traces of :func:`saturation_figure`: trace ``uid`` to ``x`` and ``y``, by time."""
    traces: dict[str, dict[str, list[Any]]] = {}
    for sample in sorted(samples, key=lambda sample: sample.time_ns):
        for metric, line in LINES.items():
            if metric in sample.values:
                trace = traces.setdefault(f"{sample.device}/{metric}", {"x": [], "y": []})
                trace["x"].append(sample.time_ns // 1_000_000)
                trace["y"].append(_value(sample, line))
    return traces


def _first(last_ns: int, window_s: float) -> int:
    return last_ns - int(window_s * 1e9)


def _trace(line: Line, row: Row, number: int, table: SampleTable, *, dark: bool) -> dict[str, Any]:
    axis = "" if number == 1 else str(number)
    columns = table.of(row.device.uuid)
    x, y = _points(columns["time_ns"], _series(columns, line), table.interval)
    digits = ".0f" if line.unit == "%" else ".1f"
    scope = f" of the {row.device.scope}" if row.device.scope else ""
    # GPUs share the legend on top; each row of a host has its own.
    group = row.lines is not GPU_LINES
    return {
        "type": "scatter",
        "mode": "lines",
        "uid": f"{row.device.uuid}/{line.metric}",
        "name": line.label,
        "legend": f"legend{number}" if group and number > 1 else "legend",
        "legendgroup": f"{row.device.uuid}/{line.metric}" if group else line.metric,
        "showlegend": False,
        "x": x,
        "y": y,
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
        "connectgaps": False,
        "line": {"color": line.dark if dark else line.light, "dash": line.dash, "width": 1.6},
        "hovertemplate": f"{line.label}{scope} %{{y:{digits}}} {line.unit}<extra></extra>",
    }


def _series(columns: Columns, line: Line) -> NDArray[np.float64]:
    values: NDArray[np.float64] = columns[line.metric] * line.factor
    if line.of:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = values / columns[line.of]
    return values


def _value(sample: Sample, line: Line) -> float | None:
    value = sample.values.get(line.metric)
    total = sample.values.get(line.of) if line.of else 1.0
    return None if value is None or not total else round(value * line.factor / total, 3)


def _points(
    times: NDArray[np.int64], values: NDArray[np.float64], interval: float
) -> tuple[list[int], list[float | None]]:
    """Points of one line: averaged down where there are too many, with a null point in each pause."""
    size = -(-len(times) // _POINTS) if len(times) else 1
    if size > 1:
        starts = np.arange(0, len(times), size)
        known = np.isfinite(values)
        counts = np.add.reduceat(known.astype(np.int64), starts)
        sums = np.add.reduceat(np.where(known, values, 0.0), starts)
        values = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        times = times[starts]
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
