"""Roofline of a run: arithmetic rate against operations per byte of GPU memory traffic, by GPU and over time.

Rates are estimated as activity times peak: ``PIPE_TENSOR_ACTIVE`` times the peak of dense bf16 and
``PIPE_FP32_ACTIVE`` times the peak of FP32, both scaled by the recorded clock, and ``DRAM_ACTIVE`` times the
memory's bandwidth. Peaks are from data sheets. A recorder sees that a pipe is busy, but not with which data
type: the true rate is twice the plotted one for FP8, and half of it for TF32.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..telemetry.figures.lines import plain_text
from ..telemetry.figures.palette import (
    COLORS,
    DEVICES,
    HEAT,
    base_layout,
    empty_plot,
    grid_color,
    simulated_mark,
    text_color,
)
from ..telemetry.figures.stack import legend, plot_title
from ..telemetry.store.overview import Overview
from ..vetting.reference_values import ReferenceValue, gpu_reference
from .rows import DeviceRow, Floats

#: Metrics from which a roofline is computed; those of the tensor pipe and of DRAM are required.
ROOFLINE_METRICS = ("PIPE_TENSOR_ACTIVE", "PIPE_FP32_ACTIVE", "DRAM_ACTIVE", "SM_CLOCK", "MAX_SM_CLOCK")
#: Peaks of dense bf16 and FP32 in TFLOP/s, by words in the name that NVML reports; the first match wins.
#: Source: NVIDIA's data sheet of each model.
_PEAKS: Mapping[tuple[str, ...], tuple[float, float]] = {
    ("GB200",): (2500, 80),
    ("B200",): (2250, 75),
    ("GH200",): (989, 67),
    ("H200",): (989, 67),
    ("H100", "PCIE"): (756, 51),
    ("H100", "NVL"): (835, 60),
    ("H100",): (989, 67),
    ("A100",): (312, 19.5),
    ("L40S",): (362, 91.6),
    ("L4 ",): (121, 30.3),
}
#: Model whose ceilings are used for simulated GPUs.
_SIMULATED = "NVIDIA GH200 120GB"
_MOST_POINTS = 1024
_DECADES = 3.5
_PIXELS = 380
#: Height of a legend of four lines, below the title.
_LEGEND_PIXELS = 77


@dataclass(frozen=True)
class Roof:
    """Ceilings of a GPU model in operations and bytes per second.

    ``tensor``, ``fp32`` and ``memory`` are peaks from the data sheet; ``matmul`` and ``copy`` are the rates
    that programs reach.
    """

    model: str
    tensor: float
    fp32: float
    memory: float
    matmul: ReferenceValue
    copy: ReferenceValue

    @property
    def sources(self) -> str:
        """Return where the ceilings come from, in one line."""
        sheet = self.copy.source.partition(",")[0]
        return (
            f"{self.model}: {self.tensor / 1e12:.0f} TFLOP/s dense bf16 and {self.memory / 1e12:.2f} TB/s "
            f"({sheet}); dashed: {self.matmul.value / 1e12:.0f} TFLOP/s ({self.matmul.source}), "
            f"{self.copy.value / 1e12:.2f} TB/s ({self.copy.source})"
        )


def roof_of(name: str) -> Roof | None:
    """Return the ceilings of a device by its NVML name; None where they are not known."""
    words = name.upper() + " "
    peaks = next((each for names, each in _PEAKS.items() if all(word in words for word in names)), None)
    matmul, copy = gpu_reference("matmul", name), gpu_reference("memory_bandwidth", name)
    if peaks is None or matmul is None or copy is None:
        return None
    return Roof(name, peaks[0] * 1e12, peaks[1] * 1e12, copy.peak, matmul, copy)


def roofline_figure(
    overview: Overview, rows: Sequence[DeviceRow], chosen: Collection[str] = (), *, dark: bool = False
) -> dict[str, Any]:
    """Return a figure with a point per GPU (mean over time) and per time (mean over GPUs), below their roofs.

    Parameters
    ----------
    chosen
        UUIDs of rows to highlight.

    Returns
    -------
    dict
        Plotly's figure. Values on its axes are decimal logarithms; ``layout.meta.sources`` names the sources
        of the ceilings. If metrics or ceilings are missing, the figure is a text that says so.
    """
    gpus = [row for row in rows if overview.devices[row.index].kind == "gpu"]
    names = {row.index: _SIMULATED if row.simulated else overview.devices[row.index].name for row in gpus}
    roofs = {index: roof for index, name in names.items() if (roof := roof_of(name))}
    if reason := _reason(overview, gpus, roofs):
        return {"data": [], "layout": base_layout("", 140, dark=dark) | empty_plot(reason, dark=dark)}
    drawn = [row for row in gpus if row.index in roofs]
    rates, memory = _rates(overview, drawn, roofs)
    models = {each.model: each for each in roofs.values()}
    traces = [
        trace
        for each in list(models.values())[:3]
        for trace in _roof_traces(each, f"{each.model}, " if len(models) > 1 else "", dark=dark)
    ]
    traces.append(_over_time(overview, _means(rates, 0), _means(memory, 0), dark=dark))
    traces += _by_gpu(drawn, _means(rates, 1), _means(memory, 1), chosen, dark=dark)
    layout = _layout(list(models.values()), dark=dark)
    if any(row.simulated for row in drawn):
        layout["annotations"].append(simulated_mark(dark=dark))
    return {"data": [{**each, "legend": "legend", "showlegend": True} for each in traces], "layout": layout}


def _reason(overview: Overview, gpus: Sequence[DeviceRow], roofs: Mapping[int, Roof]) -> str:
    """Return why there is no roofline, and what to do; empty if there is one."""
    missing = [
        name
        for name in ("PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE")
        if name not in overview.mean or not np.isfinite(overview.mean[name]).any()
    ]
    if not gpus:
        return "No roofline: no GPU was recorded."
    if missing:
        return (
            f"No roofline: {' and '.join(missing)} were not recorded in this time.<br>"
            "NVML's utilization says only that a kernel ran, not how much it computed or moved.<br>"
            "Hopper and newer GPUs report both by NVML's GPM, older ones by DCGM: see `gipfel doctor`."
        )
    if not roofs:
        names = sorted({plain_text(overview.devices[row.index].name) for row in gpus})
        return f"No roofline: the peak rates of {', '.join(names[:3])} are not known."
    return ""


def _rates(overview: Overview, rows: Sequence[DeviceRow], roofs: Mapping[int, Roof]) -> tuple[Floats, Floats]:
    """Return operations and bytes per second of each row over time; NaN where unknown."""
    places = [row.index for row in rows]
    shape = len(rows), len(overview.time_ns)

    def values(metric: str) -> Floats:
        found = overview.mean.get(metric)
        return np.full(shape, np.nan) if found is None else np.asarray(found, np.float64)[places]

    def peaks(name: str) -> Floats:
        return np.array([[getattr(roofs[place], name)] for place in places])

    with np.errstate(invalid="ignore", divide="ignore"):
        clock = np.nan_to_num(values("SM_CLOCK") / values("MAX_SM_CLOCK"), nan=1.0, posinf=1.0)
    pipes = values("PIPE_TENSOR_ACTIVE") * peaks("tensor")
    pipes = pipes + np.nan_to_num(values("PIPE_FP32_ACTIVE")) * peaks("fp32")
    return pipes * np.clip(clock, 0, 1), values("DRAM_ACTIVE") * peaks("memory")


def _means(values: Floats, axis: int) -> Floats:
    """Return means of the known values along an axis; NaN where none is known."""
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, values, 0.0).sum(axis) / known.sum(axis), np.float64)


def _points(rates: Floats, memory: Floats) -> tuple[list[float | None], list[float | None]]:
    """Return decimal logarithms of operations per byte, and of operations per second; None if unknown."""
    with np.errstate(invalid="ignore", divide="ignore"):
        x, y = np.log10(rates / memory), np.log10(rates)
    is_known = np.isfinite(x) & np.isfinite(y)
    return (
        [round(float(each), 3) if known else None for each, known in zip(x, is_known, strict=True)],
        [round(float(each), 3) if known else None for each, known in zip(y, is_known, strict=True)],
    )


def _roof_traces(roof: Roof, prefix: str, *, dark: bool) -> list[dict[str, Any]]:
    color = text_color(dark=dark)
    found = []
    for name, rate, memory, dash in (
        ("data sheet", roof.tensor, roof.memory, "solid"),
        ("reached", roof.matmul.value, roof.copy.value, "dash"),
    ):
        knee, top = np.log10(rate / memory), np.log10(rate)
        found.append(
            {
                "type": "scatter",
                "mode": "lines",
                "uid": f"roof/{plain_text(roof.model)}/{name}",
                "name": f"{plain_text(prefix)}{name}",
                "x": [round(float(each), 3) for each in (knee - _DECADES, knee, knee + _DECADES)],
                "y": [round(float(each), 3) for each in (top - _DECADES, top, top)],
                "line": {"color": color, "dash": dash, "width": 1.6},
                "hoverinfo": "skip",
            }
        )
    return found


def _over_time(overview: Overview, rates: Floats, memory: Floats, *, dark: bool) -> dict[str, Any]:
    x, y = _points(rates, memory)
    minutes = (overview.time_ns - overview.time_ns[0]) / 60e9
    return {
        "type": "scatter",
        "mode": "markers",
        "uid": "roof/time",
        "name": "over time (bright: later)" if dark else "over time (dark: later)",
        "x": x,
        "y": y,
        "text": [f"{each:.1f} min" for each in minutes],
        "marker": {
            "size": 5,
            "symbol": "circle",
            "color": [round(float(each), 2) for each in minutes],
            "colorscale": HEAT[dark],
        },
        "hovertemplate": "after %{text}<extra></extra>",
    }


def _by_gpu(
    rows: Sequence[DeviceRow], rates: Floats, memory: Floats, chosen: Collection[str], *, dark: bool
) -> list[dict[str, Any]]:
    x, y = _points(rates, memory)
    found = []
    for name, is_chosen, style in (
        (f"each of {len(rows)} GPUs", False, COLORS["orange"]),
        ("selected", True, DEVICES[2][:2]),
    ):
        places = [place for place, row in enumerate(rows) if (row.uuid in chosen) == is_chosen][:_MOST_POINTS]
        if not places:
            continue
        found.append(
            {
                "type": "scatter",
                "mode": "markers",
                "uid": f"roof/{'chosen' if is_chosen else 'gpus'}",
                "name": name,
                "x": [x[place] for place in places],
                "y": [y[place] for place in places],
                "text": [
                    f"{plain_text(rows[place].label)}<br>{rates[place] / 1e12:.3g} TFLOP/s, "
                    f"{memory[place] / 1e12:.3g} TB/s"
                    for place in places
                ],
                "marker": {
                    "size": 9 if is_chosen else 7,
                    "symbol": "star" if is_chosen else "diamond-open",
                    "color": style[dark],
                },
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    return found


def _layout(roofs: Sequence[Roof], *, dark: bool) -> dict[str, Any]:
    layout = base_layout("", _PIXELS, dark=dark, top=4, bottom=44)
    # If the legend has fewer lines, the page moves the title down with it, as in `figures.stack`.
    upper = round(1 - (_LEGEND_PIXELS + 18) / (_PIXELS - 48), 6)
    layout["annotations"] = [plot_title("Roofline, TFLOP/s", 1) | {"yshift": _LEGEND_PIXELS}]
    top = max(np.log10(each.tensor) for each in roofs)
    knee = float(np.log10(roofs[0].tensor / roofs[0].memory))
    grid = {"gridcolor": grid_color(dark=dark), "zeroline": False, "fixedrange": True}
    x = range(int(np.ceil(knee - _DECADES)), int(np.floor(knee + _DECADES)) + 1)
    y = range(int(np.ceil(top - _DECADES)), int(np.floor(top)) + 1)
    layout["xaxis"] = {
        **grid,
        "type": "linear",
        "range": [knee - _DECADES, knee + _DECADES],
        "tickvals": list(x),
        "ticktext": [f"{10 ** (each - 3)}k" if each >= 3 else f"{10.0**each:g}" for each in x],
        "title": {"text": "operations per byte", "standoff": 4},
    }
    layout["yaxis"] = {
        **grid,
        "type": "linear",
        "range": [float(top) - _DECADES, float(top) + 0.2],
        "tickvals": list(y),
        "ticktext": [f"{10.0 ** (each - 12):g}" for each in y],
        "domain": [0.0, upper],
    }
    layout["margin"]["l"] = 48
    layout["legend"] = legend(upper)
    layout["showlegend"] = True
    layout["meta"] = {"sources": [each.sources for each in roofs[:3]]}
    return layout
