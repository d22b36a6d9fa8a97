"""The matrix of bytes between ranks or nodes as a plotly figure: one heat map whose values are bytes."""

import base64
from typing import Any

import numpy as np

from ..telemetry.figures.lines import plain_text
from ..telemetry.figures.palette import HEAT, clear_layout, empty_plot
from .report import TrafficMatrix

_LEVELS, _MISSING = 254, 255
_MOST_LABELS = 16
_LEFT_PIXELS, _RIGHT_PIXELS, _TOP_PIXELS, _BOTTOM_PIXELS = 110, 84, 12, 70


def matrix_figure(matrix: TrafficMatrix, *, dark: bool = False) -> dict[str, Any]:
    """Return the matrix with a row per sender and a column per receiver, on a logarithmic scale.

    Returns
    -------
    dict
        ``data`` holds one trace ``heatmap`` without values; ``layout.meta`` has them as ``bytes``, base64 of
        uint8[rows, columns] (255 is nothing sent), which mean powers of ten from ``low`` to ``high``, and the
        ``labels`` of rows and columns.
    """
    sent = np.array(matrix.sent, np.float64)
    if not sent.any():
        return {"data": [], "layout": clear_layout("", 120, dark=dark) | empty_plot("No bytes.", dark=dark)}
    with np.errstate(divide="ignore"):
        powers = np.log10(sent)
    low, high = float(powers[sent > 0].min()), float(powers.max())
    low = min(low, high - 0.1)
    levels = np.full(sent.shape, _MISSING, np.uint8)
    levels[sent > 0] = np.rint((powers[sent > 0] - low) / (high - low) * _LEVELS)
    pixels = int(np.clip(len(sent) * 20, 160, 520))
    layout = clear_layout(
        "", _TOP_PIXELS + _BOTTOM_PIXELS + pixels, dark=dark, top=_TOP_PIXELS, bottom=_BOTTOM_PIXELS
    )
    # Titles of axes beside names of nodes, and the scale of colors.
    layout["margin"] |= {"l": _LEFT_PIXELS, "r": _RIGHT_PIXELS}
    labels = [plain_text(each) for each in matrix.labels]
    step = -(-len(labels) // _MOST_LABELS)
    ticks = {"tickvals": list(range(0, len(labels), step)), "ticktext": labels[::step], "showgrid": False}
    layout["xaxis"] = {**ticks, "title": {"text": "receives"}, "zeroline": False, "fixedrange": True}
    layout["yaxis"] = {
        **ticks,
        "title": {"text": "sends"},
        "zeroline": False,
        "fixedrange": True,
        "autorange": "reversed",
    }
    layout["meta"] = {
        "bytes": base64.b64encode(levels.tobytes()).decode(),
        "shape": list(levels.shape),
        "low": low,
        "high": high,
        "labels": labels,
    }
    return {"data": [_trace(low, high, dark=dark)], "layout": layout}


def _trace(low: float, high: float, *, dark: bool) -> dict[str, Any]:
    powers = range(int(np.ceil(low)), int(np.floor(high)) + 1)
    return {
        "type": "heatmap",
        "uid": "communication",
        "z": [],
        "colorscale": HEAT[dark],
        "zmin": low,
        "zmax": high,
        "hoverongaps": False,
        "hovertemplate": "%{text}<extra></extra>",
        "colorbar": {
            "thickness": 12,
            "tickvals": list(powers),
            "ticktext": [_power_text(each) for each in powers],
        },
    }


def _power_text(power: int) -> str:
    unit = ("B", "kB", "MB", "GB", "TB", "PB")[min(power // 3, 5)]
    return f"{10 ** (power - 3 * min(power // 3, 5))} {unit}"
