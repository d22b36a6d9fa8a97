"""A recorder as a process, or with a fake clock and GPU; and its messages."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gipfel_extension.telemetry.events import read_events
from gipfel_extension.telemetry.sample import Device, Sample

_LIMIT_S = 60.0


def until(done: Any, seconds: float = _LIMIT_S) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := done()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@contextmanager
def running(folder: Path, *arguments: object, **how: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "gipfel_extension.recorder", "--telemetry", str(folder)]
    command += ["--node", "n1", "--interval", "0.1", "--flush", "0.2", *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **how)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate(timeout=10)


def kinds(folder: Path) -> list[str]:
    return [event.kind for event in read_events(folder)]


class TwoClocks:
    """A wall clock that can be set, beside one that can't."""

    def __init__(self) -> None:
        self.wall_ns = 1_700_000_000 * 10**9
        self.monotonic = 10**9

    def time_ns(self) -> int:
        return self.wall_ns

    def monotonic_ns(self) -> int:
        return self.monotonic

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        self.wall_ns += int(seconds * 1e9)
        self.monotonic += int(seconds * 1e9)
        return ended.is_set()


class OneGpu:
    """A GPU that counts its readings, and says what its clocks say."""

    name = "one"
    simulated = False
    devices = (Device("GPU-1", "gpu", "GPU", 0),)

    def __init__(self, clock: TwoClocks) -> None:
        self.clock = clock
        self.reads = 0
        self.reasons = 0.0

    def read(self) -> list[Sample]:
        self.reads += 1
        values = {"SM_ACTIVE": self.reads / 1024, "CLOCKS_EVENT_REASONS": self.reasons}
        return [Sample(self.clock.time_ns(), self.clock.monotonic_ns(), "GPU-1", values)]

    def close(self) -> None:
        pass
