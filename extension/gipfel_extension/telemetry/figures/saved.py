"""Figures for notebook files and pages: coarser, with times as text or in the browser's time zone.

The figures of this package have times as numbers, UTC in milliseconds. plotly.js draws numbers in the
browser's time zone, regardless of the axis' label. Notebooks therefore get text, and pages
:data:`CLOCK_SCRIPT`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .lines import json_values

#: Target number of points of all lines together; minimum and maximum number of points of one line.
_ALL_POINTS = 1600
_MIN_POINTS = 30
_MAX_POINTS = 80
#: Up to this many missing values are interpolated; more are drawn as a gap.
_MAX_INTERPOLATED = 2
_DIGITS = 3
Floats = NDArray[np.float64]

#: ES module that imports nothing, so that it can be concatenated with the script of a page.
CLOCK_SCRIPT = Path(__file__).with_name("clock.js")


def saved_figure(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figure with fewer points per line; evenly spaced times become ``x0`` and ``dx``."""
    if figure["layout"].get("xaxis", {}).get("type", "date") != "date":
        return dict(figure)
    lines = sum(_is_line(trace) for trace in figure["data"])
    max_points = max(_MIN_POINTS, min(_MAX_POINTS, _ALL_POINTS // max(1, lines)))
    data = [_coarser(trace, max_points) if _is_line(trace) else dict(trace) for trace in figure["data"]]
    return {**figure, "data": data}


def _is_line(trace: Mapping[str, Any]) -> bool:
    return trace["type"] == "scatter" and "stackgroup" not in trace and len(trace.get("x", ())) > 1


def _coarser(trace: Mapping[str, Any], max_points: int) -> dict[str, Any]:
    times = np.asarray(trace["x"], np.float64)
    values = np.asarray([np.nan if value is None else value for value in trace["y"]], np.float64)
    if not np.isfinite(values).any():
        return {**trace, "x": [], "y": []}
    pauses = np.diff(times)
    pause = float(np.median(pauses))
    if np.percentile(pauses, 75) > 2 * pause:
        # Times are irregular, as for user metrics: average groups of points.
        size = -(-len(times) // max_points)
        x = times[::size].astype(np.int64).tolist()
        return {**trace, "x": x, "y": _short(_means(values, np.arange(len(values)) // size))}
    step = max(pause, (times[-1] - times[0]) / (max_points - 1))
    found = _means(values, np.rint((times - times[0]) / step).astype(np.int64))
    kept = {key: value for key, value in trace.items() if key != "x"}
    return {**kept, "x0": int(times[0]), "dx": round(step), "y": _short(_without_small_holes(found))}


def _means(values: Floats, cells: NDArray[np.int64]) -> Floats:
    """Return the mean of the values in each cell; NaN for cells without values."""
    known = np.isfinite(values)
    counts = np.bincount(cells, known)
    sums = np.bincount(cells, np.where(known, values, 0.0))
    found: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return found


def _without_small_holes(values: Floats) -> Floats:
    """Return the values with short gaps, which slightly late samples cause, interpolated."""
    known = np.flatnonzero(np.isfinite(values))
    filled = values.copy()
    for before, after in zip(known[:-1].tolist(), known[1:].tolist(), strict=True):
        if 1 < after - before <= _MAX_INTERPOLATED + 1:
            indices = np.arange(before + 1, after)
            filled[indices] = np.interp(indices, (before, after), (values[before], values[after]))
    return filled


def _short(values: Floats) -> list[float | None]:
    """Return JSON-serializable values with as many digits as are visible."""
    return [None if value is None else float(f"{value:.{_DIGITS}g}") for value in json_values(values, 6)]


def with_utc_text(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figure with times as text, which plotly draws as UTC."""
    layout = dict(figure["layout"])
    dates = {key for key, axis in layout.items() if key.startswith("xaxis") and axis.get("type") == "date"}
    for key in dates:
        if layout[key].get("range"):
            layout[key] = {**layout[key], "range": _texts(layout[key]["range"])}
    for key in ("shapes", "annotations"):
        if layout.get(key):
            layout[key] = [_with_texts(mark, "xref", dates) for mark in layout[key]]
    return {
        **figure,
        "data": [_with_texts(trace, "xaxis", dates) for trace in figure["data"]],
        "layout": layout,
    }


def _with_texts(part: Mapping[str, Any], axis_key: str, dates: set[str]) -> dict[str, Any]:
    """Return a trace, shape or annotation with times as text where it is on a time axis."""
    if f"xaxis{part.get(axis_key, 'x').removeprefix('x')}" not in dates:
        return dict(part)
    times = {name: part[name] for name in ("x", "x0", "x1") if name in part}
    return {
        **part,
        **{name: _texts([x])[0] if np.isscalar(x) else _texts(x) for name, x in times.items()},
    }


def _texts(times_ms: Any) -> list[str]:
    if len(times_ms) and isinstance(times_ms[0], str):
        return list(times_ms)
    whole = np.asarray(times_ms, np.float64).round().astype(np.int64).astype("datetime64[ms]")
    texts: list[str] = np.datetime_as_string(whole).tolist()
    return texts
