"""A figure as a notebook's file keeps it: coarser, since that has room for a picture, not for a recording."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .lines import numbers

#: Points of all lines of a figure; a line has some of them at least and at most.
_POINTS = 1600
_FEWEST = 30
_MOST = 80
#: So many steps without a value are drawn through; a longer pause is a gap.
_PASSED_OVER = 2
_DIGITS = 3

Floats = NDArray[np.float64]


def saved_figure(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figure with fewer points in each line; regular times become a start and a step."""
    lines = sum(_is_line(trace) for trace in figure["data"])
    most = max(_FEWEST, min(_MOST, _POINTS // max(1, lines)))
    data = [_coarser(trace, most) if _is_line(trace) else dict(trace) for trace in figure["data"]]
    return {**figure, "data": data}


def _is_line(trace: Mapping[str, Any]) -> bool:
    return trace["type"] == "scatter" and "stackgroup" not in trace and len(trace.get("x", ())) > 1


def _coarser(trace: Mapping[str, Any], most: int) -> dict[str, Any]:
    times = np.asarray(trace["x"], np.float64)
    values = np.asarray([np.nan if value is None else value for value in trace["y"]], np.float64)
    if not np.isfinite(values).any():
        return {**trace, "x": [], "y": []}
    pauses = np.diff(times)
    pause = float(np.median(pauses))
    if np.percentile(pauses, 75) > 2 * pause:
        # The user logs it whenever it is known.
        size = -(-len(times) // most)
        x = times[::size].astype(np.int64).tolist()
        return {**trace, "x": x, "y": _short(_means(values, np.arange(len(values)) // size))}
    step = max(pause, (times[-1] - times[0]) / (most - 1))
    found = _means(values, np.rint((times - times[0]) / step).astype(np.int64))
    kept = {key: value for key, value in trace.items() if key != "x"}
    return {**kept, "x0": int(times[0]), "dx": round(step), "y": _short(_without_small_holes(found))}


def _means(values: Floats, cells: NDArray[np.int64]) -> Floats:
    """Return the mean of the values of each cell; NaN in those without one."""
    known = np.isfinite(values)
    counts = np.bincount(cells, known)
    sums = np.bincount(cells, np.where(known, values, 0.0))
    found: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return found


def _without_small_holes(values: Floats) -> Floats:
    """Return the values with what samples a little late have left empty filled between its neighbours."""
    known = np.flatnonzero(np.isfinite(values))
    filled = values.copy()
    for before, after in zip(known[:-1].tolist(), known[1:].tolist(), strict=True):
        if 1 < after - before <= _PASSED_OVER + 1:
            places = np.arange(before + 1, after)
            filled[places] = np.interp(places, (before, after), (values[before], values[after]))
    return filled


def _short(values: Floats) -> list[float | None]:
    """Return values for JSON, with as many digits as a picture shows."""
    return [None if value is None else float(f"{value:.{_DIGITS}g}") for value in numbers(values, 6)]
