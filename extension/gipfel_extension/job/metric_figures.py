"""Figures of users' metrics by rank and of the cluster around a job, on the time axis of the samples."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..telemetry.figures.activity import COUNTERS, DURATIONS
from ..telemetry.figures.lines import plain_text
from ..telemetry.figures.palette import COLORS
from ..telemetry.figures.stack import Plot, stacked
from ..telemetry.user_metrics import UserMetric, UserMetrics
from ..topology.cluster import ClusterState
from .figures import band_traces
from .rows import on_grid

#: Number of metrics that are drawn by default, and maximum number that may be chosen.
_FIRST, MOST_METRICS = 3, 12
_BUCKETS = 300
#: Maximum number of ranks that are drawn as a line each if no ranks are selected.
_MOST_LINES = 8


def metric_names(metrics: UserMetrics, launch: str) -> tuple[str, ...]:
    """Return the names of the metrics that a launch's ranks logged, durations and counters last."""
    names = dict.fromkeys(each.name for each in _of_launch(metrics, launch))
    return tuple(sorted(names, key=lambda name: (name in COUNTERS, name in DURATIONS)))


def last_steps(metrics: UserMetrics, launch: str) -> dict[int, int]:
    """Return the last step that each rank of a launch logged."""
    found = {}
    for each in _of_launch(metrics, launch):
        if each.name == "step" and each.rank is not None:
            known = each.values[np.isfinite(each.values)]
            if len(known):
                found[each.rank] = int(known[-1])
    return found


def metrics_figure(
    metrics: UserMetrics,
    launch: str,
    names: Sequence[str],
    chosen: Collection[int] | None,
    span_ns: tuple[int, int],
    *,
    dark: bool = False,
    width: int = 320,
) -> dict[str, Any]:
    """Return a plot per metric: a line per rank up to eight ranks, else bands, outliers and selected ranks.

    Parameters
    ----------
    names
        Metrics to draw; empty for the first three.
    chosen
        Selected ranks; None if all are.
    span_ns
        The time range of the axis, UTC.
    width
        Pixels of the figure.
    """
    own = _of_launch(metrics, launch)
    plots = []
    for name in (names or metric_names(metrics, launch)[:_FIRST])[:MOST_METRICS]:
        series = sorted(
            (each for each in own if each.name == name and len(each.time_ns)),
            key=lambda each: -1 if each.rank is None else each.rank,
        )
        if series:
            plots.append(replace(_plot(name, series, chosen, span_ns, dark=dark), width=width))
    return stacked(
        plots,
        span_ms=(span_ns[0] // 1_000_000, span_ns[1] // 1_000_000),
        dark=dark,
        empty="No metrics in this time. Log them with log(step=…, loss=…).",
    )


def cluster_figure(
    states: Sequence[ClusterState], span_ns: tuple[int, int], *, dark: bool = False, width: int = 320
) -> dict[str, Any]:
    """Return the allocated, idle and down nodes of the cluster over time, as steps."""
    inside = [each for each in states if span_ns[0] <= each.time_ns <= span_ns[1]]
    times = [each.time_ns // 1_000_000 for each in inside]
    traces: tuple[dict[str, Any], ...] = tuple(
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "uid": f"cluster/{name}",
            "x": times,
            "y": [getattr(each.nodes, name) for each in inside],
            "line": {"color": COLORS[color][dark], "dash": dash, "width": 1.6, "shape": "hv"},
            "marker": {"size": 4},
            "hovertemplate": f"{name} %{{y}} nodes<extra></extra>",
        }
        for name, color, dash in (
            ("allocated", "blue", "solid"),
            ("idle", "green", "dash"),
            ("down", "orange", "dot"),
        )
    )
    plots = [Plot("Nodes of the cluster", traces, pixels=90, width=width)] if inside else []
    return stacked(
        plots,
        span_ms=(span_ns[0] // 1_000_000, span_ns[1] // 1_000_000),
        dark=dark,
        empty="Nothing of the cluster was recorded in this time.",
    )


def _plot(
    name: str,
    series: Sequence[UserMetric],
    chosen: Collection[int] | None,
    span_ns: tuple[int, int],
    *,
    dark: bool,
) -> Plot:
    first, last = span_ns
    usual = max((_interval(each) for each in series), default=0.0)
    bucket = max(1, (last - first) // _BUCKETS, round(usual))
    buckets = max(1, -(-(last - first) // bucket))
    grid = on_grid([(each.time_ns, each.values) for each in series], first, bucket, buckets)
    times = [(first + (place * bucket) + bucket // 2) // 1_000_000 for place in range(buckets)]
    labels = ["no rank" if each.rank is None else f"rank {each.rank}" for each in series]
    drawn = [place for place, each in enumerate(series) if chosen is not None and each.rank in chosen]
    if chosen is None and len(series) <= _MOST_LINES:
        drawn = list(range(len(series)))
    traces = band_traces(times, grid, labels, drawn, uid=f"metrics/{plain_text(name)}", unit="", dark=dark)
    title = plain_text(name) if len(series) == 1 else f"{plain_text(name)} of {len(series)} ranks"
    return Plot(title, traces, pixels=110)


def _interval(metric: UserMetric) -> float:
    return float(np.median(np.diff(metric.time_ns))) if len(metric.time_ns) > 1 else 0.0


def _of_launch(metrics: UserMetrics, launch: str) -> list[UserMetric]:
    """Return the series of a launch; where it logged none, those outside of launches."""
    # If the launch is a job of its own, its ranks log RUN/N, where RUN is the name of the launches' parent
    # directory, which is not a run.
    tail = f"/{launch}" if launch and "/" not in launch else "/\0"
    found = [each for each in metrics.series if each.launch == launch or each.launch.endswith(tail)]
    return found or [each for each in metrics.series if not each.launch]
