"""Axes, titles and legends of plots one below the other on one time axis."""

from typing import Any

from .palette import grid


def axis_suffix(number: int) -> str:
    """What plotly.js appends to the names of the `number`-th axis and legend, from 1 on."""
    return str(number) if number > 1 else ""


def time_axis(*, dark: bool, labels: bool = True) -> dict[str, Any]:
    """An axis of UTC in milliseconds since the epoch."""
    axis: dict[str, Any] = {
        "type": "date",
        "showticklabels": labels,
        "tickformat": "%H:%M:%S",
        "hoverformat": "%H:%M:%S UTC",
        "nticks": 4,
        "gridcolor": grid(dark=dark),
        "zeroline": False,
    }
    if labels:
        axis["title"] = {"text": "UTC", "standoff": 2, "font": {"size": 10}}
    return axis


def axes(number: int, count: int, domain: list[float], *, percent: bool, dark: bool) -> dict[str, Any]:
    """The two axes of the `number`-th of `count` plots, whose heights in the figure are `domain`."""
    axis = axis_suffix(number)
    x = {**time_axis(dark=dark, labels=number == count), "anchor": f"y{axis}", "domain": [0.0, 1.0]}
    if number > 1:
        x["matches"] = "x"
    y: dict[str, Any] = {
        "anchor": f"x{axis}",
        "domain": domain,
        "gridcolor": grid(dark=dark),
        "zeroline": False,
        "fixedrange": True,
        "nticks": 3,
        "rangemode": "tozero",
    }
    if percent:
        y |= {"range": [0, 104], "tickvals": [0, 50, 100], "ticktext": ["0", "50", "100 %"]}
    return {f"xaxis{axis}": x, f"yaxis{axis}": y}


def plot_title(text: str, number: int) -> dict[str, Any]:
    """The title of the `number`-th plot, left above it; its caller says how far above."""
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
    """A legend in lines, left above the height `y` of the figure."""
    return {
        "orientation": "h",
        "x": 0.0,
        "xanchor": "left",
        "y": y,
        "yref": "paper",
        "yanchor": "bottom",
        "tracegroupgap": 0,
        "bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 10},
    }
