"""Line styles of metrics, and lines from an overview: of one device, or aggregated over devices."""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..metric_table import TABLE
from ..sample import Device, SampleTable, group_means, sorted_devices
from .palette import COLORS

if TYPE_CHECKING:
    from ..store.overview import Overview

Floats = NDArray[np.float64]

#: A run of more buckets without samples than this is drawn as a gap.
_GAP_BUCKETS = 3


@dataclass(frozen=True)
class Line:
    """Style of one line: colors for light and dark themes, and a dash that distinguishes it without color.

    ``factor`` converts the metric's unit to ``unit``; ``percent_of`` is the metric whose value is 100 %.
    """

    metric: str
    label: str
    light: str
    dark: str
    dash: str
    unit: str
    factor: float = 100.0
    percent_of: str = ""


def line_of(metric: str) -> Line:
    """Return the line style of a metric from the metric table.

    Raises
    ------
    KeyError
        The metric is not drawn as a line.
    """
    style = TABLE[metric].line_style
    if style is None:
        raise KeyError(metric)
    light, dark = COLORS[style.color]
    return Line(metric, style.label, light, dark, style.dash, style.unit, style.factor, style.percent_of)


GPU_LINES = tuple(map(line_of, ("GPU_UTIL", "SM_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE")))


#: Lines that are drawn only for advice whose evidence they are.
FURTHER_LINES = tuple(map(line_of, ("GR_ENGINE_ACTIVE", "SM_OCCUPANCY", "PIPE_FP32_ACTIVE")))


HOST_LINES = tuple(map(line_of, ("CPU_UTIL", "MEMORY_USED")))


IO_LINES = tuple(map(line_of, ("IO_READ_BYTES", "IO_WRITE_BYTES")))


LINK_LINES = tuple(
    line_of(f"{link}_{way}_BYTES")
    for link, ways in (("NVLINK", ("RX", "TX")), ("PCIE", ("RX", "TX")), ("C2C", ("RX_ALL", "TX_ALL")))
    for way in ways
)


CLOCK_LINES = (line_of("SM_CLOCK"),)


POWER_LINES = (line_of("POWER_USAGE"),)


MEMORY_LINES = (line_of("FB_USED"),)


TEMPERATURE_LINES = (line_of("GPU_TEMP"),)


