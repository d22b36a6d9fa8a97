"""Devices, samples, tables of samples, and their provenance: the types that all sources and views share.

A missing value is ``None`` in a :class:`Sample` and NaN in a :class:`SampleTable`; it is never 0.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gipfel_cluster.messages import GipfelError

from .metric_table import METRICS

#: Seconds between fine samples: used where a source is that fast and no interval is requested.
FINE_INTERVAL = 0.1
#: ``time_ns`` and ``monotonic_ns`` (int64) and one float64 column per metric, all of the same length.
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Device:
    """A GPU, a host as one job sees it, or a NIC of a node; `uuid` identifies it among all devices.

    Parameters
    ----------
    scope
        What the values cover: ``"job cgroup"`` or ``"process tree"`` for a host, ``"node"`` for a NIC; empty
        for a GPU.
    simulated
        True where the values are synthetic or replayed.
    """

    uuid: str
    kind: Literal["gpu", "host", "nic"]
    name: str
    index: int | None
    node: str = ""
    scope: str = ""
    simulated: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the device as a JSON-serializable dictionary."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Device":
        """Return the device of a dictionary that :meth:`to_json` made; ignore keys of later versions."""
        return cls(**{key: content[key] for key in cls.__dataclass_fields__ if key in content})


@dataclass(frozen=True)
class Sample:
    """One reading of one device.

    ``time_ns`` is UTC since the epoch, ``monotonic_ns`` the node's monotonic clock. Rates and fractions are
    means since the previous reading; an unknown metric is ``None`` or absent.
    """

    time_ns: int
    monotonic_ns: int
    device: str
    values: dict[str, float | None]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Sample":
        """Return the sample of a dictionary of its fields."""
        return cls(
            int(content["time_ns"]),
            int(content["monotonic_ns"]),
            str(content["device"]),
            dict(content["values"]),
        )


@dataclass(frozen=True)
class Provenance:
    """Origin of the samples of a segment; stored in the metadata of its schema.

    Parameters
    ----------
    interval
        Seconds between two samples.
    extra
        GPU metrics that were requested in addition to those that are always recorded (``METRICS``).
    """

    node: str = ""
    recorder: str = ""
    source: str = ""
    simulated: bool = False
    interval: float = 0.0
    devices: tuple[Device, ...] = ()
    extra: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, tuple[str, ...]]:
        """Metrics of each kind of device that is present, in the order in which they are written."""
        kinds = {device.kind for device in self.devices}
        extra = {"gpu": self.extra}
        return {
            kind: tuple(dict.fromkeys((*names, *extra.get(kind, ()))))
            for kind, names in METRICS.items()
            if kind in kinds
        }

    def to_metadata(self) -> dict[str, str]:
        """Return the provenance as strings, for the metadata of a schema."""
        return {
            "node": self.node,
            "recorder": self.recorder,
            "source": self.source,
            "simulated": "true" if self.simulated else "false",
            "interval": repr(self.interval),
            "devices": json.dumps([device.to_json() for device in self.devices]),
            "extra": json.dumps(self.extra),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "Provenance":
        """Return the provenance that :meth:`to_metadata` stored; missing entries become empty.

        Raises
        ------
        ValueError
            An entry is not one that :meth:`to_metadata` writes.
        """
        try:
            devices = tuple(Device.from_json(device) for device in json.loads(metadata.get("devices", "[]")))
            if not all(device.kind in METRICS and isinstance(device.uuid, str) for device in devices):
                raise ValueError("a device is neither a GPU, nor a host, nor a NIC")
            return cls(
                str(metadata.get("node", "")),
                str(metadata.get("recorder", "")),
                str(metadata.get("source", "")),
                metadata.get("simulated") == "true",
                float(metadata.get("interval", 0.0)),
                devices,
                tuple(str(name) for name in json.loads(metadata.get("extra", "[]"))),
            )
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"its metadata is not Gipfel's: {error}") from error


@dataclass(frozen=True)
class SegmentState:
    """Result of reading one segment file.

    ``state`` is ``closed`` (complete), ``open`` (intact, but without end mark: the recorder is running or was
    killed), ``torn`` (extra bytes after the last complete batch) or ``unreadable`` (nothing could be read).
    """

    name: str
    state: Literal["closed", "open", "torn", "unreadable"]
    rows: int = 0
    last_ns: int | None = None
    provenance: Provenance = Provenance()


@dataclass(frozen=True)
class SampleTable:
    """Samples of several devices as columns, sorted by time, one row per device and time.

    Parameters
    ----------
    columns
        Columns by device UUID; a device without samples has empty ones. A missing value is NaN.
    source
        Names of the sources of the samples, such as ``"host, nvml"``.
    interval
        Seconds between two samples; 0 where unknown.
    segments
        The files that were read.
    """

    devices: tuple[Device, ...] = ()
    columns: Mapping[str, Columns] | None = None
    source: str = ""
    interval: float = 0.0
    segments: tuple[SegmentState, ...] = ()

    def __getitem__(self, device: str) -> Columns:
        """Return the columns of a device by its UUID: ``time_ns``, ``monotonic_ns`` and its metrics."""
        return (self.columns or {})[device]

    def __contains__(self, device: object) -> bool:
        return device in (self.columns or {})

    @property
    def simulated(self) -> bool:
        """True where any device is simulated."""
        return any(device.simulated for device in self.devices)

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs, sorted by node and index."""
        return sorted_devices(self.devices, "gpu")

    @property
    def hosts(self) -> tuple[Device, ...]:
        """The hosts, sorted by node."""
        return sorted_devices(self.devices, "host")

    @property
    def nics(self) -> tuple[Device, ...]:
        """The NICs with counters of their own, sorted by node, index and name."""
        return sorted_devices(self.devices, "nic")

    @property
    def rows(self) -> int:
        """Number of samples of all devices."""
        return sum(len(columns["time_ns"]) for columns in (self.columns or {}).values())

    @property
    def last_ns(self) -> int | None:
        """UTC time of the newest sample; None without samples."""
        times = [int(c["time_ns"][-1]) for c in (self.columns or {}).values() if len(c["time_ns"])]
        return max(times, default=None)

    def between(self, since_ns: int | None, end_ns: int | None = None) -> "SampleTable":
        """Return the samples at or after a time and before another; devices without samples are kept.

        None leaves an end open.
        """
        bounds = (-(2**63) if since_ns is None else since_ns, 2**63 - 1 if end_ns is None else end_ns)
        kept = {}
        for device, columns in (self.columns or {}).items():
            rows = slice(*np.searchsorted(columns["time_ns"], bounds).tolist())
            kept[device] = {name: column[rows] for name, column in columns.items()}
        return replace(self, columns=kept)

    def samples(self, device: Device) -> list[Sample]:
        """Return the samples of one device; a missing value is None."""
        columns = self[device.uuid]
        times = zip(columns["time_ns"].tolist(), columns["monotonic_ns"].tolist(), strict=True)
        return [
            Sample(time_ns, monotonic_ns, device.uuid, values_at(columns, row))
            for row, (time_ns, monotonic_ns) in enumerate(times)
        ]

    @classmethod
    def union(
        cls, tables: Sequence["SampleTable"], *, metrics: Collection[str] | None = None
    ) -> "SampleTable":
        """Return the union of tables without duplicate times of a device; an empty table for no tables.

        Parameters
        ----------
        metrics
            Metrics to keep; None for all.
        """
        devices = {device.uuid: device for table in tables for device in table.devices}
        parts: dict[str, list[Columns]] = {uuid: [] for uuid in devices}
        for table in tables:
            for uuid, own in (table.columns or {}).items():
                if uuid in parts:
                    parts[uuid].append(own)
        columns = {uuid: _join(parts[uuid], device.kind, metrics) for uuid, device in devices.items()}
        sources = dict.fromkeys(part for table in tables for part in table.source.split(", ") if part)
        return cls(
            tuple(devices.values()),
            columns,
            ", ".join(sources),
            next((table.interval for table in reversed(tables) if table.interval), 0.0),
            tuple(segment for table in tables for segment in table.segments),
        )

    @classmethod
    def from_samples(
        cls, samples: Iterable[Sample], devices: Iterable[Device], *, source: str = "", interval: float = 0.0
    ) -> "SampleTable":
        """Return a table of samples; samples of devices that are not in `devices` are dropped."""
        known = tuple(devices)
        rows: dict[str, list[Sample]] = {device.uuid: [] for device in known}
        for sample in samples:
            rows.get(sample.device, []).append(sample)
        columns = {d.uuid: _join([_columns(rows[d.uuid], d.kind)], d.kind) for d in known}
        return cls(known, columns, source, interval)


