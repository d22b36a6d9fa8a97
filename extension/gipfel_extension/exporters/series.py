"""Metrics of a run as series with steps: those its programs logged, and the hardware's by MLflow's names."""

import math
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import Device
from ..telemetry.store.overview import Overview, read_overview
from ..telemetry.user_metrics import UserMetric, UserMetrics, read_metrics

#: Points of hardware metrics in an export. MLflow takes about 1 000 in a second.
MAX_HARDWARE_POINTS = 30_000
_MIN_BUCKETS, _MAX_BUCKETS = 30, 4000
_MAX_NAME = 250
_STEP = "step"
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_\-. :/]")
_MEGABYTE, _PERCENT = 1e-6, 100.0


@dataclass(frozen=True)
class Series:
    """One metric over time; arrays of the same length, sorted by time.

    Parameters
    ----------
    time_ns
        UTC, in nanoseconds since 1970.
    """

    name: str
    step: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    values: NDArray[np.float64]


#: The hardware's metrics: the name by which MLflow draws it, else DCGM's in lower case; ours; and the factor.
_GPU = (
    ("utilization_percentage", "GPU_UTIL", _PERCENT),
    ("memory_usage_megabytes", "FB_USED", _MEGABYTE),
    ("power_usage_watts", "POWER_USAGE", 1.0),
    ("sm_active", "SM_ACTIVE", 1.0),
    ("tensor_active", "PIPE_TENSOR_ACTIVE", 1.0),
    ("dram_active", "DRAM_ACTIVE", 1.0),
)
_HOST = (
    ("cpu_utilization_percentage", "CPU_UTIL", _PERCENT),
    ("system_memory_usage_megabytes", "MEMORY_USED", _MEGABYTE),
    ("network_receive_megabytes", "NET_RX_BYTES", _MEGABYTE),
    ("network_transmit_megabytes", "NET_TX_BYTES", _MEGABYTE),
)
#: MLflow draws these as totals; the recorder has rates.
_TOTALS = ("network_receive_megabytes", "network_transmit_megabytes")


def user_series(run: Path, launch: str | None = "") -> list[Series]:
    """Return what programs logged: rank 0, or without a rank, under its own name, others as ``rank_3/loss``.

    Parameters
    ----------
    launch
        Only what this launch's ranks logged; "" for everything outside of launches.
    """
    metrics = read_metrics(run)
    own = UserMetrics(tuple(each for each in metrics.series if each.launch == launch))
    steps = {(each.node, each.rank): each for each in own.series if each.name == _STEP}
    found: dict[str, Series] = {}
    for each in own.series:
        if each.name == _STEP:
            continue
        name = _unique(metric_name(_ranked(each)), found)
        step = _steps(each, steps.get((each.node, each.rank)))
        found[name] = Series(name, step, each.time_ns, each.values)
    return list(found.values())


def hardware_series(run: Path, max_points: int = MAX_HARDWARE_POINTS) -> list[Series]:
    """Return means of GPUs and hosts, ``system/<node>/…``, in buckets so that there are at most `max_points`.

    An empty list if the run has no samples.
    """
    telemetry = run / "telemetry"
    if not telemetry.is_dir():
        return []
    wanted = tuple(dict.fromkeys(name for _, name, _ in (*_GPU, *_HOST)))
    overview = read_overview(telemetry, buckets=_MIN_BUCKETS, metrics=wanted)
    per_bucket = sum(len(_GPU if each.kind == "gpu" else _HOST) for each in overview.devices)
    if not per_bucket:
        return []
    buckets = max(_MIN_BUCKETS, min(_MAX_BUCKETS, max_points // per_bucket))
    if buckets > _MIN_BUCKETS:
        overview = read_overview(telemetry, buckets=buckets, metrics=wanted)
    return [each for row in range(len(overview.devices)) for each in _device_series(overview, row)]


def metric_name(text: str) -> str:
    """Return a name that MLflow accepts: its characters, no empty or dot segments, at most 250 characters."""
    plain = _NOT_ALLOWED.sub("_", text)[:_MAX_NAME]
    segments = [each for each in posixpath.normpath(f"/{plain}").split("/") if each]
    return "/".join(segments) or "_"


def _ranked(metric: UserMetric) -> str:
    return metric.name if metric.rank in {None, 0} else f"rank_{metric.rank}/{metric.name}"


def _unique(name: str, taken: dict[str, Series]) -> str:
    number, candidate = 2, name
    while candidate in taken:
        candidate = f"{name[: _MAX_NAME - 8]}_{number}"
        number += 1
    return candidate


def _steps(metric: UserMetric, steps: UserMetric | None) -> NDArray[np.int64]:
    """Return the step that was logged together with each value; without one, a counter from 0."""
    count = len(metric.time_ns)
    counter = np.arange(count, dtype=np.int64)
    if steps is None or not len(steps.time_ns):
        return counter
    at = np.searchsorted(steps.time_ns, metric.time_ns, side="right") - 1
    known = np.where(at >= 0, steps.values[np.maximum(at, 0)], math.nan)
    valid = np.isfinite(known) & (np.abs(known) < 2**53)
    return np.where(valid, np.where(valid, known, 0).astype(np.int64), counter)


def _device_series(overview: Overview, row: int) -> Iterator[Series]:
    device = overview.devices[row]
    for name, metric, factor in _GPU if device.kind == "gpu" else _HOST:
        if metric not in overview.mean:
            continue
        values = overview.mean[metric][row] * factor
        if name in _TOTALS:
            values = np.nancumsum(values) * overview.bucket_ns / 1e9
        known = np.flatnonzero(np.isfinite(overview.mean[metric][row]))
        if len(known):
            label = _prefix(device) + name
            yield Series(metric_name(label), known.astype(np.int64), overview.time_ns[known], values[known])


def _prefix(device: Device) -> str:
    node = (device.node or "node").replace("/", "_")
    return f"system/{node}/" if device.kind == "host" else f"system/{node}/gpu_{device.index or 0}_"
