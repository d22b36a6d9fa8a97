"""Figures of an overview (the samples of a run, averaged in time buckets).

They show the job, its hosts, one GPU in detail, a line per GPU, and runs compared. User metrics are those
that the user's program logged.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sample import Device
from ..user_metrics import UserMetrics
from .activity import metric_rows
from .lines import (
    CLOCK_LINES,
    FURTHER_LINES,
    GAUGE_LINES,
    GPU_LINES,
    HOST_LINES,
    IO_LINES,
    LINK_LINES,
    MEMORY_LINES,
    POWER_LINES,
    TEMPERATURE_LINES,
    Floats,
    Line,
    bounds_and_mean,
    gpu_name,
    gpus_of,
    hosts_of,
    json_values,
    line_trace,
    line_values,
    mean_over,
    plain_text,
    points,
    span_ms,
)
from .palette import COLORS, DEVICES
from .stack import Plot, stacked

if TYPE_CHECKING:
    from ..store.overview import Overview

#: Start of the time axis of compared runs (the year 2000): near the epoch, plotly.js takes numbers of four
#: digits for years.
_MIDNIGHT_MS = 946_684_800_000
#: Lines of a job's figures by kind of device, each the mean over the job's devices of that kind.
#: `ADDED_LINES` are sums over its hosts.
JOB_LINES = {"gpu": (*GPU_LINES, *MEMORY_LINES, *TEMPERATURE_LINES, *POWER_LINES), "host": HOST_LINES}
ADDED_LINES = IO_LINES
#: Maximum number of lines per plot; beyond it mean, minimum and maximum are drawn.
MAX_LINES = 16
#: Plots of the time series figure: metrics to add up, title, factor. They are those of figure 1 in Schuppli
#: et al., Evolving HPC services to enable ML workloads on HPE Cray EX (Cray User Group, CUG 2025).
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
) -> dict[str, Any]:
    """Return the job's figure: a plot of means over its GPUs, then a plot for each of some user metrics.

    Returns
    -------
    dict
        ``data`` and ``layout``; a trace's ``uid`` is ``job/<metric>`` or ``metrics/<name>``, then
        ``/<launch>`` where a launch logged it. x is UTC in milliseconds, y has the unit in the
        plot's title, else percent. Missing values are gaps.
    """
    gpus = gpus_of(overview)
    plots = []
    if gpus:
        name = f"Mean of {len(gpus)} GPUs" if len(gpus) > 1 else "GPU"
        traces = _job_traces(overview, GPU_LINES, gpus, dark=dark)
        plots.append(Plot(name, traces, percent=True, pixels=96))
        for title, lines, percent in (
            ("GPU memory, %", MEMORY_LINES, True),
            ("Temperature, °C", TEMPERATURE_LINES, False),
        ):
            traces = _job_traces(overview, lines, gpus, dark=dark)
            if any(value is not None for trace in traces for value in trace["y"]):
                plots.append(Plot(title, traces, percent=percent, legend=False, pixels=40))
    plots += user_metric_plots(metrics, overview, dark=dark)
    simulated = any(device.simulated for device in gpus)
    return stacked(
        plots,
        span_ms=span_ms(overview),
        dark=dark,
        simulated=simulated,
        empty="No GPU has been recorded.",
    )


def host_figure(overview: "Overview", *, dark: bool = False) -> dict[str, Any]:
    """Return the hosts' figure: means of CPU and memory, sums of I/O; the uids are ``job/<metric>``."""
    hosts = hosts_of(overview)
    plots = []
    if hosts:
        alone = f"Host, {hosts[0].scope or 'whole node'}"
        several = f"Mean of {len(hosts)} hosts" if len(hosts) > 1 else alone
        both = "I/O of all hosts, MB/s" if len(hosts) > 1 else "I/O, MB/s"
        plots = [
            Plot(several, _job_traces(overview, HOST_LINES, hosts, dark=dark), percent=True),
            Plot(both, _job_traces(overview, IO_LINES, hosts, dark=dark, add=True)),
        ]
    return stacked(
        plots,
        span_ms=span_ms(overview),
        dark=dark,
        simulated=any(device.simulated for device in hosts),
        empty="No host has been recorded.",
    )


