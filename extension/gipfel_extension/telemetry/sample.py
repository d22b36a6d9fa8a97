"""Devices, samples, the tables that are made of them, and their provenance.

Everything that shows or judges a run reads these, wherever the samples came from. Missing is ``None``
in a :class:`Sample`, NaN in a :class:`SampleTable`, and never 0.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .metric_table import METRICS

#: Seconds between samples where a source counts that fast and no other interval is asked for.
FINE_INTERVAL = 0.1
#: ``time_ns`` and ``monotonic_ns`` (int64) and one float64 column per metric, all of one length.
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Device:
    """A GPU, known by its UUID, or the host as the job sees it.

    Parameters
    ----------
    scope
        What the host's values cover: ``"job cgroup"`` or ``"process tree"``; empty for a GPU.
    simulated
        True where the values are synthetic or replayed.
    """

    uuid: str
    kind: Literal["gpu", "host"]
    name: str
    index: int | None
    node: str = ""
    scope: str = ""
    simulated: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the device as a dictionary that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Device":
        """Return the device of :meth:`to_json`; keys of a later version are left out."""
        return cls(**{key: content[key] for key in cls.__dataclass_fields__ if key in content})


@dataclass(frozen=True)
class Sample:
    """One reading of one device.

    ``time_ns`` is UTC since the epoch, ``monotonic_ns`` the node's monotonic clock. Rates and fractions are
    means since the reading before; a metric that is unknown is ``None`` or left out.
    """

    time_ns: int
    monotonic_ns: int
    device: str
    values: dict[str, float | None]

    def to_json(self) -> dict[str, Any]:
        """Return the sample as a dictionary that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Sample":
        """Return the sample of :meth:`to_json`."""
        return cls(
            int(content["time_ns"]),
            int(content["monotonic_ns"]),
            str(content["device"]),
            dict(content["values"]),
        )


@dataclass(frozen=True)
class Provenance:
    """Origin of the samples of a segment; travels in its schema's metadata.

    Parameters
    ----------
    interval
        Seconds between two samples.
    extra
        Metrics of its GPUs that were asked for beside those of ``METRICS``.
    """

    node: str
    recorder: str
    source: str
    simulated: bool
    interval: float
    devices: tuple[Device, ...]
    extra: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, tuple[str, ...]]:
        """The metrics of each kind of device that is there, in the order in which they are written."""
        kinds = {device.kind for device in self.devices}
        asked = {"gpu": self.extra}
        return {
            kind: tuple(dict.fromkeys((*names, *asked.get(kind, ()))))
            for kind, names in METRICS.items()
            if kind in kinds
        }

    def to_metadata(self) -> dict[str, str]:
        """Return the provenance as texts, for a schema's metadata."""
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
    def from_metadata(cls, given: Mapping[str, Any]) -> "Provenance":
        """Return the provenance of :meth:`to_metadata`; what is missing is empty.

        Raises
        ------
        ValueError
            A value is none that :meth:`to_metadata` writes.
        """
        try:
            devices = tuple(Device.from_json(device) for device in json.loads(given.get("devices", "[]")))
            if not all(device.kind in ("gpu", "host") and isinstance(device.uuid, str) for device in devices):
                raise ValueError("a device is neither GPU nor host")
            return cls(
                str(given.get("node", "")),
                str(given.get("recorder", "")),
                str(given.get("source", "")),
                given.get("simulated") == "true",
                float(given.get("interval", 0.0)),
                devices,
                tuple(str(name) for name in json.loads(given.get("extra", "[]"))),
            )
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"its metadata is not ours: {error}") from error


