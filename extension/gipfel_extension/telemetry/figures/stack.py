"""Plots one below the other on one time axis: what most figures of a run are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .axes import axes, axis_suffix, legend, plot_title
from .palette import clear_layout, nothing, simulated_mark

_TITLE_PIXELS = 30
_BOTTOM_PIXELS = 40
_HEAD_PIXELS = 21
_LEGEND_PIXELS = 19
#: A figure of 320 pixels has so many for a line of the legend. A name takes those of its sample of a line and
#: of its letters; all names are in columns as wide as the longest.
_NARROW_PIXELS = 238
_SAMPLE_PIXELS, _LETTER_PIXELS = 45, 5.4
_MOST_LINES = 8
_PLOT_PIXELS = 68


@dataclass(frozen=True)
class Plot:
    """One plot of a stack.

    Parameters
    ----------
    title
        Left above the plot, with the unit.
    traces
        Plotly's, without axes and legend.
    percent
        The axis ends at 100 %.
    legend
        Whether its traces are named above it; a trace with ``showlegend`` False isn't.
    """

    title: str
    traces: tuple[dict[str, Any], ...]
    percent: bool = False
    legend: bool = True
    pixels: int = _PLOT_PIXELS

    @property
    def names(self) -> int:
        """Pixels of the legend above the plot."""
        names = [str(trace.get("name", "")) for trace in self.traces if trace.get("showlegend", True)]
        if not self.legend or not names:
            return 0
        longest = max(map(len, names))
        columns = max(1, int(_NARROW_PIXELS / (_SAMPLE_PIXELS + _LETTER_PIXELS * longest)))
        return _LEGEND_PIXELS * min(_MOST_LINES, -(-len(names) // columns))

    @property
    def head(self) -> int:
        """Pixels above the plot."""
        return _HEAD_PIXELS + self.names


def stacked(
    plots: Sequence[Plot],
    *,
    title: str,
    span_ms: tuple[int, int] | None,
    dark: bool,
    simulated: bool = False,
    empty: str = "No samples yet. The recorder starts with the job.",
) -> dict[str, Any]:
    """A figure of plots; `span_ms` is what the time axis shows, in UTC milliseconds."""
    if not plots:
        layout = clear_layout(title, 140, dark=dark) | nothing(empty, dark=dark)
        return {"data": [], "layout": layout}
    inner = sum(plot.head + plot.pixels for plot in plots)
    top = _TITLE_PIXELS if title else 4
    layout = clear_layout(title, inner + top + _BOTTOM_PIXELS, dark=dark, top=top, bottom=_BOTTOM_PIXELS)
    layout["hovermode"] = "x unified"
    data = []
    above = 0
    for number, plot in enumerate(plots, start=1):
        above += plot.head
        domain = [round(1 - (above + plot.pixels) / inner, 6), round(1 - above / inner, 6)]
        above += plot.pixels
        domain[0] = max(0.0, domain[0])
        layout |= axes(number, len(plots), domain, percent=plot.percent, dark=dark)
        layout["annotations"].append(plot_title(plot.title, number) | {"yshift": plot.names + 1})
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


def _placed(trace: dict[str, Any], number: int, *, named: bool) -> dict[str, Any]:
    axis = axis_suffix(number)
    return {
        "showlegend": named,
        **trace,
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
        "legend": f"legend{axis}" if named else "legend",
    }
