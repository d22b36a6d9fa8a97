"""Heat map of GPUs by time: one metric of every GPU of a job, for up to thousands of GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metric_table import TABLE, LineStyle
from ..sample import Device
from .lines import gpu_name, gpus_of, json_rows, rows_by_device, span_ms
from .palette import HEAT, base_layout, empty_plot, simulated_mark, text_color
from .stack import time_axis

if TYPE_CHECKING:
    from ..store.overview import Overview

_TOP_PIXELS = 28
_BOTTOM_PIXELS = 40
_MAX_LABELS = 16
#: Letters of a label that the left margin has room for.
_LABEL_LETTERS = 7
_MAX_PIXELS = 420


#: Metrics that a heat map can show, in the order of the menu.
HEAT_METRICS: Mapping[str, LineStyle] = {
    name: style
    for name in (
        "SM_ACTIVE",
        "PIPE_TENSOR_ACTIVE",
        "DRAM_ACTIVE",
        "GPU_UTIL",
        "SM_OCCUPANCY",
        "NVLINK_RX_BYTES",
        "PCIE_RX_BYTES",
        "POWER_USAGE",
        "GPU_TEMP",
        "SM_CLOCK",
    )
    if (style := TABLE[name].line_style) is not None
}


def heat_figure(
    overview: "Overview", metric: str = "SM_ACTIVE", *, dark: bool = False, title: str = ""
) -> dict[str, Any]:
    """Return a heat map with a row per GPU and a column per bucket; buckets without samples are blank.

    Returns
    -------
    dict
        ``data`` and ``layout``; ``layout.meta`` holds ``devices`` (the UUID of each row), ``bucket_ms`` and
        ``factor``, which a live view needs to add columns.

    Raises
    ------
    KeyError
        `metric` is not one of :data:`HEAT_METRICS`.
    """
    style = HEAT_METRICS[metric]
    gpus = gpus_of(overview)
    if not gpus or not len(overview.time_ns):
        layout = base_layout(title, 100, dark=dark) | empty_plot("No GPU has been recorded.", dark=dark)
        return {"data": [], "layout": layout | {"meta": {"devices": [], "bucket_ms": 1000, "factor": 1.0}}}
    row_of = rows_by_device(overview)
    rows = overview.mean.get(metric, np.full((len(overview.devices), len(overview.time_ns)), np.nan))
    values = np.asarray(rows, np.float64)[[row_of[gpu.uuid] for gpu in gpus]] * style.factor
    bucket = overview.bucket_ns / 1e6
    several = len({gpu.node for gpu in gpus}) > 1
    trace: dict[str, Any] = {
        "type": "heatmap",
        "uid": f"heat-{metric}",
        "x0": overview.time_ns[0] / 1e6 + bucket / 2,
        "dx": bucket,
        "y0": 0,
        "dy": 1,
        "z": json_rows(values, 1),
        "colorscale": HEAT[dark],
        "zmin": 0,
        "showscale": True,
        "colorbar": _scale(style, dark=dark),
        "hoverongaps": False,
        "hovertemplate": f"%{{y}} · %{{x}}<br>{style.label} %{{z:.0f}} {style.unit}<extra></extra>",
    }
    if style.scale_max:
        trace["zmax"] = style.scale_max
    top = _TOP_PIXELS + (18 if title else 0)
    height = top + _BOTTOM_PIXELS + min(_MAX_PIXELS, len(gpus) * _row_pixels(len(gpus)))
    layout = base_layout(title, round(height), dark=dark, top=top, bottom=_BOTTOM_PIXELS)
    layout["xaxis"] = time_axis(dark=dark) | {"range": list(span_ms(overview) or ()), "showgrid": False}
    layout["yaxis"] = _names(gpus, several=several)
    layout["meta"] = {
        "devices": [gpu.uuid for gpu in gpus],
        "names": [gpu_name(gpu, several=several) for gpu in gpus],
        "bucket_ms": bucket,
        "factor": style.factor,
        "metric": metric,
        "simulated": any(gpu.simulated for gpu in gpus),
    }
    if layout["meta"]["simulated"]:
        layout["annotations"].append(simulated_mark(dark=dark))
    return {"data": [trace], "layout": layout}


def _row_pixels(count: int) -> float:
    return 20 if count <= 8 else 14 if count <= 16 else 6 if count <= 64 else 1


def _names(gpus: tuple[Device, ...], *, several: bool) -> dict[str, Any]:
    step = -(-len(gpus) // _MAX_LABELS)
    if several and step > 1:
        # Label the first GPU of each node rather than every n-th GPU.
        nodes = [row for row, gpu in enumerate(gpus) if not row or gpus[row - 1].node != gpu.node]
        rows = nodes[:: -(-len(nodes) // _MAX_LABELS)]
        short = _short_names([gpus[row].node for row in nodes], _LABEL_LETTERS)
        names = [short[gpus[row].node] for row in rows]
    else:
        rows = list(range(0, len(gpus), step))
        short = _short_names([gpu.node for gpu in gpus], _LABEL_LETTERS - 2) if several else {}
        names = [
            gpu_name(replace(gpus[row], node=short.get(gpus[row].node, "")), several=several) for row in rows
        ]
    return {
        "range": [len(gpus) - 0.5, -0.5],
        "autorange": False,
        "fixedrange": True,
        "tickvals": rows,
        "ticktext": names,
        "tickfont": {"size": 11},
        "ticklen": 2,
        "showgrid": False,
        "zeroline": False,
    }


def _short_names(names: Sequence[str], letters: int) -> dict[str, str]:
    """Return the nodes' names, and the ends of those that are too long for the margin of all figures.

    A wider margin would shift the time axis against that of the plots above. The ends are long enough to
    differ; longer ones are cut at the edge.
    """
    nodes = set(names)
    if max(map(len, nodes), default=0) <= letters:
        return {name: name for name in nodes}
    length = letters - 1
    while len({name[-length:] for name in nodes}) < len(nodes):
        length += 1
    return {name: name if len(name) <= length else f"…{name[-length:]}" for name in nodes}


def _scale(style: LineStyle, *, dark: bool) -> dict[str, Any]:
    scale: dict[str, Any] = {
        # The color bar is above the map, so that the map's time axis is as wide as those of the other plots.
        "orientation": "h",
        "thickness": 6,
        "len": 0.4,
        "outlinewidth": 0,
        "x": 1.0,
        "xanchor": "right",
        # Room for half of the last label, which would end at the picture's edge.
        "xpad": 16,
        "y": 1.0,
        "yanchor": "bottom",
        "ypad": 2,
        "ticklabelposition": "outside top",
        "nticks": 3,
        # In a narrow picture plotly.js turns labels that might touch, which are then cut off.
        "tickangle": 0,
        "tickfont": {"size": 11, "color": text_color(dark=dark)},
        "ticksuffix": "" if style.scale_max else f" {style.unit}",
    }
    if style.scale_max:
        # Three labels overlap in a narrow panel.
        scale |= {"tickvals": [0, 100], "ticktext": ["0", "100 %"]}
    return scale
