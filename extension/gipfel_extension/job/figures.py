"""Figures of all GPUs of a job: bands of quantiles with named outliers, and a heat map encoded as bytes."""

import base64
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ..telemetry.figures.heat import HEAT_METRICS
from ..telemetry.figures.lines import json_values, milliseconds, plain_text, span_ms
from ..telemetry.figures.palette import COLORS, DEVICES, HEAT, base_layout, empty_plot, simulated_mark
from ..telemetry.figures.stack import Plot, stacked, time_axis
from ..telemetry.metric_table import TABLE, LineStyle
from ..telemetry.store.overview import Overview
from .rows import DeviceRow, Floats, bands, outliers, to_bytes, worst_bins

#: Metrics whose high values are bad; of other metrics, the lowest value of several GPUs is the worst.
HIGH_IS_BAD = frozenset({"GPU_TEMP"})
#: Metrics that the overview plots if they were recorded.
OVERVIEW_METRICS = ("SM_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "POWER_USAGE")
HOST_METRICS = ("CPU_UTIL",)
NIC_FIGURE_METRICS = ("NIC_RX_BYTES", "NIC_TX_BYTES", "NIC_PAUSES", "NIC_ERRORS")
#: Maximum number of selected rows that are drawn as a line each; of more rows, only the median is drawn.
_MOST_LINES = 8
_TOP_PIXELS, _BOTTOM_PIXELS, _MOST_PIXELS = 8, 40, 512
_MOST_LABELS = 16
_DIMMED = {False: "#ffffff", True: "#111111"}
#: Opacity of the area below each quantile's line, for a light and a dark theme; 0 for lower edges.
_BAND = {"min": (0.0, 0.0), "max": (0.13, 0.16), "p10": (0.0, 0.0), "p90": (0.3, 0.34)}


def style_of(metric: str) -> LineStyle:
    """Return the label, unit and factor of a metric.

    Raises
    ------
    KeyError
        The metric is unknown or has no line style.
    """
    found = HEAT_METRICS.get(metric) or TABLE[metric].line_style
    if found is None:
        raise KeyError(metric)
    return found


def values_of(overview: Overview, metric: str) -> Floats:
    """Return a metric in its displayed unit, float[devices, times]; NaN where it was not recorded."""
    rows = overview.mean.get(metric)
    shape = (len(overview.devices), len(overview.time_ns))
    return np.full(shape, np.nan) if rows is None else np.asarray(rows, np.float64) * style_of(metric).factor


def bands_figure(
    overview: Overview,
    rows: Sequence[DeviceRow],
    metrics: Sequence[str],
    chosen: Collection[str] = (),
    *,
    dark: bool = False,
    width: int = 320,
) -> dict[str, Any]:
    """Return a plot per metric: median, 10 to 90 %, and range of all rows, with lines of single rows.

    Lines are drawn for outliers and for chosen rows.

    Parameters
    ----------
    chosen
        UUIDs of rows that are drawn in addition: a line each up to eight, else their median.
    width
        Pixels of the figure.
    """
    plots = []
    places = [row.index for row in rows]
    for metric in metrics:
        values = values_of(overview, metric)[places]
        if not np.isfinite(values).any():
            continue
        style = style_of(metric)
        labels = [row.label for row in rows]
        drawn = [place for place, row in enumerate(rows) if row.uuid in chosen]
        traces = band_traces(
            milliseconds(overview), values, labels, drawn, uid=metric, unit=style.unit, dark=dark
        )
        title = f"{style.label} of {len(rows)}" if len(rows) > 1 else style.label
        unit = "" if style.unit == "%" else f", {style.unit}"
        plots.append(Plot(f"{title}{unit}", traces, percent=style.unit == "%", pixels=110, width=width))
    return stacked(
        plots,
        span_ms=span_ms(overview),
        dark=dark,
        simulated=any(row.simulated for row in rows),
        empty="Nothing was recorded in this time. Choose a longer one.",
    )


def nic_figure(
    overview: Overview,
    rows: Sequence[DeviceRow],
    chosen: Collection[str] | None,
    *,
    dark: bool = False,
    width: int = 320,
) -> dict[str, Any]:
    """Return a plot each of bytes received and sent, pauses and errors, with NICs as lines of their own.

    Parameters
    ----------
    rows
        Rows of NICs.
    chosen
        Names of selected NICs; None if all are. Up to eight are drawn as a line each.
    """
    few = {row.uuid for row in rows} if len(rows) <= _MOST_LINES else set()
    drawn = few if chosen is None else chosen
    return bands_figure(overview, rows, NIC_FIGURE_METRICS, drawn, dark=dark, width=width)


def band_traces(
    times: Sequence[int],
    values: Floats,
    labels: Sequence[str],
    chosen: Sequence[int],
    *,
    uid: str,
    unit: str,
    dark: bool,
) -> tuple[dict[str, Any], ...]:
    """Return the traces of one plot: five for bands, at most eight outliers, and the chosen rows.

    Parameters
    ----------
    times
        UTC milliseconds.
    values
        float[rows, times].
    chosen
        Indices of rows that are drawn as lines of their own.
    """
    light, deep = COLORS["blue"]
    color = deep if dark else light
    found = []
    if len(values) > 1:
        parts = bands(values)
        for low, high, name in (("min", "max", "lowest to highest"), ("p10", "p90", "10 to 90 %")):
            edge = {**_line(f"{uid}/{low}", name, times, parts[low], color, "solid", width=0)}
            found.append({**edge, "showlegend": False, "hoverinfo": "skip", "legendgroup": name})
            area = _line(f"{uid}/{high}", name, times, parts[high], color, "solid", width=0)
            found.append(
                {
                    **area,
                    "fill": "tonexty",
                    "fillcolor": _alpha(color, _BAND[high][dark]),
                    "hoverinfo": "skip",
                    "legendgroup": name,
                }
            )
        found.append(
            _line(f"{uid}/median", "median", times, parts["median"], color, "solid", unit=unit, width=2)
        )
    named = [place for place in outliers(values) if place not in chosen]
    several = list(chosen) if len(chosen) <= _MOST_LINES else []
    for number, place in enumerate((*several, *named) if len(values) > 1 else range(len(values))):
        style = DEVICES[(number + 1) % len(DEVICES)]
        label = plain_text(labels[place]) + (" (outlier)" if place in named else "")
        line = (f"{uid}/{plain_text(labels[place])}", label, times, values[place], style[dark], style[2])
        found.append(_line(*line, unit=unit))
    if len(chosen) > _MOST_LINES:
        middle = bands(values[list(chosen)])["median"]
        style = DEVICES[1]
        line = (f"{uid}/chosen", f"median of {len(chosen)} selected", times, middle, style[dark], "dash")
        found.append(_line(*line, unit=unit, width=2.2))
    return tuple(found)


def _line(  # noqa: PLR0917 - the line first, then its style
    uid: str,
    name: str,
    times: Sequence[int],
    values: Floats,
    color: str,
    dash: str,
    *,
    unit: str = "",
    width: float = 1.6,
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "uid": uid,
        "name": name,
        "x": list(times),
        "y": json_values(values, 3 if unit == "%" else 6),
        "connectgaps": True,
        "line": {"color": color, "dash": dash, "width": width},
        "hovertemplate": f"{name} %{{y:.4~g}} {unit}<extra></extra>",
    }


def _alpha(color: str, alpha: float) -> str:
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def heat_bytes(
    overview: Overview,
    rows: Sequence[DeviceRow],
    metric: str,
    chosen: Collection[str] | None = None,
    *,
    dark: bool = False,
    most_rows: int = _MOST_PIXELS,
) -> dict[str, Any]:
    """Return a heat map with a row per device; many devices are binned, with the worst value at each time.

    Parameters
    ----------
    rows
        The rows in the order in which they are drawn.
    chosen
        UUIDs of selected rows, the others are dimmed; None if all are selected.
    most_rows
        Maximum number of rows of the map; by default its height in pixels, since thinner rows are invisible.

    Returns
    -------
    dict
        ``data`` holds one trace ``heatmap`` without values. ``layout.meta`` holds the values as ``bytes``,
        base64 of uint8[rows, columns] (255 is missing), the ends of the scale ``low`` and ``high``, and for
        each row its ``labels``, ``ranks``, ``nodes`` and ``uuids``.
    """
    style = style_of(metric)
    values = values_of(overview, metric)[[row.index for row in rows]]
    if not np.isfinite(values).any():
        note = empty_plot(f"{style.label} was not recorded in this time.", dark=dark)
        layout = base_layout("", 120, dark=dark) | note
        return {"data": [], "layout": layout | {"meta": {"metric": metric}}}
    binned, parts = worst_bins(values, min(most_rows, _MOST_PIXELS), highest=metric in HIGH_IS_BAD)
    high = style.scale_max or float(np.nanmax(binned)) or 1.0
    pixels = _pixels(len(parts))
    layout = base_layout(
        "", _TOP_PIXELS + _BOTTOM_PIXELS + pixels, dark=dark, top=_TOP_PIXELS, bottom=_BOTTOM_PIXELS
    )
    bucket = overview.bucket_ns / 1e6
    layout["xaxis"] = time_axis(dark=dark) | {"range": list(span_ms(overview) or ()), "showgrid": False}
    labels = [_bin_label([rows[place] for place in part]) for part in parts]
    layout["yaxis"] = _axis(rows, parts, labels)
    layout["shapes"] = [] if chosen is None else _dimmed(rows, parts, chosen, dark=dark)
    layout["meta"] = {
        "metric": metric,
        "unit": style.unit,
        "bytes": base64.b64encode(to_bytes(binned, 0.0, high).tobytes()).decode(),
        "shape": list(binned.shape),
        "low": 0.0,
        "high": high,
        "labels": labels,
        "ranks": [[rows[place].rank for place in part if rows[place].rank is not None] for part in parts],
        "nodes": [rows[part[0]].node if len(part) == 1 else "" for part in parts],
        "uuids": [rows[part[0]].uuid if len(part) == 1 else "" for part in parts],
        "rows_per_bin": len(parts[0]),
    }
    if any(row.simulated for row in rows):
        layout["annotations"].append(simulated_mark(dark=dark))
    return {"data": [_heat_trace(overview, metric, style, high, bucket, dark=dark)], "layout": layout}


def _heat_trace(
    overview: Overview, metric: str, style: LineStyle, high: float, bucket: float, *, dark: bool
) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "uid": f"heat-{metric}",
        "x0": overview.time_ns[0] / 1e6 + bucket / 2,
        "dx": bucket,
        "y0": 0,
        "dy": 1,
        "z": [],
        "colorscale": HEAT[dark],
        "zmin": 0,
        "zmax": high,
        "showscale": False,
        "hoverongaps": False,
        "hovertemplate": f"%{{text}} · %{{x}}<br>{style.label} %{{z:.0f}} {style.unit}<extra></extra>",
    }