@dataclass(frozen=True)
class SegmentState:
    """Result of reading one segment file.

    ``state`` is ``closed`` (complete), ``open`` (whole so far, no end mark: the recorder runs or was killed),
    ``torn`` (bytes after the last whole batch) or ``unreadable`` (nothing could be read).
    """

    name: str
    state: Literal["closed", "open", "torn", "unreadable"]
    rows: int = 0
    node: str = ""
    recorder: str = ""
    source: str = ""
    interval: float = 0.0
    last_ns: int | None = None
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True)
class SampleTable:
    """Samples of several devices as columns, sorted by time, one row per device and time.

    Parameters
    ----------
    columns
        Device UUID to its columns; a device without a sample has empty ones. Missing is NaN.
    source
        Where the samples came from, such as ``"host, nvml"``.
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

    def of(self, device: str) -> Columns:
        """Return columns of one device: ``time_ns``, ``monotonic_ns`` and the metrics of its kind."""
        return (self.columns or {})[device]

    def __contains__(self, device: object) -> bool:
        return device in (self.columns or {})

    @property
    def simulated(self) -> bool:
        """True where any device is simulated."""
        return any(device.simulated for device in self.devices)

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs, by node and index."""
        found = (device for device in self.devices if device.kind == "gpu")
        return tuple(sorted(found, key=lambda d: (d.simulated, d.node, d.index or 0, d.uuid)))

    @property
    def hosts(self) -> tuple[Device, ...]:
        """The hosts, by node."""
        found = (device for device in self.devices if device.kind == "host")
        return tuple(sorted(found, key=lambda d: (d.simulated, d.node)))

    @property
    def rows(self) -> int:
        """Number of samples of all devices."""
        return sum(len(columns["time_ns"]) for columns in (self.columns or {}).values())

    @property
    def last_ns(self) -> int | None:
        """UTC time of the newest sample, None where there is none."""
        times = [int(c["time_ns"][-1]) for c in (self.columns or {}).values() if len(c["time_ns"])]
        return max(times, default=None)

    def since(self, time_ns: int) -> "SampleTable":
        """Return the samples at or after a time; devices stay, also without a sample."""
        kept = {}
        for device, columns in (self.columns or {}).items():
            first = int(np.searchsorted(columns["time_ns"], time_ns))
            kept[device] = {name: column[first:] for name, column in columns.items()}
        return replace(self, columns=kept)

    def until(self, time_ns: int) -> "SampleTable":
        """Return the samples before a time; devices stay, also without a sample."""
        kept = {}
        for device, columns in (self.columns or {}).items():
            last = int(np.searchsorted(columns["time_ns"], time_ns))
            kept[device] = {name: column[:last] for name, column in columns.items()}
        return replace(self, columns=kept)

    def samples(self, device: Device) -> list[Sample]:
        """Return the rows of one device as samples; a missing value is None."""
        columns = self.of(device.uuid)
        found = []
        for row, time_ns in enumerate(columns["time_ns"]):
            numbers = {metric: float(columns[metric][row]) for metric in metric_names(columns)}
            values = {metric: None if np.isnan(value) else value for metric, value in numbers.items()}
            found.append(Sample(int(time_ns), int(columns["monotonic_ns"][row]), device.uuid, values))
        return found

    def merged(self, other: "SampleTable") -> "SampleTable":
        """Return both tables in one; a time that both hold is kept once."""
        return SampleTable.union((self, other))

    @classmethod
    def union(
        cls, tables: Sequence["SampleTable"], *, metrics: Collection[str] | None = None
    ) -> "SampleTable":
        """Return all tables in one, each time of a device once; an empty table where there is none.

        Parameters
        ----------
        metrics
            The only ones that are wanted; None for all.
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
        """Return a table of loose samples; those of devices that are not named are left out."""
        known = tuple(devices)
        rows: dict[str, list[Sample]] = {device.uuid: [] for device in known}
        for sample in samples:
            rows.get(sample.device, []).append(sample)
        columns = {d.uuid: _join([_columns(rows[d.uuid], d.kind)], d.kind) for d in known}
        return cls(known, columns, source, interval)


def metric_names(columns: Columns) -> tuple[str, ...]:
    """Return the metrics of a device's columns: those of its kind, and those asked for beside them."""
    return tuple(name for name in columns if name not in ("time_ns", "monotonic_ns"))


class SourceError(Exception):
    """A source that can't be opened or read: what happened, and what to do next, each one sentence."""

    def __init__(self, problem: str, fix: str = "") -> None:
        self.problem = " ".join(problem.split())
        self.fix = " ".join(fix.split())
        super().__init__(f"{self.problem} {self.fix}".strip())

    def _render_traceback_(self) -> list[str]:
        # IPython asks for it: in a cell, too, this is one sentence and not a stack of our own functions.
        return [str(self)]


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
    """Join parts, sorted by time, each time once."""
    if not parts:
        parts = [_columns([], kind)]
    times = np.concatenate([part["time_ns"] for part in parts])
    times, order = np.unique(times, return_index=True)
    joined: Columns = {"time_ns": times}
    for name in dict.fromkeys((*("monotonic_ns", *METRICS[kind]), *(n for part in parts for n in part))):
        if name == "monotonic_ns" or (name != "time_ns" and (metrics is None or name in metrics)):
            # A recording of an earlier version, or beside which less was asked for, lacks some.
            held = [part.get(name, np.full(len(part["time_ns"]), np.nan)) for part in parts]
            joined[name] = np.concatenate(held)[order]
    return joined
