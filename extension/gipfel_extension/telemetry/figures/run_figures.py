"""Figures of an overview: the job as one, its hosts, one GPU in detail, a line per GPU, and runs compared."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sample import Device
from ..user_metrics import UserMetrics
from .lines import (
    CLOCK_LINES,
    FURTHER_LINES,
    GPU_LINES,
    HOST_LINES,
    IO_LINES,
    LINK_LINES,
    POWER_LINES,
    Floats,
    Line,
    gpu_name,
    gpus_of,
    hosts_of,
    json_values,
    line_trace,
    mean_over,
    plain_text,
    points,
    series,
    span_ms,
)
from .metric_rows import metric_rows
from .palette import COLORS, DEVICES
from .stack import Plot, stacked

if TYPE_CHECKING:
    from ..store.overview import Overview

#: Plotly.js takes a number of four digits on a time axis for a year: a run's beginning is that of 2000.
_MIDNIGHT_MS = 946_684_800_000
#: Metrics of which a job has one line, by kind of device; those of the second are added up over its hosts.
JOB_LINES = {"gpu": GPU_LINES, "host": HOST_LINES}
ADDED_LINES = IO_LINES
#: More lines than this in one plot can't be followed; then mean, lowest and highest are drawn.
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


def job_figure(
    overview: "Overview",
    *,
    metrics: UserMetrics | None = None,
    dark: bool = False,
    title: str = "",
) -> dict[str, Any]:
    """Return the job's lines: a plot of means over its GPUs, then one for each of some user metrics.

    Returns
    -------
    dict
        ``data`` and ``layout``; a trace's ``uid`` is ``job/<metric>`` or ``metrics/<name>``, then
        ``/<launch>`` where a launch logged it. x is UTC in milliseconds, y per cent. Missing values are gaps.
    """
    gpus = gpus_of(overview)
    plots = []
    if gpus:
        name = f"Mean of {len(gpus)} GPUs" if len(gpus) > 1 else "GPU"
        traces = _job_traces(overview, GPU_LINES, gpus, dark=dark)
        plots.append(Plot(name, traces, percent=True, pixels=96))
    plots += own_plots(metrics, overview, dark=dark)
    simulated = any(device.simulated for device in gpus)
    return stacked(
        plots,
        title=title,
        span_ms=span_ms(overview),
        dark=dark,
        simulated=simulated,
        empty="No GPU has been recorded.",
    )


def host_figure(overview: "Overview", *, dark: bool = False, title: str = "") -> dict[str, Any]:
    """Return the hosts' lines: means of CPU and memory, I/O added up; uids as those of the job."""
    hosts = hosts_of(overview)
    plots = []
    if hosts:
        alone = f"Host, {hosts[0].scope or 'all of it'}"
        several = f"Mean of {len(hosts)} hosts" if len(hosts) > 1 else alone
        both = "I/O of all hosts, MB/s" if len(hosts) > 1 else "I/O, MB/s"
        plots = [
            Plot(several, _job_traces(overview, HOST_LINES, hosts, dark=dark), percent=True),
            Plot(both, _job_traces(overview, IO_LINES, hosts, dark=dark, add=True)),
        ]
    return stacked(
        plots,
        title=title,
        span_ms=span_ms(overview),
        dark=dark,
        simulated=any(device.simulated for device in hosts),
        empty="No host has been recorded.",
    )


def compare_figure(
    runs: Sequence[tuple[str, "Overview"]], *, dark: bool = False, title: str = ""
) -> dict[str, Any]:
    """Return several runs on one axis, each from its own start: SM, tensor pipes and DRAM of each job.

    x is milliseconds since the run's first sample, shown as a time of day that begins at midnight.
    """
    styles = (("blue", "solid"), ("orange", "dot"), ("green", "dash"))
    plots: list[Plot] = []
    longest = 0
    for line in GPU_LINES[1:]:
        traces = []
        for place, (name, overview) in enumerate(runs):
            color, dash = styles[place % len(styles)]
            own = Line(line.metric, plain_text(name), *COLORS[color], dash, "%")
            x, y = points(overview, _line_values(overview, line, gpus_of(overview)))
            begun = [_MIDNIGHT_MS + time - x[0] for time in x]
            longest = max(longest, x[-1] - x[0] if x else 0)
            traces.append(line_trace(own, f"{place}/{line.metric}", (begun, y), dark=dark))
        plots.append(Plot(f"{line.label}, mean of the GPUs", tuple(traces), percent=True, legend=not plots))
    figure = stacked(
        plots,
        title=title,
        span_ms=(_MIDNIGHT_MS, _MIDNIGHT_MS + max(longest, 1000)),
        dark=dark,
        simulated=any(device.simulated for _, overview in runs for device in overview.devices),
    )
    for key, axis in figure["layout"].items():
        if key.startswith("xaxis"):
            axis["hoverformat"] = "%H:%M:%S after the start"
            if axis.get("title"):
                axis["title"]["text"] = "since the run's first sample"
    return figure


def gpu_figure(
    overview: "Overview",
    device: Device,
    *,
    metrics: UserMetrics | None = None,
    also: Sequence[str] = (),
    dark: bool = False,
    title: str = "",
) -> dict[str, Any]:
    """Return one GPU's lines: activity, links, clock, power, and user metrics on the same axis.

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
    """Return activity over time, a plot per metric and a line per GPU: the CUG25 paper's figure 1.

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


def own_plots(metrics: UserMetrics | None, overview: "Overview", *, dark: bool) -> list[Plot]:
    """Return a plot for each of the first few user metrics, within the overview's time."""
    if metrics is None or not len(overview.time_ns):
        return []
    first, last = int(overview.time_ns[0]), int(overview.time_ns[-1] + overview.bucket_ns)
    found = []
    for each in metric_rows(metrics.between(first, last)):
        traces = tuple(
            {key: trace[key] for key in trace if key not in ("xaxis", "yaxis", "legend", "legendgroup")}
            for trace in each.traces(1, _thinned, dark=dark)
        )
        found.append(Plot(each.row.title, traces, legend=len(traces) > 1, pixels=52))
    return found


def _job_traces(
    overview: "Overview", lines: Sequence[Line], devices: tuple[Device, ...], *, dark: bool, add: bool = False
) -> tuple[dict[str, Any], ...]:
    return tuple(
        line_trace(
            line,
            f"job/{line.metric}",
            points(overview, _line_values(overview, line, devices, add=add)),
            dark=dark,
        )
        for line in lines
    )


def _line_values(
    overview: "Overview", line: Line, devices: tuple[Device, ...], *, add: bool = False
) -> Floats:
    values = mean_over(overview, line.metric, devices, add=add) * line.factor
    if line.of:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = values / mean_over(overview, line.of, devices, add=add)
    return values


def _thinned(times: Any, values: Any, _: float) -> tuple[list[int], list[float | None]]:
    """Return at most 600 points; a user's metric is not a rate, so leaving points out changes none."""
    step = max(1, -(-len(times) // 600))
    return (times[::step] // 1_000_000).tolist(), json_values(np.asarray(values[::step], np.float64), 6)


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
        line = Line(metrics[0], name, *COLORS["blue"], dash, "GB/s" if factor < 1 else "%")
        shown = points(overview, np.where(there, values * factor, np.nan))
        trace = line_trace(line, f"{name}/{metrics[0]}", shown, dark=dark)
        trace["line"]["width"] = width
        traces.append({**trace, "legendgroup": name})
    return tuple(traces)
