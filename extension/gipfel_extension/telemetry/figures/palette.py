"""Colors of the figures for light and dark backgrounds, and common parts of layouts.

Each color comes with a label, a dash or a hatching, so that nothing is distinguished by color alone.
"""

from collections.abc import Mapping
from typing import Any

#: Colors of lines by the names in the metric table, for a light and a dark background.
COLORS: Mapping[str, tuple[str, str]] = {
    "blue": ("#0072b2", "#56b4e9"),
    "orange": ("#d55e00", "#f28e2b"),
    "green": ("#009e73", "#2fd0a0"),
    "purple": ("#aa4499", "#e5a3c8"),
    "pink": ("#cc79a7", "#e5a3c8"),
    "brown": ("#a6761d", "#d9b36c"),
    "forest": ("#117733", "#88ccaa"),
    "grey": ("#767676", "#a3a3a3"),
}

#: Area style by resource or loss: light color, dark color, hatching.
AREAS: Mapping[str, tuple[str, str, str]] = {
    "compute": ("#d55e00", "#f28e2b", ""),
    "memory": ("#009e73", "#2fd0a0", ""),
    "interconnect": ("#0072b2", "#56b4e9", ""),
    "idle": ("#b8bec4", "#59616a", ""),
    "input": ("#e6ab02", "#c99a1c", "/"),
    "launch": ("#cc79a7", "#b0688f", "\\"),
    "occupancy": ("#8da0cb", "#6f80a8", "x"),
    "imbalance": ("#a6761d", "#8f6a2a", "-"),
    "communication": ("#66c2d7", "#3c8799", "|"),
    "checkpoint": ("#7570b3", "#7b76b8", "+"),
    "capped": ("#d73027", "#b8433c", "."),
    "start_up": ("#e2d8c8", "#6b6253", ""),
    "unexplained": ("#f5f5f5", "#3a3a3a", "x"),
}

#: Line styles of several devices in one plot: light color, dark color, dash.
DEVICES: tuple[tuple[str, str, str], ...] = tuple(
    (light, dark, dash)
    for dash in ("solid", "dot", "dash", "dashdot")
    for light, dark in (COLORS[name] for name in ("blue", "orange", "green", "purple"))
)

#: Color scales of heat maps by dark theme; the color of 0 differs from the background, a missing value.
HEAT: Mapping[bool, list[list[Any]]] = {
    False: [[0.0, "#d3dfe9"], [0.25, "#a9cbe4"], [0.5, "#6aaed6"], [0.75, "#2474b5"], [1.0, "#08306b"]],
    True: [[0.0, "#2f4152"], [0.25, "#1f4e79"], [0.5, "#2f83bd"], [0.75, "#6cc0e8"], [1.0, "#e2f6ff"]],
}

WARNING = {False: "#a04000", True: "#ffb454"}
MARK = {False: "#8a1c7c", True: "#e39ad8"}


def text_color(*, dark: bool) -> str:
    """Return the color of text."""
    return "#e0e0e0" if dark else "#303030"


def grid_color(*, dark: bool) -> str:
    """Return the color of grid lines."""
    return "#4a4a4a" if dark else "#dedede"


def area_color(name: str, *, dark: bool) -> str:
    """Return the color of a resource or loss."""
    light_color, dark_color, _ = AREAS[name]
    return dark_color if dark else light_color


def clear_layout(title: str, height: int, *, dark: bool, top: int = 30, bottom: int = 30) -> dict[str, Any]:
    """Return a layout without axes, with a title at the top, transparent background and small margins."""
    return {
        "title": {
            "text": title,
            "x": 0.0,
            "xref": "paper",
            "xanchor": "left",
            "y": 1.0,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 6},
            "font": {"size": 13},
        },
        "font": {"size": 11, "color": text_color(dark=dark)},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 44, "r": 10, "t": top, "b": bottom},
        "height": height,
        "autosize": True,
        "annotations": [],
        "shapes": [],
        "uirevision": "gipfel",
    }


def simulated_mark(*, dark: bool) -> dict[str, Any]:
    """Return the annotation of figures with simulated values, at the bottom right."""
    return {
        "text": "simulated",
        "xref": "paper",
        "yref": "paper",
        "x": 1.0,
        "y": 0.0,
        "xanchor": "right",
        "yanchor": "top",
        # Beside the title of the time axis.
        "yshift": -18,
        "showarrow": False,
        "font": {"size": 12, "color": WARNING[dark]},
        "name": "simulated",
    }


def empty_plot(text: str, *, dark: bool) -> dict[str, Any]:
    """Return the layout entries of an empty figure: a text instead of axes."""
    note = {
        "text": text,
        "xref": "paper",
        "yref": "paper",
        "x": 0.5,
        "y": 0.5,
        "showarrow": False,
        "font": {"color": text_color(dark=dark)},
    }
    return {"annotations": [note], "xaxis": {"visible": False}, "yaxis": {"visible": False}}