def _pixels(rows: int) -> int:
    return rows * (20 if rows <= 8 else 12 if rows <= 24 else 6 if rows <= 64 else 2 if rows <= 256 else 1)


def _bin_label(rows: Sequence[DeviceRow]) -> str:
    if len(rows) == 1:
        return rows[0].label
    ranks = sorted(row.rank for row in rows if row.rank is not None)
    if len(ranks) == len(rows):
        return f"worst of ranks {', '.join(map(str, ranks[:4]))}{', …' if len(ranks) > 4 else ''}"
    return f"worst of {rows[0].label} to {rows[-1].label}"


def _axis(rows: Sequence[DeviceRow], parts: Sequence[range], labels: Sequence[str]) -> dict[str, Any]:
    step = -(-len(parts) // _MOST_LABELS)
    places = list(range(0, len(parts), step))
    shown = [_short(rows[parts[place][0]]) for place in places]
    return {
        "range": [len(labels) - 0.5, -0.5],
        "autorange": False,
        "fixedrange": True,
        "tickvals": places,
        "ticktext": [plain_text(each) for each in shown],
        "tickfont": {"size": 11},
        "showgrid": False,
        "zeroline": False,
    }


def _short(row: DeviceRow) -> str:
    return row.label[-9:] if row.rank is None else f"r{row.rank}"


def _dimmed(
    rows: Sequence[DeviceRow], parts: Sequence[range], chosen: Collection[str], *, dark: bool
) -> list[dict[str, Any]]:
    """Return a rectangle over each group of adjacent rows that are not selected."""
    lit = [any(rows[place].uuid in chosen for place in part) for part in parts]
    found: list[dict[str, Any]] = []
    first = 0
    for place in range(1, len(lit) + 1):
        if place == len(lit) or lit[place] != lit[first]:
            if not lit[first]:
                found.append(_veil(first - 0.5, place - 0.5, dark=dark))
            first = place
    return found


def _veil(low: float, high: float, *, dark: bool) -> dict[str, Any]:
    return {
        "type": "rect",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "yref": "y",
        "y0": low,
        "y1": high,
        "fillcolor": _DIMMED[dark],
        "opacity": 0.72,
        "line": {"width": 0},
        "layer": "above",
        "name": "dimmed",
    }
