"""What a source of samples is, and the clock that it reads."""

import threading
import time
from typing import Protocol

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


class Source(Protocol):
    """Something that samples devices; opened by one process and read by one thread.

    ``devices`` never change while it is open; ``simulated`` sources give made-up or replayed values.
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
