"""Runs with real recorders, in a directory of each test."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gipfel_widgets import Measurement, measure


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where run folders go; the test belongs to no run."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("GIPFEL_RUNS", str(folder))
    monkeypatch.delenv("GIPFEL_RUN", raising=False)
    monkeypatch.delenv("GIPFEL_SOCKETS", raising=False)
    return folder


@pytest.fixture
def recording() -> Iterator[Callable[..., Measurement]]:
    """Starts measurements with a short interval, and ends them."""
    started: list[Measurement] = []

    def start(source: str, interval: float = 0.1) -> Measurement:
        started.append(measure(source, interval))
        return started[-1].start()

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Path]:
    """Be the only rank; return a directory for checkpoints."""
    dist = pytest.importorskip("torch.distributed")
    before = signal.getsignal(signal.SIGUSR1)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield tmp_path / "checkpoints"
    dist.destroy_process_group()
    signal.signal(signal.SIGUSR1, before)


def recorders(pid: int | None = None) -> list[psutil.Process]:
    """The recorder processes below a process."""
    children = psutil.Process(pid or os.getpid()).children(recursive=True)
    return [child for child in children if "gipfel_extension.recorder" in child.cmdline()]


def wait_for(check: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Return what a check gives as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"nothing within {seconds:g} s"
        time.sleep(0.05)
    return found


@pytest.fixture(name="recorders")
def _recorders() -> Callable[..., list[psutil.Process]]:
    return recorders


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., Any]:
    return wait_for