def compare_figure(runs: Sequence[tuple[str, "Overview"]], *, dark: bool = False) -> dict[str, Any]:
    """Return several runs on one time axis, each from its own start: SM, tensor pipe and DRAM activity.

    x is milliseconds since the run's first sample, displayed as a time of day that starts at midnight.
    """
    styles = (("blue", "solid"), ("orange", "dot"), ("green", "dash"))
    plots: list[Plot] = []
    longest = 0
    for line in GPU_LINES[1:]:
        traces = []
        for place, (name, overview) in enumerate(runs):
            color, dash = styles[place % len(styles)]
            own = Line(line.metric, plain_text(name), *COLORS[color], dash, "%")
            x, y = points(overview, line_values(overview, line, gpus_of(overview)))
            since_start = [_MIDNIGHT_MS + time - x[0] for time in x]
            longest = max(longest, x[-1] - x[0] if x else 0)
            traces.append(line_trace(own, f"{place}/{line.metric}", (since_start, y), dark=dark))
        plots.append(Plot(f"{line.label}, mean of the GPUs", tuple(traces), percent=True, legend=not plots))
    figure = stacked(
        plots,
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
    further_metrics: Sequence[str] = (),
    dark: bool = False,
) -> dict[str, Any]:
    """Return one GPU's figure: activity, links, clock, power, and user metrics on the same time axis.

    Metrics in `further_metrics`, such as those that an advice is based on, are added to its activity.

    A trace's ``uid`` is ``<device>/<metric>``; unused links have no line.
    """
    plots = []
    more = tuple(line for line in FURTHER_LINES if line.metric in further_metrics)
    for name, lines, percent in (
        ("Activity", (*GPU_LINES, *more), True),
        ("GPU memory, %", MEMORY_LINES, True),
        ("Links, GB/s", LINK_LINES, False),
        ("Temperature, °C", TEMPERATURE_LINES, False),
        ("SM clock, MHz", CLOCK_LINES, False),
        ("Power, W", POWER_LINES, False),
    ):
        traces = []
        for line in lines:
            values = line_values(overview, line, (device,))
            if name == "Activity" or (np.isfinite(values) & (values > 0)).any():
                uid = f"{device.uuid}/{line.metric}"
                traces.append(line_trace(line, uid, points(overview, values), dark=dark))
        if traces:
            alone = len(lines) == 1
            plots.append(Plot(name, tuple(traces), percent, legend=not alone, pixels=44 if alone else 64))
    plots += user_metric_plots(metrics, overview, dark=dark)
    return stacked(plots, span_ms=span_ms(overview), dark=dark, simulated=device.simulated)


def gauge_figure(overview: "Overview", metric: str, *, dark: bool = False) -> dict[str, Any]:
    """Return the figure of one metric of `GAUGE_LINES`, which have a tab of their own: a line per GPU.

    A trace's ``uid`` is ``<device>/<metric>``. For more than :data:`MAX_LINES` GPUs it is one line of means,
    ``job/<metric>``, whose ``low`` and ``high`` are the least and the greatest value of the GPUs.

    Raises
    ------
    KeyError
        The metric is not one of `GAUGE_LINES`.
    """
    line = GAUGE_LINES[metric]
    gpus = gpus_of(overview)
    values = [line_values(overview, line, (gpu,)) for gpu in gpus]
    if len(gpus) <= MAX_LINES:
        traces = _line_per_gpu(overview, line, gpus, values, dark=dark)
    else:
        low, mean, high = bounds_and_mean(np.stack(values))
        own = replace(line, label=f"mean of {len(gpus)} GPUs")
        trace = line_trace(own, f"job/{metric}", points(overview, mean), dark=dark)
        traces = (trace | {"low": points(overview, low)[1], "high": points(overview, high)[1]},)
    known = any(value is not None for trace in traces for value in trace["y"])
    name = f"{line.label[0].upper()}{line.label[1:]}, {line.unit}"
    plots = (
        [Plot(name, traces, percent=line.unit == "%", legend=len(traces) > 1, pixels=220)] if known else []
    )
    simulated = any(gpu.simulated for gpu in gpus)
    empty = f"No GPU reports its {line.label}." if gpus else "No GPU has been recorded."
    return stacked(plots, span_ms=span_ms(overview), dark=dark, simulated=simulated, empty=empty)


