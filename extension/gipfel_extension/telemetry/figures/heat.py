"""The heat map of GPUs and time: one metric of every GPU of a job, also of a thousand."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sample import Device
from .axes import time_axis
from .lines import gpu_name, gpus_of, number_rows, rows_by_device, span_ms
from .palette import HEAT, clear_layout, ink, nothing, simulated_mark

if TYPE_CHECKING:
    from ..overview.read import Overview

_TOP_PIXELS = 28
_BOTTOM_PIXELS = 40
_MOST_LABELS = 16
_MOST_PIXELS = 420


@dataclass(frozen=True)
class HeatMetric:
    """A metric that the heat map can show: in words, its unit, and what is full; 0 where the data say it."""

    label: str
    unit: str
    factor: float
    full: float = 0.0


HEAT_METRICS: Mapping[str, HeatMetric] = {
    "SM_ACTIVE": HeatMetric("SM active", "%", 100.0, 100.0),
    "PIPE_TENSOR_ACTIVE": HeatMetric("tensor active", "%", 100.0, 100.0),
    "DRAM_ACTIVE": HeatMetric("DRAM active", "%", 100.0, 100.0),
    "GPU_UTIL": HeatMetric("utilization", "%", 100.0, 100.0),
    "SM_OCCUPANCY": HeatMetric("SM occupancy", "%", 100.0, 100.0),
    "NVLINK_RX_BYTES": HeatMetric("NVLink in", "GB/s", 1e-9),
    "PCIE_RX_BYTES": HeatMetric("PCIe in", "GB/s", 1e-9),
    "POWER_USAGE": HeatMetric("power", "W", 1.0),
    "GPU_TEMP": HeatMetric("temperature", "°C", 1.0),
    "SM_CLOCK": HeatMetric("SM clock", "MHz", 1.0),
}


def heat_figure(
    overview: "Overview", metric: str = "SM_ACTIVE", *, dark: bool = False, title: str = ""
) -> dict[str, Any]:
    """A row per GPU, a column per bucket; no colour where there is no sample.

    Returns
    -------
    dict
        ``data`` and ``layout``; ``layout.meta`` holds ``devices`` (the UUID of each row), ``bucket_ms`` and
        ``factor``, with which a live view adds columns.

    Raises
    ------
    KeyError
        `metric` is none of :data:`HEAT_METRICS`.
    """
    shown = HEAT_METRICS[metric]
    gpus = gpus_of(overview)
    if not gpus or not len(overview.time_ns):
        layout = clear_layout(title, 100, dark=dark) | nothing("No GPU has been recorded.", dark=dark)
        return {"data": [], "layout": layout | {"meta": {"devices": [], "bucket_ms": 1000, "factor": 1.0}}}
    places = rows_by_device(overview)
    rows = overview.mean.get(metric, np.full((len(overview.devices), len(overview.time_ns)), np.nan))
    values = np.asarray(rows, np.float64)[[places[gpu.uuid] for gpu in gpus]] * shown.factor
    bucket = overview.bucket_ns / 1e6
    several = len({gpu.node for gpu in gpus}) > 1
    trace: dict[str, Any] = {
        "type": "heatmap",
        "uid": f"heat-{metric}",
        "x0": overview.time_ns[0] / 1e6 + bucket / 2,
        "dx": bucket,
        "y0": 0,
        "dy": 1,
        "z": number_rows(values, 1),
        "colorscale": HEAT[dark],
        "zmin": 0,
        "showscale": True,
        "colorbar": _scale(shown, dark=dark),
        "hoverongaps": False,
        "hovertemplate": f"%{{y}} · %{{x}}<br>{shown.label} %{{z:.0f}} {shown.unit}<extra></extra>",
    }
    if shown.full:
        trace["zmax"] = shown.full
    top = _TOP_PIXELS + (18 if title else 0)
    height = top + _BOTTOM_PIXELS + min(_MOST_PIXELS, len(gpus) * _row_pixels(len(gpus)))
    layout = clear_layout(title, round(height), dark=dark, top=top, bottom=_BOTTOM_PIXELS)
    layout["margin"] |= {"l": 60} if several else {}
    layout["xaxis"] = time_axis(dark=dark) | {"range": list(span_ms(overview) or ()), "showgrid": False}
    layout["yaxis"] = _names(gpus, several=several)
    layout["meta"] = {
        "devices": [gpu.uuid for gpu in gpus],
        "names": [gpu_name(gpu, several=several) for gpu in gpus],
        "bucket_ms": bucket,
        "factor": shown.factor,
        "metric": metric,
        "simulated": any(gpu.simulated for gpu in gpus),
    }
    if layout["meta"]["simulated"]:
        layout["annotations"].append(simulated_mark(dark=dark))
    return {"data": [trace], "layout": layout}


def _row_pixels(count: int) -> float:
    return 20 if count <= 8 else 12 if count <= 16 else 6 if count <= 64 else 1


def _names(gpus: tuple[Device, ...], *, several: bool) -> dict[str, Any]:
    step = -(-len(gpus) // _MOST_LABELS)
    if several and step > 1:
        # Where a node begins says more than every n-th GPU.
        nodes = [row for row, gpu in enumerate(gpus) if not row or gpus[row - 1].node != gpu.node]
        rows = nodes[:: -(-len(nodes) // _MOST_LABELS)]
        names = [gpus[row].node for row in rows]
    else:
        rows = list(range(0, len(gpus), step))
        names = [gpu_name(gpus[row], several=several) for row in rows]
    return {
        "range": [len(gpus) - 0.5, -0.5],
        "autorange": False,
        "fixedrange": True,
        "tickvals": rows,
        "ticktext": names,
        "tickfont": {"size": 10},
        "showgrid": False,
        "zeroline": False,
    }


def _scale(shown: HeatMetric, *, dark: bool) -> dict[str, Any]:
    scale: dict[str, Any] = {
        # Above the map, so that its time axis is as wide as those of the plots around it.
        "orientation": "h",
        "thickness": 6,
        "len": 0.4,
        "outlinewidth": 0,
        "x": 1.0,
        "xanchor": "right",
        "xpad": 0,
        "y": 1.0,
        "yanchor": "bottom",
        "ypad": 2,
        "ticklabelposition": "outside top",
        "nticks": 3,
        "tickfont": {"size": 10, "color": ink(dark=dark)},
        "ticksuffix": "" if shown.full else f" {shown.unit}",
    }
    if shown.full:
        scale |= {"tickvals": [0, 50, 100], "ticktext": ["0", "50", "100 %"]}
    return scale
