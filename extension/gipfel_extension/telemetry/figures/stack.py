"""Vertically stacked plots on one time axis, as in most figures of a run: axes, titles, legends and marks.

Marks are events, and the time range that is the evidence of an advice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..events import Event
from .lines import plain_text
from .palette import MARK, base_layout, empty_plot, grid_color, simulated_mark

#: Heights in pixels: the figure's title, the time axis' labels, a plot's title, a line of its legend.
_TITLE_PIXELS = 30
_BOTTOM_PIXELS = 40
_HEAD_PIXELS = 21
_LEGEND_PIXELS = 19
#: Pixels: width of a figure in the panel, and the part of it that is margin, where a legend has no room. A
#: legend entry needs the pixels of its line sample and of its letters; all columns of a legend are as wide as
#: the longest entry.
_NARROWEST_PIXELS, _MARGIN_PIXELS = 320, 82
_SAMPLE_PIXELS, _LETTER_PIXELS = 45, 5.6
_MAX_LINES = 8
_PLOT_PIXELS = 68
#: Maximum number of event marks; the newest are kept.
_MAX_MARKS = 20
_SYMBOLS = {
    "xid": "✗",
    "gpu_lost": "✗",
    "node_lost": "✗",
    "disk_full": "✗",
    "throttle": "▲",
    "gpu_errors": "▲",
    "nic_errors": "▲",
}


@dataclass(frozen=True)
class Plot:
    """One plot of a stack.

    Parameters
    ----------
    title
        Title above the plot on the left, with the unit.
    traces
        plotly traces without axes and legend.
    percent
        True for an axis that ends at 100 %.
    legend
        True for a legend above the plot; traces with ``showlegend`` False are omitted.
    pixels
        Height of the plot in pixels, without its title and legend.
    width
        Width of the figure in pixels, which determines into how many lines the legend is broken.
    """

    title: str
    traces: tuple[dict[str, Any], ...]
    percent: bool = False
    legend: bool = True
    pixels: int = _PLOT_PIXELS
    width: int = _NARROWEST_PIXELS

    @property
    def legend_pixels(self) -> int:
        """Height of the legend above the plot in pixels."""
        names = [str(trace.get("name", "")) for trace in self.traces if trace.get("showlegend", True)]
        if not self.legend or not names:
            return 0
        longest = max(map(len, names))
        columns = max(1, int((self.width - _MARGIN_PIXELS) / (_SAMPLE_PIXELS + _LETTER_PIXELS * longest)))
        return _LEGEND_PIXELS * min(_MAX_LINES, -(-len(names) // columns))

    @property
    def header_pixels(self) -> int:
        """Height of title and legend above the plot in pixels."""
        return _HEAD_PIXELS + self.legend_pixels


def stacked(
    plots: Sequence[Plot],
    *,
    title: str = "",
    span_ms: tuple[int, int] | None,
    dark: bool,
    simulated: bool = False,
    empty: str = "No samples yet. The recorder starts with the job.",
) -> dict[str, Any]:
    """Return a figure of stacked plots; if there are none, one that shows the text `empty`.

    `span_ms` is the range of the time axis in UTC milliseconds.
    """
    if not plots:
        layout = base_layout(title, 140, dark=dark) | empty_plot(empty, dark=dark)
        return {"data": [], "layout": layout}
    inner = sum(plot.header_pixels + plot.pixels for plot in plots)
    top = _TITLE_PIXELS if title else 4
    layout = base_layout(title, inner + top + _BOTTOM_PIXELS, dark=dark, top=top, bottom=_BOTTOM_PIXELS)
    layout["hovermode"] = "x unified"
    data = []
    above = 0
    for number, plot in enumerate(plots, start=1):
        above += plot.header_pixels
        domain = [round(1 - (above + plot.pixels) / inner, 6), round(1 - above / inner, 6)]
        above += plot.pixels
        domain[0] = max(0.0, domain[0])
        layout |= axes(number, len(plots), domain, percent=plot.percent, dark=dark)
        layout["annotations"].append(plot_title(plot.title, number) | {"yshift": plot.legend_pixels + 1})
        if plot.legend:
            layout[f"legend{axis_suffix(number)}"] = legend(domain[1])
        data += [_placed(trace, number, named=plot.legend) for trace in plot.traces]
        if span_ms:
            layout[f"xaxis{axis_suffix(number)}"]["range"] = list(span_ms)
    if simulated:
        layout["annotations"].append(simulated_mark(dark=dark))
    layout["showlegend"] = any(plot.legend for plot in plots)
    layout["meta"] = {"simulated": simulated, "window_s": (span_ms[1] - span_ms[0]) / 1000 if span_ms else 0}
    return {"data": data, "layout": layout}


def with_events(figure: dict[str, Any], events: Sequence[Event], *, dark: bool = False) -> dict[str, Any]:
    """Return the figure with a line through all plots for each of the newest 20 events in its time range."""
    layout = figure["layout"]
    first, last = layout.get("xaxis", {}).get("range") or (0, 0)
    inside = [event for event in events if first <= event.time_ns // 1_000_000 <= last][-_MAX_MARKS:]
    shapes = [
        shape
        for event in inside
        for shape in _through(layout, _event_line(event.time_ns // 1_000_000, dark=dark))
    ]
    notes = [
        {
            "text": _SYMBOLS.get(event.kind, "⚑"),
            "hovertext": plain_text(f"{event.kind}: {event.message}"),
            "x": event.time_ns // 1_000_000,
            "xref": "x",
            "y": 1.0,
            "yref": "y domain",
            "yanchor": "top",
            "xanchor": "center",
            "showarrow": False,
            "font": {"size": 11, "color": MARK[dark]},
            "name": "event",
        }
        for event in inside
    ]
    layout = {
        **layout,
        "shapes": [*layout.get("shapes", ()), *shapes],
        "annotations": [*layout.get("annotations", ()), *notes],
    }
    return {**figure, "layout": layout}


def with_time_range(
    figure: dict[str, Any], start_ns: int, end_ns: int, *, dark: bool = False
) -> dict[str, Any]:
    """Return the figure with a highlighted time range, the evidence of an advice."""
    area = {
        "type": "rect",
        "x0": start_ns // 1_000_000,
        "x1": end_ns // 1_000_000,
        "y0": 0,
        "y1": 1,
        "line": {"width": 1, "dash": "dash", "color": MARK[dark]},
        "fillcolor": MARK[dark],
        "opacity": 0.16,
        "layer": "below",
        "name": "evidence",
    }
    layout = figure["layout"]
    return {**figure, "layout": {**layout, "shapes": [*layout.get("shapes", ()), *_through(layout, area)]}}


def axes(number: int, count: int, domain: list[float], *, percent: bool, dark: bool) -> dict[str, Any]:
    """Return the axes of the `number`-th of `count` plots, which covers the vertical range `domain`."""
    axis = axis_suffix(number)
    x = {**time_axis(dark=dark, labels=number == count), "anchor": f"y{axis}", "domain": [0.0, 1.0]}
    if number > 1:
        x["matches"] = "x"
    y: dict[str, Any] = {
        "anchor": f"x{axis}",
        "domain": domain,
        "gridcolor": grid_color(dark=dark),
        "zeroline": False,
        "fixedrange": True,
        "nticks": 3,
        "rangemode": "tozero",
    }
    if percent:
        y |= {"range": [0, 104], "tickvals": [0, 50, 100], "ticktext": ["0", "50", "100 %"]}
    return {f"xaxis{axis}": x, f"yaxis{axis}": y}


def time_axis(*, dark: bool, labels: bool = True) -> dict[str, Any]:
    """Return a time axis for UTC in milliseconds since the epoch."""
    axis: dict[str, Any] = {
        "type": "date",
        "showticklabels": labels,
        "tickformat": "%H:%M:%S",
        "hoverformat": "%H:%M:%S UTC",
        "nticks": 4,
        "gridcolor": grid_color(dark=dark),
        "zeroline": False,
    }
    if labels:
        axis["title"] = {"text": "UTC", "standoff": 2, "font": {"size": 11}}
    return axis


def axis_suffix(number: int) -> str:
    """Return plotly's suffix of the names of the `number`-th axis and legend, counted from 1."""
    return str(number) if number > 1 else ""