def _line_per_gpu(
    overview: "Overview", line: Line, gpus: Sequence[Device], values: Sequence[Floats], *, dark: bool
) -> tuple[dict[str, Any], ...]:
    """Return a line for each of up to `MAX_LINES` GPUs, which differ in color and dash."""
    several = len({gpu.node for gpu in gpus}) > 1
    traces = []
    for gpu, own, (light, dark_color, dash) in zip(gpus, values, DEVICES, strict=False):
        style = replace(line, label=gpu_name(gpu, several=several), light=light, dark=dark_color, dash=dash)
        traces.append(line_trace(style, f"{gpu.uuid}/{line.metric}", points(overview, own), dark=dark))
    return tuple(traces)


def time_series_figure(overview: "Overview", *, dark: bool = False) -> dict[str, Any]:
    """Return activity over time with a plot per metric of `_TIME_SERIES` and a line per GPU.

    For more than :data:`MAX_LINES` GPUs, mean, minimum and maximum are drawn.
    """
    selected = gpus_of(overview)
    few = len(selected) <= MAX_LINES
    plots: list[Plot] = []
    for metrics, name, factor in _TIME_SERIES if selected else ():
        percent = name.endswith("%")
        line = Line(metrics[0], "", *COLORS["blue"], "solid", "%" if percent else "GB/s")
        values = [
            np.asarray(factor * sum(mean_over(overview, metric, (gpu,)) for metric in metrics))
            for gpu in selected
        ]
        if few:
            drawn = _line_per_gpu(overview, line, selected, values, dark=dark)
            groups, widths = [gpu.uuid for gpu in selected], [1.2] * len(selected)
        else:
            drawn = _mean_and_range(overview, line, values, dark=dark)
            groups, widths = ["mean", "minimum", "maximum"], [1.8, 1.0, 1.0]
        traces = tuple(
            trace | {"legendgroup": group, "line": trace["line"] | {"width": width}}
            for trace, group, width in zip(drawn, groups, widths, strict=True)
        )
        plots.append(Plot(name, traces, percent=percent, legend=not plots, pixels=60))
    heading = f"GPU activity of {len(selected)} GPU{'s' if len(selected) != 1 else ''}"
    simulated = any(device.simulated for device in selected)
    return stacked(plots, title=heading, span_ms=span_ms(overview), dark=dark, simulated=simulated)


def user_metric_plots(metrics: UserMetrics | None, overview: "Overview", *, dark: bool) -> list[Plot]:
    """Return a plot for each of the first few user metrics, within the overview's time range."""
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
            points(overview, line_values(overview, line, devices, add=add)),
            dark=dark,
        )
        for line in lines
    )


def _thinned(times: Any, values: Any, _: float) -> tuple[list[int], list[float | None]]:
    """Return at most 600 points; user metrics are not rates, so points may be dropped without averaging."""
    step = max(1, -(-len(times) // 600))
    return (times[::step] // 1_000_000).tolist(), json_values(np.asarray(values[::step], np.float64), 6)


def _mean_and_range(
    overview: "Overview", line: Line, values: Sequence[Floats], *, dark: bool
) -> tuple[dict[str, Any], ...]:
    low, mean, high = bounds_and_mean(np.stack(values))
    return tuple(
        line_trace(
            replace(line, label=name, dash=dash), f"{name}/{line.metric}", points(overview, own), dark=dark
        )
        for name, own, dash in (("mean", mean, "solid"), ("minimum", low, "dot"), ("maximum", high, "dash"))
    )
