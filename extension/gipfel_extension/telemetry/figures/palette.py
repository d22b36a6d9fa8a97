"""The one palette of figures, views and saved outputs for light and dark pages, and common parts of layouts.

Every color has a contrast of at least 3 to 1 with the page. Colors that can be adjacent with the same dash or
hatching differ in lightness, so that figures can be read in grey. ``extension/generate_api.py`` writes the
same colors as CSS variables for panel and widgets.
"""

from collections.abc import Mapping
from typing import Any

#: Background of a page by whether its theme is dark: in the dark case the brightest background that figures
#: have in JupyterLab's dark theme.
PAGE: Mapping[bool, str] = {False: "#ffffff", True: "#212121"}

#: Colors of lines by the names in the metric table, for a light and a dark background.
COLORS: Mapping[str, tuple[str, str]] = {
    "blue": ("#025c93", "#0593e6"),
    "orange": ("#e17507", "#ff9747"),
    "green": ("#138460", "#7feabf"),
    "purple": ("#6b0273", "#aa42b1"),
    "pink": ("#da6da5", "#fd8cc4"),
    "brown": ("#533500", "#94650f"),
    "forest": ("#06451e", "#0d7f3b"),
    "grey": ("#929292", "#b0b0b0"),
}

#: Area style by resource, score or loss: light color, dark color, hatching.
AREAS: Mapping[str, tuple[str, str, str]] = {
    "score": ("#2f3d4b", "#61707f", ""),
    "compute": (*COLORS["orange"], ""),
    "memory": (*COLORS["green"], ""),
    "interconnect": (*COLORS["blue"], ""),
    "idle": ("#8d9398", "#888d93", "."),
    "input": ("#b28d00", "#d6ab1b", "/"),
    "launch": ("#c14789", "#dd61a2", "\\"),
    "occupancy": ("#48529c", "#7a88d7", "x"),
    "imbalance": ("#804c0b", "#986329", "-"),
    "communication": ("#0d8095", "#35c0dc", "|"),
    "checkpoint": ("#6e3ead", "#8456c6", "+"),
    "capped": ("#b30614", "#d12d2b", "."),
    "start_up": ("#48391b", "#7c6d4d", "/"),
    "unexplained": ("#909295", "#d7dadd", "x"),
}

#: Colors of texts and shapes that say how good something is; a word or a shape says the same.
STATES: Mapping[str, tuple[str, str]] = {
    "good": ("#028533", "#48c063"),
    "warn": ("#ab6007", "#f5912d"),
    "bad": ("#ce1a1f", "#ff6d62"),
}

#: Colors of the ranks in a log, whose number is printed too, for any background.
RANKS = ("#2d7fb8", "#2e8b57", "#b26a00", "#a64ca6", "#d0483b", "#0f8a8a", "#857a00", "#7d6bd0")

#: Line styles of several devices in one plot: light color, dark color, dash.
DEVICES: tuple[tuple[str, str, str], ...] = tuple(
    (light, dark, dash)
    for dash in ("solid", "dot", "dash", "dashdot")
    for light, dark in (COLORS[name] for name in ("blue", "orange", "green", "purple"))
)

#: Color scales of heat maps by whether the theme is dark; the color of 0 differs from the background, which
#: shows missing values.
HEAT: Mapping[bool, list[list[Any]]] = {
    False: [[0.0, "#8a949f"], [0.25, "#447aa7"], [0.5, "#025c93"], [0.75, "#003d6d"], [1.0, "#021b48"]],
    True: [[0.0, "#61707f"], [0.25, "#4e94cc"], [0.5, "#68b7ed"], [0.75, "#a1d9f6"], [1.0, "#ecf9fd"]],
}

WARNING = {False: STATES["warn"][0], True: STATES["warn"][1]}
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


def base_layout(title: str, height: int, *, dark: bool, top: int = 30, bottom: int = 30) -> dict[str, Any]:
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
        "margin": {"l": 48, "r": 10, "t": top, "b": bottom},
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
