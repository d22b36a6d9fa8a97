"""The job as one: means over its GPUs, what its hosts do, and the user's own metrics, on one time axis."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metrics import UserMetrics
from ..sample import Device
from .lines import Floats, gpus_of, hosts_of, line_trace, numbers, plain, points, span_ms, together
from .metric_rows import metric_rows
from .rows import GPU_LINES, HOST_LINES, IO_LINES, Line
from .stack import Plot, stacked

if TYPE_CHECKING:
    from ..overview.read import Overview

#: Plotly.js takes a number of four digits on a time axis for a year: a run's beginning is that of 2000.
_MIDNIGHT_MS = 946_684_800_000

#: Metrics of which a job has one line, by kind of device; those of the second are added up over its hosts.
JOB_LINES = {"gpu": GPU_LINES, "host": HOST_LINES}
ADDED_LINES = IO_LINES


def job_figure(
    overview: "Overview",
    *,
    metrics: UserMetrics | None = None,
    dark: bool = False,
    title: str = "",
) -> dict[str, Any]:
    """The job's lines: a plot of means over its GPUs, then one for each of some metrics of the user's own.

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
    """What the hosts did: means of CPU and memory, input and output added up; uids as those of the job."""
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


def own_plots(metrics: UserMetrics | None, overview: "Overview", *, dark: bool) -> list[Plot]:
    """A plot for each of the first few metrics of the user's own, within the overview's time."""
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


def compare_figure(
    runs: Sequence[tuple[str, "Overview"]], *, dark: bool = False, title: str = ""
) -> dict[str, Any]:
    """Several runs above one another, each from its own beginning: SM, tensor pipes and DRAM of each job.

    x is milliseconds since the run's first sample, shown as a time of day that begins at midnight.
    """
    styles = (("#0072b2", "#56b4e9", "solid"), ("#d55e00", "#f28e2b", "dot"), ("#009e73", "#2fd0a0", "dash"))
    plots: list[Plot] = []
    longest = 0
    for line in GPU_LINES[1:]:
        traces = []
        for place, (name, overview) in enumerate(runs):
            light, dark_one, dash = styles[place % len(styles)]
            own = Line(line.metric, plain(name), light, dark_one, dash, "%")
            x, y = points(overview, _values(overview, line, gpus_of(overview)))
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


def _job_traces(
    overview: "Overview", lines: Sequence[Line], devices: tuple[Device, ...], *, dark: bool, add: bool = False
) -> tuple[dict[str, Any], ...]:
    return tuple(
        line_trace(
            line,
            f"job/{line.metric}",
            points(overview, _values(overview, line, devices, add=add)),
            dark=dark,
        )
        for line in lines
    )


def _values(overview: "Overview", line: Line, devices: tuple[Device, ...], *, add: bool = False) -> Floats:
    values = together(overview, line.metric, devices, add=add) * line.factor
    if line.of:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = values / together(overview, line.of, devices, add=add)
    return values


def _thinned(times: Any, values: Any, _: float) -> tuple[list[int], list[float | None]]:
    """At most 600 points; a user's metric is no rate, so that leaving points out changes none."""
    step = max(1, -(-len(times) // 600))
    return (times[::step] // 1_000_000).tolist(), numbers(np.asarray(values[::step], np.float64), 6)
