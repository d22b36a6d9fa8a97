"""What a source of samples is, and the clock that it reads."""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ..events import Event
from ..sample import Device, Sample


class Clock(Protocol):
    """Time as sources and recorder see it."""

    def time_ns(self) -> int:
        """UTC in nanoseconds since the epoch."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that never goes back."""
        ...

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        """Wait that long, or until the event is set; whether it is set."""
        ...


class SystemClock:
    """The machine's clock."""

    def time_ns(self) -> int:
        """UTC in nanoseconds since the epoch."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that never goes back."""
        return time.monotonic_ns()

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        """Wait that long, or until the event is set; whether it is set."""
        return ended.wait(max(0.0, seconds))


@dataclass(frozen=True)
class SourceRequest:
    """What a source is opened for.

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
    """Something that samples devices; opened by one process and read by one thread.

    ``devices`` never change while it is open; ``simulated`` sources give made-up or replayed values. One that
    has an attribute ``fine`` which is True can be read ten times a second without being asked for that.
    """

    name: str
    simulated: bool
    devices: tuple[Device, ...]

    def read(self) -> list[Sample]:
        """One sample for each device that answered; may block for tens of milliseconds.

        Raises
        ------
        SourceError
            Nothing can be read now; the next call may succeed.
        """
        ...

    def close(self) -> None:
        """Give back what the source holds; it isn't read again."""
        ...


@runtime_checkable
class EventSource(Protocol):
    """A source that also sees what happens to its devices."""

    def events(self) -> list[Event]:
        """What happened since the last call."""
        ...


@runtime_checkable
class ProcessSource(Protocol):
    """A source that also knows which processes hold its devices."""

    def processes(self) -> list[tuple[int, str]]:
        """Ids of processes on this node, each with the UUID of a device that it holds."""
        ...


class AbsentSource:
    """The source of a machine that has nothing of the kind: no device, no sample."""

    simulated = False
    devices: tuple[Device, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self) -> list[Sample]:
        """No sample."""
        return []

    def close(self) -> None:
        """Hold nothing, give nothing back."""