#: Metrics that have a figure of their own, a line per GPU, in the order of the selection.
GAUGE_LINES: Mapping[str, Line] = {
    metric: line_of(metric)
    for metric in ("FB_USED", "SM_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "GPU_TEMP", "POWER_USAGE")
}


#: Lines of the activity figure by metric.
LINES: Mapping[str, Line] = {line.metric: line for line in (*GPU_LINES, *HOST_LINES, *IO_LINES)}


#: Lines of the figure of one GPU by metric.
DETAIL_LINES: Mapping[str, Line] = {
    line.metric: line
    for line in (
        *(*GPU_LINES, *MEMORY_LINES, *LINK_LINES),
        *(*TEMPERATURE_LINES, *CLOCK_LINES, *POWER_LINES),
    )
}


@dataclass(frozen=True)
class Row:
    """One row of the activity figure: a plot of one device."""

    title: str
    device: Device
    lines: tuple[Line, ...]
    percent: bool


def activity_rows(table: SampleTable) -> list[Row]:
    """Return a row per GPU, then two rows per host: CPU and memory, and I/O."""
    several = len({device.node for device in table.devices}) > 1
    rows = [
        Row(_gpu_title(device, position, several=several), device, GPU_LINES, percent=True)
        for position, device in enumerate(table.gpus)
    ]
    for host in table.hosts:
        node = f" {host.node}" if several else ""
        mark = " · simulated" if host.simulated else ""
        rows.append(Row(f"Host{node}{mark}", host, HOST_LINES, percent=True))
        rows.append(Row(f"I/O{node}, MB/s{mark}", host, IO_LINES, percent=False))
    return rows


def _gpu_title(device: Device, position: int, *, several: bool) -> str:
    number = position if device.index is None else device.index
    name = device.name.removeprefix("NVIDIA ")
    node = f"{device.node} · " if several and device.node else ""
    mark = " · simulated" if device.simulated and "simulated" not in name else ""
    return f"{node}GPU {number} · {name}{mark}"


def milliseconds(overview: "Overview") -> list[int]:
    """Return the start times of the buckets in UTC milliseconds since the epoch."""
    times: list[int] = (overview.time_ns // 1_000_000).tolist()
    return times


def span_ms(overview: "Overview") -> tuple[int, int] | None:
    """Return the start of the first bucket and the end of the last one; None without buckets."""
    if not len(overview.time_ns):
        return None
    return int(overview.time_ns[0] // 1_000_000), int(
        (overview.time_ns[-1] + overview.bucket_ns) // 1_000_000
    )


def rows_by_device(overview: "Overview") -> dict[str, int]:
    """Return the row index of each device in the overview's arrays."""
    return {device.uuid: row for row, device in enumerate(overview.devices)}


def gpus_of(overview: "Overview") -> tuple[Device, ...]:
    """Return the GPUs, sorted by node and index."""
    return sorted_devices(overview.devices, "gpu")


def hosts_of(overview: "Overview") -> tuple[Device, ...]:
    """Return the hosts, sorted by node."""
    return sorted_devices(overview.devices, "host")


def mean_over(overview: "Overview", metric: str, devices: tuple[Device, ...], *, add: bool = False) -> Floats:
    """Return a metric's mean over devices, or its sum with `add`; devices without a value are ignored."""
    rows = overview.mean.get(metric)
    if rows is None or not devices:
        return np.full(len(overview.time_ns), np.nan)
    row_of = rows_by_device(overview)
    chosen = np.asarray(rows, np.float64)[[row_of[device.uuid] for device in devices]]
    total, count = np.nansum(chosen, axis=0), np.isfinite(chosen).sum(axis=0)
    return np.where(count > 0, total if add else total / np.maximum(count, 1), np.nan)


def bounds_and_mean(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return minimum, mean and maximum of the known values of several devices; NaN where none is known."""
    with warnings.catch_warnings():
        # Buckets without any value are expected.
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmin(values, axis=0), np.nanmean(values, axis=0), np.nanmax(values, axis=0)


def line_values(
    overview: "Overview", line: Line, devices: tuple[Device, ...], *, add: bool = False
) -> Floats:
    """Return a line's metric in the line's unit: its mean over devices, or its sum with `add`."""
    values = mean_over(overview, line.metric, devices, add=add) * line.factor
    if line.percent_of:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = values / mean_over(overview, line.percent_of, devices, add=add)
    return values


def json_values(values: Floats, digits: int = 3) -> list[float | None]:
    """Return values as JSON-serializable floats; None where they are missing."""
    return [round(value, digits) if np.isfinite(value) else None for value in values.tolist()]


def json_rows(values: Floats, digits: int) -> list[list[float | None]]:
    """Return rows of values as JSON-serializable floats; None where they are missing."""
    known = np.isfinite(values)
    rows: list[list[float | None]] = np.round(values, digits).tolist()
    for row, column in np.argwhere(~known).tolist():
        rows[row][column] = None
    return rows


def points(overview: "Overview", values: Floats, digits: int = 3) -> tuple[list[int], list[float | None]]:
    """Return times (ms) and values of a line; up to two empty buckets are skipped, more become a gap."""
    known = np.flatnonzero(np.isfinite(values))
    times = milliseconds(overview)
    x: list[int] = []
    y: list[float | None] = []
    before = -1
    for bucket in known.tolist():
        if x and bucket - before > _GAP_BUCKETS:
            x.append(times[before + 1])
            y.append(None)
        x.append(times[bucket])
        y.append(round(float(values[bucket]), digits))
        before = bucket
    return x, y


def coarsened(overview: "Overview", buckets: int) -> "Overview":
    """Return the overview with at most `buckets` buckets, each merged from several."""
    size = -(-len(overview.time_ns) // buckets) if len(overview.time_ns) else 1
    if size == 1:
        return overview
    starts = np.arange(0, len(overview.time_ns), size)
    mean = {
        metric: group_means(np.asarray(rows, np.float64), starts) for metric, rows in overview.mean.items()
    }
    # Coarse lines need only the means.
    return replace(
        overview,
        time_ns=overview.time_ns[starts],
        bucket_ns=overview.bucket_ns * size,
        mean=mean,
        count={},
    )


def with_devices(overview: "Overview", uuids: Collection[str]) -> "Overview":
    """Return the overview restricted to some devices."""
    rows = [row for row, device in enumerate(overview.devices) if device.uuid in uuids]
    if len(rows) == len(overview.devices):
        return overview
    return replace(
        overview,
        devices=tuple(overview.devices[row] for row in rows),
        mean={metric: values[rows] for metric, values in overview.mean.items()},
        count={metric: values[rows] for metric, values in overview.count.items()},
    )


def line_trace(
    line: Line, uid: str, points: tuple[list[int], list[float | None]], *, dark: bool, scope: str = ""
) -> dict[str, Any]:
    """Return a line as a plotly trace, with its unit, and what its values cover, in the hover text."""
    covered = f" of the {scope}" if scope else ""
    digits = ".0f" if line.unit in ("%", "MHz", "W", "°C") else ".1f"
    return {
        "type": "scatter",
        "mode": "lines",
        "uid": uid,
        "name": line.label,
        "x": points[0],
        "y": points[1],
        "connectgaps": False,
        "line": {"color": line.dark if dark else line.light, "dash": line.dash, "width": 1.6},
        "hovertemplate": f"{line.label}{covered} %{{y:{digits}}} {line.unit}<extra></extra>",
    }


def gpu_name(device: Device, *, several: bool) -> str:
    """Return a GPU's display name: its number, with its node where there are several nodes."""
    number = device.uuid[:12] if device.index is None else str(device.index)
    return f"{device.node} {number}" if several and device.node else f"GPU {number}"


def plain_text(text: str) -> str:
    """Return untrusted text without anything that plotly interprets as markup."""
    return "".join(c if c.isprintable() else " " for c in text).replace("<", "_").replace("%{", "% {")
