"""One GPU in detail, and the paper's time series with a line per GPU."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metrics import UserMetrics
from ..sample import Device
from .job_lines import own_plots
from .lines import gpu_name, gpus_of, line_trace, points, series, span_ms
from .palette import DEVICES
from .rows import CLOCK_LINES, FURTHER_LINES, GPU_LINES, LINK_LINES, POWER_LINES, Line
from .stack import Plot, stacked

if TYPE_CHECKING:
    from ..overview.read import Overview

#: More lines in one plot than this nobody can follow; then mean, lowest and highest are drawn.
MOST_LINES = 16

#: What the time series show, in the order of the CUG25 paper's figure 1: metrics added up, title, factor.
_TIME_SERIES: tuple[tuple[tuple[str, ...], str, float], ...] = (
    (("GPU_UTIL",), "GPU utilization, %", 100.0),
    (("SM_OCCUPANCY",), "SM occupancy, %", 100.0),
    (("DRAM_ACTIVE",), "Memory bandwidth utilization, %", 100.0),
    (("SM_ACTIVE",), "SM activity, %", 100.0),
    (("PIPE_TENSOR_ACTIVE",), "Tensor activity, %", 100.0),
    (("NVLINK_RX_BYTES", "NVLINK_TX_BYTES"), "NVLink bandwidth, GB/s", 1e-9),
)


def gpu_figure(
    overview: "Overview",
    device: Device,
    *,
    metrics: UserMetrics | None = None,
    also: Sequence[str] = (),
    dark: bool = False,
    title: str = "",
) -> dict[str, Any]:
    """One GPU: activity, links, clock, power, and the user's own metrics on the same axis.

    Shares of time in `also`, such as those that an advice is based on, are drawn beside its activity.

    A trace's ``uid`` is ``<device>/<metric>``; links that carried nothing have no line.
    """
    plots = []
    more = tuple(line for line in FURTHER_LINES if line.metric in also)
    for name, lines, percent in (
        ("Activity", (*GPU_LINES, *more), True),
        ("Links, GB/s", LINK_LINES, False),
        ("SM clock, MHz", CLOCK_LINES, False),
        ("Power, W", POWER_LINES, False),
    ):
        traces = []
        for line in lines:
            values = series(overview, line.metric, device) * line.factor
            if percent or (np.isfinite(values) & (values > 0)).any():
                uid = f"{device.uuid}/{line.metric}"
                traces.append(line_trace(line, uid, points(overview, values), dark=dark))
        if traces:
            alone = len(lines) == 1
            plots.append(Plot(name, tuple(traces), percent, legend=not alone, pixels=44 if alone else 64))
    plots += own_plots(metrics, overview, dark=dark)
    return stacked(
        plots, title=title, span_ms=span_ms(overview), dark=dark, simulated=bool(title) and device.simulated
    )


def time_series_figure(
    overview: "Overview", *, devices: Sequence[Device] | None = None, dark: bool = False, title: str = ""
) -> dict[str, Any]:
    """Activity over time, a plot per metric and a line per GPU: the CUG25 paper's figure 1.

    Of more than :data:`MOST_LINES` GPUs the mean is drawn, with the lowest and the highest as thin lines.
    """
    chosen = tuple(gpus_of(overview) if devices is None else devices)
    few = len(chosen) <= MOST_LINES
    plots: list[Plot] = []
    for metrics, name, factor in _TIME_SERIES if chosen else ():
        draw = _line_per_gpu if few else _mean_and_range
        traces = draw(overview, metrics, chosen, factor, dark=dark)
        percent = name.endswith("%")
        plots.append(Plot(name, traces, percent=percent, legend=not plots, pixels=60))
    heading = title or f"GPU activity of {len(chosen)} GPU{'s' if len(chosen) != 1 else ''}"
    simulated = any(device.simulated for device in chosen)
    return stacked(plots, title=heading, span_ms=span_ms(overview), dark=dark, simulated=simulated)


def _line_per_gpu(
    overview: "Overview", metrics: tuple[str, ...], devices: tuple[Device, ...], factor: float, *, dark: bool
) -> tuple[dict[str, Any], ...]:
    several = len({device.node for device in devices}) > 1
    traces = []
    for place, device in enumerate(devices):
        values = factor * sum(series(overview, metric, device) for metric in metrics)
        light, dark_one, dash = DEVICES[place % len(DEVICES)]
        unit = "GB/s" if factor < 1 else "%"
        line = Line(metrics[0], gpu_name(device, several=several), light, dark_one, dash, unit)
        uid = f"{device.uuid}/{metrics[0]}"
        trace = line_trace(line, uid, points(overview, np.asarray(values)), dark=dark)
        trace["line"]["width"] = 1.2
        traces.append({**trace, "legendgroup": device.uuid})
    return tuple(traces)


def _mean_and_range(
    overview: "Overview", metrics: tuple[str, ...], devices: tuple[Device, ...], factor: float, *, dark: bool
) -> tuple[dict[str, Any], ...]:
    stacked_values = np.stack(
        [np.asarray(sum(series(overview, metric, device) for metric in metrics)) for device in devices]
    )
    known = np.where(np.isfinite(stacked_values).any(axis=0), stacked_values, 0.0)
    there = np.isfinite(stacked_values).any(axis=0)
    traces = []
    for name, values, dash, width in (
        ("mean", np.nanmean(known, axis=0), "solid", 1.8),
        ("lowest", np.nanmin(known, axis=0), "dot", 1.0),
        ("highest", np.nanmax(known, axis=0), "dash", 1.0),
    ):
        line = Line(metrics[0], name, "#0072b2", "#56b4e9", dash, "GB/s" if factor < 1 else "%")
        shown = points(overview, np.where(there, values * factor, np.nan))
        trace = line_trace(line, f"{name}/{metrics[0]}", shown, dark=dark)
        trace["line"]["width"] = width
        traces.append({**trace, "legendgroup": name})
    return tuple(traces)
