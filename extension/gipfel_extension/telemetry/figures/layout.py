"""The layout of the activity figure: titles, legends, axes and marks, readable from 320 pixels on."""

from typing import Any

from ..sample import SampleTable
from .axes import axes, axis_suffix, legend, plot_title
from .palette import clear_layout, nothing, simulated_mark
from .rows import GPU_LINES, Row

_ROW_PIXELS = 104
_TOP_PIXELS = 66
_BOTTOM_PIXELS = 42
_TITLE_PIXELS = 24
_EMPTY = "No samples yet.<br>The recorder starts with the job."


def layout_of(rows: list[Row], table: SampleTable, *, window_s: float, dark: bool) -> dict[str, Any]:
    """The layout of rows of a table; see :func:`figures.saturation_figure` for its parameters."""
    height = _TOP_PIXELS + _BOTTOM_PIXELS + _ROW_PIXELS * max(1, len(rows))
    layout = clear_layout(_title(table), height, dark=dark, top=_TOP_PIXELS, bottom=_BOTTOM_PIXELS)
    top = {"y": round(1 - _TITLE_PIXELS / height, 6), "yanchor": "top", "yref": "container"}
    layout |= {
        "margin": {"l": 42, "r": 8, "t": _TOP_PIXELS, "b": _BOTTOM_PIXELS},
        "hovermode": "x unified",
        "legend": legend(1.0) | top,
        "meta": {"window_s": window_s, "simulated": table.simulated},
    }
    if not rows:
        return layout | nothing(_EMPTY, dark=dark)
    # Each row is a title's height and a plot.
    share = 1.0 / len(rows)
    for number, row in enumerate(rows, start=1):
        bottom = 1.0 - number * share
        domain = [round(max(0.0, bottom), 6), round(bottom + 0.74 * share, 6)]
        layout |= axes(number, len(rows), domain, percent=row.percent, dark=dark)
        layout["annotations"].append(plot_title(row.title, number) | {"y": 1.02})
        if row.lines is not GPU_LINES and number > 1:
            layout[f"legend{number}"] = legend(domain[1]) | {"x": 1.0, "xanchor": "right"}
    last = table.last_ns
    if last is not None:
        for number in range(1, len(rows) + 1):
            axis = layout[f"xaxis{axis_suffix(number)}"]
            axis["range"] = [last // 1_000_000 - int(window_s * 1000), last // 1_000_000]
    if table.simulated:
        layout["annotations"].append(simulated_mark(dark=dark))
    return layout


def _title(table: SampleTable) -> str:
    simulated = sum(device.simulated for device in table.devices)
    if not table.devices:
        return "GPU and host activity"
    if not table.gpus:
        return "Host activity (simulated)" if simulated else "Host activity"
    if not simulated:
        return "GPU and host activity" if table.hosts else "GPU activity"
    return (
        "GPU activity (simulated)" if simulated == len(table.devices) else "GPU (simulated) and host activity"
    )
