"""Sources of samples: the protocol of a source, and :func:`open_source` for the names of ``--source``.

Other packages add sources through entry points of the group :data:`ENTRY_POINTS`.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

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

#: Group of entry points: a name, and a callable that takes the text after the colon in ``--source`` (empty
#: without a colon) and a `SourceRequest`, and returns a `Source`.
ENTRY_POINTS = "gipfel.sources"
#: Built-in sources as ``MODULE:FUNCTION``, which take precedence over entry points of the same name:
#: `_NODE_SOURCES` read this node, `_SOURCES` take an argument after the colon. A module is imported only when
#: its source is opened.
_NODE_SOURCES: Mapping[str, str] = {
    "auto": "auto:open_auto",
    "nvml": "nvml:NvmlSource",
    "dcgm": "dcgm:DcgmSource",
    "amdsmi": "amd:AmdSource",
    "host": "host:HostSource",
}
_SOURCES: Mapping[str, str] = {
    "exporter": "prometheus:open_exporter",
    "prometheus": "prometheus:open_prometheus",
    "replay": "simulated:open_replay",
    "synthetic": "simulated:open_synthetic",
}
log = logging.getLogger(__name__)


class Clock(Protocol):
    """Clock of sources and recorder; tests replace it."""

    def time_ns(self) -> int:
        """Return UTC in nanoseconds since the epoch."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds of a monotonic clock."""

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        """Wait for a number of seconds or until the event is set; return whether it is set."""


class SystemClock:
    """The machine's clock."""

    def time_ns(self) -> int:
        """Return UTC in nanoseconds since the epoch."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Return nanoseconds of a monotonic clock."""
        return time.monotonic_ns()

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        """Wait for a number of seconds or until the event is set; return whether it is set."""
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
        Variables that select the job's GPUs, such as ``CUDA_VISIBLE_DEVICES``; ``GIPFEL_NODE`` is its name.
    metrics
        Names of metrics to read in addition to those that are always recorded; unavailable ones are omitted.
    """

    interval: float = 1.0
    root_pid: int | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Clock = field(default_factory=SystemClock)
    metrics: tuple[str, ...] = ()


class Source(Protocol):
    """A source of samples; opened by one process and read by one thread.

    ``devices`` does not change while the source is open. ``simulated`` is True for synthetic or replayed
    values. A source with an attribute ``fine`` that is True is read ten times a second by default.
    """

    name: str
    simulated: bool = False
    devices: tuple[Device, ...]

    def read(self) -> list[Sample]:
        """Return a sample of each device that responded; may block for tens of milliseconds.

        Raises
        ------
        SourceError
            Nothing can be read; the next call may succeed.
        """

    def close(self) -> None:
        """Release the resources, if the source has any; it is not read again."""
        return


def open_source(spec: str, request: SourceRequest | None = None) -> Source:
    """Open a source by name.

    Parameters
    ----------
    spec
        ``host``; ``auto`` (``nvml``, with ``dcgm`` where no GPU has GPM and the daemon answers; else
        ``amdsmi``; nothing where the job has no such GPU); ``nvml``; ``dcgm``; ``amdsmi``;
        ``exporter:URL``; ``prometheus:URL``; ``replay:FILE``; ``synthetic:NAME``, a simulated workload such
        as ``synthetic:training``, and ``synthetic:NAME:N`` for N GPUs; or a source of another package.

    Raises
    ------
    SourceError
        The source does not exist, or has no devices on this machine.
    """
    name, _, argument = spec.partition(":")
    request = request or SourceRequest()
    if name not in _NODE_SOURCES:
        return _opener(name, spec)(argument, request)
    if argument:
        raise SourceError(
            f"The source {name} takes no argument after the colon: {argument!r}.", f"Use {name}."
        )
    return _imported(_NODE_SOURCES[name])(request)


def source_names() -> tuple[str, ...]:
    """Return the names of all sources; those of other packages come last."""
    built_in = (*_NODE_SOURCES, *_SOURCES)
    return (*built_in, *sorted(_installed().keys() - set(built_in)))


@runtime_checkable
class EventSource(Protocol):
    """A source that also reports events of its devices."""

    def events(self) -> list[Event]:
        """Return the events since the last call."""


@runtime_checkable
class ProcessSource(Protocol):
    """A source that also reports which processes use its devices."""

    def processes(self) -> list[tuple[int, str]]:
        """Return process ids on this node, each with the UUID of a device that the process uses."""


class AbsentSource(Source):
    """Source without devices and samples, for a machine that has no device of the requested kind."""

    devices: tuple[Device, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self) -> list[Sample]:
        """Return no samples."""
        return []


def import_library(module: str, problem: str, fix: str) -> Any:
    """Import the Python module of a driver.

    Raises
    ------
    SourceError
        The module cannot be imported; the error has this `problem` and `fix`.
    """
    try:
        return import_module(module)
    except Exception as error:
        # Without its driver a module may raise other errors than ImportError too.
        raise SourceError(problem, fix) from error


def attempt(error_type: type[Exception], function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of a driver's library returns; None, with a line in the log, on its errors."""
    try:
        return function(*arguments)
    except error_type as error:
        log.debug("%s: %s", getattr(function, "__name__", function), error)
        return None


_Opener = Callable[[str, SourceRequest], Source]


def _imported(place: str) -> Callable[..., Source]:
    module, _, name = place.partition(":")
    opener: Callable[..., Source] = getattr(import_module(f".{module}", __name__), name)
    return opener


def _opener(name: str, spec: str) -> _Opener:
    if name in _SOURCES:
        return _imported(_SOURCES[name])
    found = _installed().get(name)
    if found is None:
        raise SourceError(f"There is no source {spec!r}.", f"Use one of {', '.join(source_names())}.")
    try:
        loaded: _Opener = found.load()
    except Exception as error:
        raise SourceError(
            f"The source {name} of {found.value} can't be imported: {error}.", "Install its dependencies."
        ) from error
    return loaded


def _installed() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and needed only for sources of other packages

    return {each.name: each for each in entry_points(group=ENTRY_POINTS)}
