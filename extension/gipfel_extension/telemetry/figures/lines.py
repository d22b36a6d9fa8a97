"""Lines of an overview: one metric of one device, or of all of them together."""

import warnings
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..sample import Device
from .rows import Line

if TYPE_CHECKING:
    from ..overview.read import Overview

Floats = NDArray[np.float64]

#: So many buckets without a sample are a pause.
_GAP_BUCKETS = 3


def milliseconds(overview: "Overview") -> list[int]:
    """The buckets' starts, UTC in milliseconds since the epoch."""
    times: list[int] = (overview.time_ns // 1_000_000).tolist()
    return times


def span_ms(overview: "Overview") -> tuple[int, int] | None:
    """From the first bucket's start to the last one's end."""
    if not len(overview.time_ns):
        return None
    return int(overview.time_ns[0] // 1_000_000), int(
        (overview.time_ns[-1] + overview.bucket_ns) // 1_000_000
    )


def rows_by_device(overview: "Overview") -> dict[str, int]:
    """The row of each device in the overview's arrays."""
    return {device.uuid: row for row, device in enumerate(overview.devices)}


def gpus_of(overview: "Overview") -> tuple[Device, ...]:
    """The GPUs, by node and index."""
    found = (device for device in overview.devices if device.kind == "gpu")
    return tuple(sorted(found, key=lambda d: (d.simulated, d.node, d.index or 0, d.uuid)))


def hosts_of(overview: "Overview") -> tuple[Device, ...]:
    """The hosts, by node."""
    found = (device for device in overview.devices if device.kind == "host")
    return tuple(sorted(found, key=lambda d: (d.simulated, d.node)))


def series(overview: "Overview", metric: str, device: Device) -> Floats:
    """A metric of one device; NaN where nobody knows it."""
    rows = overview.mean.get(metric)
    if rows is None:
        return np.full(len(overview.time_ns), np.nan)
    return np.asarray(rows[rows_by_device(overview)[device.uuid]], np.float64)


def together(overview: "Overview", metric: str, devices: tuple[Device, ...], *, add: bool = False) -> Floats:
    """A metric's mean over devices, or its sum; devices without a value don't count."""
    rows = overview.mean.get(metric)
    if rows is None or not devices:
        return np.full(len(overview.time_ns), np.nan)
    places = rows_by_device(overview)
    chosen = np.asarray(rows, np.float64)[[places[device.uuid] for device in devices]]
    with warnings.catch_warnings():
        # A bucket in which no device has a value is no mistake.
        warnings.simplefilter("ignore", RuntimeWarning)
        found: Floats = np.nanmean(chosen, axis=0)
        return found * np.isfinite(chosen).sum(axis=0) if add else found


def numbers(values: Floats, digits: int = 3) -> list[float | None]:
    """Values for JSON: None where they are missing."""
    return [round(value, digits) if np.isfinite(value) else None for value in values.tolist()]


def number_rows(values: Floats, digits: int) -> list[list[float | None]]:
    """Rows of values for JSON: None where they are missing."""
    known = np.isfinite(values)
    rows: list[list[float | None]] = np.round(values, digits).tolist()
    for row, place in np.argwhere(~known).tolist():
        rows[row][place] = None
    return rows


def points(overview: "Overview", values: Floats, digits: int = 3) -> tuple[list[int], list[float | None]]:
    """Times and values of a line: a bucket or two without a sample are passed over, a pause is a gap."""
    known = np.flatnonzero(np.isfinite(values))
    times = milliseconds(overview)
    x: list[int] = []
    y: list[float | None] = []
    before = -1
    for place in known.tolist():
        if x and place - before > _GAP_BUCKETS:
            x.append(times[before + 1])
            y.append(None)
        x.append(times[place])
        y.append(round(float(values[place]), digits))
        before = place
    return x, y


def coarser(overview: "Overview", buckets: int) -> "Overview":
    """The same time in at most so many buckets, each of several of those before."""
    size = -(-len(overview.time_ns) // buckets) if len(overview.time_ns) else 1
    if size == 1:
        return overview
    starts = np.arange(0, len(overview.time_ns), size)
    mean = {}
    for metric, rows in overview.mean.items():
        values = np.asarray(rows, np.float64)
        known = np.isfinite(values)
        count = np.add.reduceat(known, starts, axis=1, dtype=np.int64)
        total = np.add.reduceat(np.where(known, values, 0.0), starts, axis=1)
        mean[metric] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    # What is drawn coarsely needs the means alone.
    return replace(
        overview,
        time_ns=overview.time_ns[starts],
        bucket_ns=overview.bucket_ns * size,
        mean=mean,
        low={},
        high={},
        count={},
    )


def only(overview: "Overview", uuids: Collection[str]) -> "Overview":
    """The overview of some of its devices."""
    rows = [row for row, device in enumerate(overview.devices) if device.uuid in uuids]
    if len(rows) == len(overview.devices):
        return overview
    return replace(
        overview,
        devices=tuple(overview.devices[row] for row in rows),
        mean={metric: values[rows] for metric, values in overview.mean.items()},
        low={metric: values[rows] for metric, values in overview.low.items()},
        high={metric: values[rows] for metric, values in overview.high.items()},
        count={metric: values[rows] for metric, values in overview.count.items()},
    )


def line_trace(
    line: Line, uid: str, points: tuple[list[int], list[float | None]], *, dark: bool
) -> dict[str, Any]:
    """A line as plotly's trace, with its unit in the hover."""
    digits = ".0f" if line.unit in ("%", "MHz", "W") else ".1f"
    return {
        "type": "scatter",
        "mode": "lines",
        "uid": uid,
        "name": line.label,
        "x": points[0],
        "y": points[1],
        "connectgaps": False,
        "line": {"color": line.dark if dark else line.light, "dash": line.dash, "width": 1.6},
        "hovertemplate": f"{line.label} %{{y:{digits}}} {line.unit}<extra></extra>",
    }


def gpu_name(device: Device, *, several: bool) -> str:
    """How people call a GPU: its number, with its node where there are several."""
    number = device.uuid[:12] if device.index is None else str(device.index)
    return f"{device.node} {number}" if several and device.node else f"GPU {number}"


def plain(text: str) -> str:
    """A text that somebody else wrote, so that plotly takes it for nothing but text."""
    return "".join(c if c.isprintable() else " " for c in text).replace("<", "_").replace("%{", "% {")
