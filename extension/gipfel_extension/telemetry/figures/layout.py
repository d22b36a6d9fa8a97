"""The layout of the activity figure: titles, legends, axes and marks, readable from 320 pixels on."""

from typing import Any

from ..sample import SampleTable
from .rows import GPU_LINES, Row

_ROW_PIXELS = 104
_TOP_PIXELS = 66
_BOTTOM_PIXELS = 42
_TITLE_PIXELS = 24


def layout_of(rows: list[Row], table: SampleTable, *, window_s: float, dark: bool) -> dict[str, Any]:
    """The layout of rows of a table; see :func:`figures.saturation_figure` for its parameters."""
    ink, grid = ("#e0e0e0", "#4a4a4a") if dark else ("#303030", "#dedede")
    height = _TOP_PIXELS + _BOTTOM_PIXELS + _ROW_PIXELS * max(1, len(rows))
    layout: dict[str, Any] = {
        "title": _heading(_title(table)),
        "font": {"size": 11, "color": ink},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 42, "r": 8, "t": _TOP_PIXELS, "b": _BOTTOM_PIXELS},
        "height": height,
        "autosize": True,
        "hovermode": "x unified",
        "legend": _legend(1 - _TITLE_PIXELS / height, "top", yref="container", left=True),
        "annotations": [],
        "meta": {"window_s": window_s, "simulated": table.simulated},
        "uirevision": "gipfel",
    }
    if not rows:
        return {**layout, **_nothing(ink)}
    # Each row is a title's height and a plot.
    share = 1.0 / len(rows)
    for number, row in enumerate(rows, start=1):
        bottom = 1.0 - number * share
        domain = [round(max(0.0, bottom), 6), round(bottom + 0.74 * share, 6)]
        layout |= _axes(number, len(rows), domain, row, grid)
        layout["annotations"].append(_row_title(number, row))
        if row.lines is not GPU_LINES and number > 1:
            layout[f"legend{number}"] = _legend(domain[1], "bottom", yref="paper", left=False)
    last = table.last_ns
    if last is not None:
        for number in range(1, len(rows) + 1):
            axis = layout[f"xaxis{'' if number == 1 else number}"]
            axis["range"] = [last // 1_000_000 - int(window_s * 1000), last // 1_000_000]
    if table.simulated:
        layout["annotations"].append(_watermark(dark=dark))
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


def _heading(text: str) -> dict[str, Any]:
    return {
        "text": text,
        "x": 0.0,
        "xref": "paper",
        "xanchor": "left",
        "y": 1.0,
        "yref": "container",
        "yanchor": "top",
        "pad": {"t": 6},
        "font": {"size": 13},
    }


def _legend(y: float, anchor: str, *, yref: str, left: bool) -> dict[str, Any]:
    return {
        "orientation": "h",
        "x": 0.0 if left else 1.0,
        "xanchor": "left" if left else "right",
        "y": round(y, 6),
        "yref": yref,
        "yanchor": anchor,
        "tracegroupgap": 0,
        "bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 10},
    }


def _axes(number: int, rows: int, domain: list[float], row: Row, grid: str) -> dict[str, Any]:
    axis = "" if number == 1 else str(number)
    lowest = number == rows
    x = {
        "type": "date",
        "anchor": f"y{axis}",
        "domain": [0.0, 1.0],
        "showticklabels": lowest,
        "tickformat": "%H:%M:%S",
        "hoverformat": "%H:%M:%S UTC",
        "nticks": 4,
        "gridcolor": grid,
        "zeroline": False,
    }
    if number > 1:
        x["matches"] = "x"
    if lowest:
        x["title"] = {"text": "UTC", "standoff": 2, "font": {"size": 10}}
    y: dict[str, Any] = {
        "anchor": f"x{axis}",
        "domain": domain,
        "gridcolor": grid,
        "zeroline": False,
        "fixedrange": True,
        "nticks": 3,
        "rangemode": "tozero",
    }
    if row.percent:
        y |= {"range": [0, 104], "tickvals": [0, 50, 100], "ticktext": ["0", "50", "100 %"]}
    return {f"xaxis{axis}": x, f"yaxis{axis}": y}


def _row_title(number: int, row: Row) -> dict[str, Any]:
    axis = "" if number == 1 else str(number)
    return {
        "text": row.title,
        "xref": "paper",
        "yref": f"y{axis} domain",
        "x": 0.0,
        "y": 1.02,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11},
    }


def _watermark(*, dark: bool) -> dict[str, Any]:
    return {
        "text": "simulated",
        "xref": "paper",
        "yref": "paper",
        "x": 1.0,
        "y": 1.0,
        "xanchor": "right",
        "yanchor": "top",
        "showarrow": False,
        "font": {"size": 12, "color": "#ffb454" if dark else "#a04000"},
        "name": "simulated",
    }


def _nothing(ink: str) -> dict[str, Any]:
    text = "No samples yet.<br>The recorder starts with the job."
    return {
        "annotations": [
            {
                "text": text,
                "xref": "paper",
                "yref": "paper",
                "x": 0.5,
                "y": 0.5,
                "showarrow": False,
                "font": {"color": ink},
            }
        ],
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
    }