def plot_title(text: str, number: int) -> dict[str, Any]:
    """Return the title of the `number`-th plot, at its top left; the caller shifts it above a legend."""
    return {
        "text": text,
        "xref": "paper",
        "yref": f"y{axis_suffix(number)} domain",
        "x": 0.0,
        "y": 1.0,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11},
    }


def legend(y: float) -> dict[str, Any]:
    """Return a horizontal legend above the vertical position `y` of the figure."""
    return {
        "orientation": "h",
        "x": 0.0,
        "xanchor": "left",
        "y": y,
        "yref": "paper",
        "yanchor": "bottom",
        "tracegroupgap": 0,
        "bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 11},
    }


def _placed(trace: dict[str, Any], number: int, *, named: bool) -> dict[str, Any]:
    axis = axis_suffix(number)
    return {
        "showlegend": named,
        **trace,
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
        "legend": f"legend{axis}" if named else "legend",
    }


def _through(layout: Mapping[str, Any], shape: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a copy of a shape for each plot of a figure, so that it does not cross titles and legends."""
    numbers = [key.removeprefix("yaxis") for key in layout if key.startswith("yaxis")]
    return [{**shape, "xref": f"x{number}", "yref": f"y{number} domain"} for number in numbers]


def _event_line(time: int, *, dark: bool) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": time,
        "x1": time,
        "y0": 0,
        "y1": 1,
        "line": {"width": 1, "dash": "dot", "color": MARK[dark]},
        "name": "event",
    }
