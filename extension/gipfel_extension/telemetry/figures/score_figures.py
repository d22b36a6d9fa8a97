"""Figures of a score: its losses, and the points over time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .lines import json_values
from .palette import AREAS, PAGE, area_color, base_layout, empty_plot, grid_color, simulated_mark
from .stack import Plot, stacked

#: Resources of the score, in the order in which areas are stacked.
_RESOURCES = ("compute", "memory", "interconnect")


def score_figure(document: Mapping[str, Any], *, dark: bool = False, title: str = "") -> dict[str, Any]:
    """Return a waterfall of the score as a bar and each loss as a step up to 100.

    Parameters
    ----------
    document
        The score of ``saturation.document_of``, with ``score``, ``losses``, ``simulated`` and optionally
        ``integer_points``, the score and losses rounded so that they add up to 100.
    """
    score = document.get("score")
    if score is None:
        layout = base_layout(title, 110, dark=dark)
        return {
            "data": [],
            "layout": layout | empty_plot("There is no score: no sample could be scored.", dark=dark),
        }
    losses = sorted(
        ((name, float(lost)) for name, lost in document["losses"].items() if lost and lost >= 0.05),
        key=lambda pair: -pair[1],
    )
    names = ["score", *(name for name, _ in losses)]
    lengths = [float(score), *(lost for _, lost in losses)]
    starts = [0.0, *np.cumsum(lengths)[:-1].tolist()]
    colors = [area_color(name, dark=dark) for name in names]
    points = document.get("integer_points") or dict(zip(names, map(round, lengths), strict=True))
    labels = [
        str(points[name]) if points[name] else f"{each:.1f}"
        for name, each in zip(names, lengths, strict=True)
    ]
    trace = {
        "type": "bar",
        "orientation": "h",
        "uid": "score",
        "name": "points of 100",
        "showlegend": False,
        "y": names,
        "x": [round(length, 2) for length in lengths],
        "base": [round(start, 2) for start in starts],
        "text": labels,
        # Text is not readable on hatching.
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {
            "color": colors,
            "pattern": {
                "shape": [AREAS[name][2] for name in names],
                "bgcolor": colors,
                "fgcolor": PAGE[dark],
                "fgopacity": 0.8,
                "size": 6,
            },
        },
        "hovertemplate": "%{y}: %{x:.1f} of 100 points<extra></extra>",
    }
    top = 30 if title or document.get("simulated") else 8
    layout = base_layout(title, top + 34 + 24 * len(names), dark=dark, top=top, bottom=34)
    layout["margin"]["l"] = 96
    layout["bargap"] = 0.25
    layout["xaxis"] = {
        "range": [0, 106],
        "tickvals": [0, 25, 50, 75, 100],
        "gridcolor": grid_color(dark=dark),
        "zeroline": False,
        "fixedrange": True,
        "title": {"text": "points", "standoff": 2, "font": {"size": 11}},
    }
    layout["yaxis"] = {
        "autorange": "reversed",
        "fixedrange": True,
        "type": "category",
        "tickfont": {"size": 11},
    }
    if document.get("simulated"):
        layout["annotations"].append(simulated_mark(dark=dark))
    return {"data": [trace], "layout": layout}


def shares_figure(
    time_ns: NDArray[np.int64],
    points: Mapping[str, NDArray[np.float64]],
    *,
    dark: bool = False,
    simulated: bool = False,
    title: str = "Where the time went",
) -> dict[str, Any]:
    """Return stacked areas: compute, memory and interconnect up to the score, then the losses up to 100.

    Parameters
    ----------
    time_ns
        UTC start time of each bucket.
    points
        Points per bucket by resource or loss, of ``saturation.points_over_time``; NaN without a score.
    """
    x = (np.asarray(time_ns) // 1_000_000).tolist()
    traces = []
    for name in (*_RESOURCES, *(name for name in AREAS if name not in _RESOURCES)):
        values = points.get(name)
        if values is None or not np.nansum(values) > 0:
            continue
        color, (_, _, hatching) = area_color(name, dark=dark), AREAS[name]
        lost = name not in _RESOURCES
        trace: dict[str, Any] = {
            "type": "scatter",
            "mode": "lines",
            # plotly uses the uid of a hatched trace in a CSS selector, where a slash is an error.
            "uid": f"share-{name}",
            "name": name,
            "x": x,
            "y": json_values(np.asarray(values, np.float64), 2),
            "stackgroup": "one",
            "line": {"width": 0.5, "color": color, "dash": "solid"},
            "fillcolor": color,
            "hovertemplate": f"{'lost: ' if lost else ''}{name} %{{y:.0f}} points<extra></extra>",
        }
        if hatching:
            trace["fillpattern"] = {
                "shape": hatching,
                "bgcolor": color,
                "fgcolor": PAGE[dark],
                "fgopacity": 0.6,
                "size": 6,
            }
        traces.append(trace)
    span = (x[0], x[-1]) if len(x) > 1 else None
    plots = [Plot("Points of 100", tuple(traces), pixels=150)] if traces else []
    figure = stacked(
        plots, title=title, span_ms=span, dark=dark, simulated=simulated, empty="Nothing was scored."
    )
    if traces:
        figure["layout"]["yaxis"] |= {"range": [0, 100], "tickvals": [0, 25, 50, 75, 100]}
    return figure
