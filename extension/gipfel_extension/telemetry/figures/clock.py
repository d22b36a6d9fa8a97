"""Times of a figure as text, and the script with which a page shows them on its reader's clock.

The figures of this package hold times as numbers, UTC in milliseconds. plotly.js draws a number in the
browser's zone, whatever the axis says, so a notebook is given text instead.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

#: An ES module without imports: a widget's or a page's script may follow it in one text.
CLOCK_SCRIPT = Path(__file__).with_name("clock.js")


def with_utc_text(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figure with its times as text, which every plotly draws as UTC, as the axes say."""
    layout = dict(figure["layout"])
    dates = {key for key, axis in layout.items() if key.startswith("xaxis") and axis.get("type") == "date"}
    for key in dates:
        if layout[key].get("range"):
            layout[key] = {**layout[key], "range": _texts(layout[key]["range"])}
    for key in ("shapes", "annotations"):
        if layout.get(key):
            layout[key] = [_mark(mark, dates) for mark in layout[key]]
    return {**figure, "data": [_trace(trace, dates) for trace in figure["data"]], "layout": layout}


def _trace(trace: Mapping[str, Any], dates: set[str]) -> dict[str, Any]:
    if _axis(trace.get("xaxis", "x")) not in dates:
        return dict(trace)
    times = {"x": _texts(trace["x"])} if "x" in trace else {}
    return {**trace, **times, **({"x0": _texts([trace["x0"]])[0]} if "x0" in trace else {})}


def _mark(mark: Mapping[str, Any], dates: set[str]) -> dict[str, Any]:
    """A shape or a note; those that are placed on the paper or on another axis stay as they are."""
    if _axis(mark.get("xref", "x")) not in dates:
        return dict(mark)
    return {**mark, **{name: _texts([mark[name]])[0] for name in ("x", "x0", "x1") if name in mark}}


def _axis(name: str) -> str:
    return f"xaxis{name.removeprefix('x')}"


def _texts(times_ms: Any) -> list[str]:
    if len(times_ms) and isinstance(times_ms[0], str):
        return list(times_ms)
    whole = np.asarray(times_ms, np.float64).round().astype(np.int64).astype("datetime64[ms]")
    texts: list[str] = np.datetime_as_string(whole).tolist()
    return texts
