"""Sources of samples: what one is, and how one is opened by the name that people give to ``--source``.

Another package brings one by an entry point of the group :data:`ENTRY_POINTS`.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..events import Event
from ..sample import Device, Sample, SourceError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "ENTRY_POINTS",
    "AbsentSource",
    "Clock",
    "EventSource",
    "ProcessSource",
    "Source",
    "SourceError",
    "SourceRequest",
    "SystemClock",
    "open_source",
    "source_names",
]

#: The group of entry points: name, and a callable that takes what follows the colon in ``--source`` (empty
#: where nothing does) and a `SourceRequest`, and gives a `Source`.
ENTRY_POINTS = "gipfel.sources"
#: Built in: they take precedence over installed ones. Each is imported when it is opened, so that a
#: recorder starts with no more than it reads.
_SOURCES: Mapping[str, str] = {
    "auto": "auto:open_auto",
    "nvml": "nvml:open_nvml",
    "dcgm": "dcgm:open_dcgm",
    "exporter": "prometheus:open_exporter",
    "prometheus": "prometheus:open_prometheus",
    "amdsmi": "amd:open_amdsmi",
    "host": "host:open_host",
    "replay": "simulated:open_replay",
    "synthetic": "simulated:open_synthetic",
}


class Clock(Protocol):
    """Clock of sources and recorder; tests pass their own."""

    def time_ns(self) -> int:
        """Return UTC in nanoseconds since the epoch."""
        ...

    def monotonic_ns(self) -> int:
        """Return nanoseconds of a clock that never goes back."""
        ...

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        """Wait that long, or until the event is set; return whether it is set."""
        ...


class SystemClock:
    """The machine's clock."""

    def time_ns(self) -> int:
        """Return UTC in nanoseconds since the epoch."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Return nanoseconds of a clock that never goes back."""
        return time.monotonic_ns()

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        """Wait that long, or until the event is set; return whether it is set."""
        return ended.wait(max(0.0, seconds))


@dataclass(frozen=True)
class SourceRequest:
    """Parameters with which a source is opened.

    Parameters
    ----------
    interval
        Seconds between two reads.
    root_pid
        The process whose tree is the job; None for this process.
    environment
        ``CUDA_VISIBLE_DEVICES`` and its like name the job's GPUs, ``GIPFEL_NODE`` this node.
    metrics
        Metrics beside those that are always recorded, by name; a source leaves out what it can't give.
    """

    interval: float = 1.0
    root_pid: int | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Clock = field(default_factory=SystemClock)
    metrics: tuple[str, ...] = ()


class Source(Protocol):
    """A source of samples; opened by one process and read by one thread.

    ``devices`` never change while it is open; ``simulated`` sources give made-up or replayed values. One that
    has an attribute ``fine`` which is True can be read ten times a second without being asked for that.
    """

    name: str
    simulated: bool
    devices: tuple[Device, ...]

    def read(self) -> list[Sample]:
        """Return a sample of each device that answered; may block for tens of milliseconds.

        Raises
        ------
        SourceError
            Nothing can be read now; the next call may succeed.
        """
        ...

    def close(self) -> None:
        """Give back what the source holds; it isn't read again."""
        ...


def open_source(spec: str, request: SourceRequest | None = None) -> Source:
    """Open a source by name.

    Parameters
    ----------
    spec
        ``host``; ``auto`` (``nvml``, with ``dcgm`` where no GPU has GPM and the daemon answers; else
        ``amdsmi``; nothing where the job has no such GPU); ``nvml``; ``dcgm``; ``amdsmi``;
        ``exporter:URL``; ``prometheus:URL``; ``replay:FILE``; ``synthetic:NAME`` and ``synthetic:NAME:N`` for
        N GPUs; or what another package brings.

    Raises
    ------
    SourceError
        No such source, or nothing for it on this machine.
    """
    name, _, argument = spec.partition(":")
    return _opener(name, spec)(argument, request or SourceRequest())


def source_names() -> tuple[str, ...]:
    """Return the names of all sources, those of other packages last."""
    return (*_SOURCES, *sorted(_installed().keys() - _SOURCES.keys()))


def no_argument(name: str, argument: str) -> None:
    """Refuse what follows the colon of a source that takes nothing.

    Raises
    ------
    SourceError
        There is something.
    """
    if argument:
        raise SourceError(f"The source {name} takes nothing after a colon: {argument!r}.", f"Use {name}.")


@runtime_checkable
class EventSource(Protocol):
    """A source that also sees what happens to its devices."""

    def events(self) -> list[Event]:
        """Return what happened since the last call."""
        ...


@runtime_checkable
class ProcessSource(Protocol):
    """A source that also knows which processes hold its devices."""

    def processes(self) -> list[tuple[int, str]]:
        """Return IDs of processes on this node, each with the UUID of a device that it holds."""
        ...


class AbsentSource:
    """The source of a machine that has nothing of the kind: no device, no sample."""

    simulated = False
    devices: tuple[Device, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self) -> list[Sample]:
        """Return no sample."""
        return []

    def close(self) -> None:
        """Hold nothing, give nothing back."""


_Opener = Callable[[str, SourceRequest], Source]


def _opener(name: str, spec: str) -> _Opener:
    if name in _SOURCES:
        module, _, function = _SOURCES[name].partition(":")
        opener: _Opener = getattr(import_module(f".{module}", __name__), function)
        return opener
    found = _installed().get(name)
    if found is None:
        raise SourceError(f"There is no source {spec!r}.", f"Use one of {', '.join(source_names())}.")
    try:
        loaded: _Opener = found.load()
    except Exception as error:
        raise SourceError(
            f"The source {name} of {found.value} can't be imported: {error}.", "Install what it needs."
        ) from error
    return loaded


def _installed() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and for names that are not ours

    return {each.name: each for each in entry_points(group=ENTRY_POINTS)}