def sorted_devices(devices: Iterable[Device], kind: str) -> tuple[Device, ...]:
    """Return the devices of one kind, sorted by node and index; simulated ones last."""
    found = (device for device in devices if device.kind == kind)
    return tuple(sorted(found, key=lambda d: (d.simulated, d.node, d.index or 0, d.uuid)))


def group_means(values: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the means, along the last axis, of groups that begin at `starts`; NaN where none is known."""
    known = np.isfinite(values)
    counts = np.add.reduceat(known, starts, axis=-1, dtype=np.int64)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts, axis=-1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def metric_names(columns: Columns) -> tuple[str, ...]:
    """Return the names of a device's metrics: those of its kind, and extra ones."""
    return tuple(name for name in columns if name not in ("time_ns", "monotonic_ns"))


def values_at(columns: Columns, row: int) -> dict[str, float | None]:
    """Return a device's values in a row; a missing one is None."""
    numbers = {metric: float(columns[metric][row]) for metric in metric_names(columns)}
    return {metric: None if np.isnan(value) else value for metric, value in numbers.items()}


class SourceError(GipfelError):
    """A source or recording that cannot be opened or read; problem and fix are one sentence each."""

    exit_status = 2


def _columns(samples: list[Sample], kind: str) -> Columns:
    columns: Columns = {
        "time_ns": np.array([s.time_ns for s in samples], np.int64),
        "monotonic_ns": np.array([s.monotonic_ns for s in samples], np.int64),
    }
    extra = (metric for sample in samples for metric in sample.values)
    for metric in dict.fromkeys((*METRICS[kind], *extra)):
        columns[metric] = np.array([s.values.get(metric) for s in samples], np.float64)
    return columns


def _join(parts: list[Columns], kind: str, metrics: Collection[str] | None = None) -> Columns:
    """Concatenate columns, sorted by time, without duplicate times."""
    if not parts:
        parts = [_columns([], kind)]
    times = np.concatenate([part["time_ns"] for part in parts])
    times, order = np.unique(times, return_index=True)
    joined: Columns = {"time_ns": times}
    for name in dict.fromkeys((*("monotonic_ns", *METRICS[kind]), *(n for part in parts for n in part))):
        if name == "monotonic_ns" or (name != "time_ns" and (metrics is None or name in metrics)):
            # A recording of an earlier version, or one with fewer extra metrics, lacks some columns.
            held = [part.get(name, np.full(len(part["time_ns"]), np.nan)) for part in parts]
            joined[name] = np.concatenate(held)[order]
    return joined
