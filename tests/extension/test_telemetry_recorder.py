"""The recorder: a real process that is killed, failing sources, failing disks."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gipfel_extension.recorder import Recorder, Settings
from gipfel_extension.telemetry.sample import Device, Sample, SourceError
from gipfel_extension.telemetry.store.segments import read_samples
from gipfel_extension.topology.read import read_topology


class SetClock:
    """A clock that advances by waits, and by the time of a slow source."""

    def __init__(self) -> None:
        self.now_ns = 10**18
        self.waits: list[float] = []

    def time_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        self.waits.append(seconds)
        self.now_ns += max(0, int(seconds * 1e9))
        return ended.is_set()


class CountingSource:
    """A GPU that counts its readings; fails at those that are named, and ends the recorder after the last."""

    simulated = False

    def __init__(
        self, clock: SetClock, ended: threading.Event, *, ticks: int, fails: tuple[int, ...] = ()
    ) -> None:
        self.name = "counting"
        self.devices = (Device("GPU-1", "gpu", "GPU", 0),)
        self.clock, self.ended, self.ticks, self.fails = clock, ended, ticks, fails
        self.slow: dict[int, float] = {}
        self.reads = 0
        self.closed = False

    def read(self) -> list[Sample]:
        self.reads += 1
        if self.reads >= self.ticks:
            self.ended.set()
        self.clock.now_ns += int(self.slow.get(self.reads, 0) * 1e9)
        if self.reads in self.fails:
            raise SourceError("The GPU fell off the bus.")
        return [
            Sample(self.clock.time_ns(), self.clock.monotonic_ns(), "GPU-1", {"SM_ACTIVE": float(self.reads)})
        ]

    def close(self) -> None:
        self.closed = True


class Listener:
    """A publisher that keeps what is sent."""

    def __init__(self) -> None:
        self.ticks: list[Any] = []

    def send(self, tick: Any) -> None:
        self.ticks.append(tick)

    def close(self) -> None:
        pass


def recorded(
    folder: Path, *, ticks: int, fails: tuple[int, ...] = (), slow: dict[int, float] | None = None, **how: Any
):
    clock, ended, listener = SetClock(), threading.Event(), Listener()
    source = CountingSource(clock, ended, ticks=ticks, fails=fails)
    source.slow = slow or {}
    recorder = Recorder([source], Settings(folder, "n1", **how), sinks=[listener], clock=clock)
    recorder.run(ended)
    return source, listener, clock


def test_records_publishes_and_closes(tmp_path):
    source, listener, _ = recorded(tmp_path, ticks=5)
    table = read_samples(tmp_path)
    assert table["GPU-1"]["SM_ACTIVE"].tolist() == [1, 2, 3, 4, 5]
    assert [state.state for state in table.segments] == ["closed"]
    assert table.devices[0].node == "n1"
    assert source.closed
    assert [tick.seq for tick in listener.ticks] == [1, 2, 3, 4, 5, 6]
    assert listener.ticks[-1].ended


def test_ticks_neither_drift_nor_catch_up_after_a_delay(tmp_path):
    recorded_source, _, clock = recorded(tmp_path, ticks=6, slow={1: 0.3, 3: 2.4})
    times = (read_samples(tmp_path)["GPU-1"]["time_ns"] - 10**18) / 1e9
    assert recorded_source.reads == 6
    assert times.tolist() == pytest.approx([0.3, 1.0, 4.4, 5.0, 6.0, 7.0])
    assert all(wait > 0 for wait in clock.waits)


def test_failing_source_gives_missing_values_and_one_event_until_it_recovers(tmp_path, caplog):
    _, listener, _ = recorded(tmp_path, ticks=6, fails=(2, 3, 4))
    values = read_samples(tmp_path)["GPU-1"]["SM_ACTIVE"]
    assert np.isnan(values).tolist() == [False, True, True, True, False, False]
    assert [tuple(e.message for e in tick.events) for tick in listener.ticks if tick.events] == [
        ("counting can't be read: The GPU fell off the bus.",),
        ("counting can be read again.",),
    ]
    assert len(caplog.records) == 2


def test_a_segment_ends_after_its_time_and_the_next_begins(tmp_path):
    recorded(tmp_path, ticks=10, rotate=4.0, flush=1.0)
    table = read_samples(tmp_path)
    assert len(table.segments) == 3
    assert {state.state for state in table.segments} == {"closed"}
    assert table["GPU-1"]["SM_ACTIVE"].tolist() == list(range(1, 11))


def test_a_folder_that_cannot_be_written_keeps_samples_until_it_can(tmp_path):
    clock, ended, listener = SetClock(), threading.Event(), Listener()
    source = CountingSource(clock, ended, ticks=100)
    blocked = tmp_path / "telemetry"
    blocked.write_text("a file where the folder should be")
    recorder = Recorder([source], Settings(blocked, "n1"), sinks=[listener], clock=clock)
    for _ in range(3):
        recorder.tick()
        clock.wait(1.0, ended)
    blocked.unlink()
    for _ in range(3):
        recorder.tick()
        clock.wait(1.0, ended)
    recorder.close()
    assert read_samples(blocked)["GPU-1"]["SM_ACTIVE"].tolist() == [1, 2, 3, 4, 5, 6]
    events = [event.message for tick in listener.ticks for event in tick.events]
    assert len(events) == 2
    assert "can't be written" in events[0]
    assert "can be written again" in events[1]


@contextmanager
def running(*arguments: object, **how: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "gipfel_extension.recorder", *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **how)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def rows(folder: Path, at_least: int, seconds: float = 20.0) -> int:
    deadline = time.monotonic() + seconds
    while (found := read_samples(folder).rows) < at_least and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_after_sigkill_everything_up_to_the_last_flush_reads_back(tmp_path):
    folder = tmp_path / "telemetry"
    options = ["--telemetry", folder, "--node", "n1", "--interval", 0.05, "--flush", 0.2]
    with running(*options, "--source", "host", "--source", "synthetic:training") as process:
        flushed = rows(folder, 60)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    table = read_samples(folder)
    assert flushed >= 60
    assert table.rows >= flushed
    assert [state.state for state in table.segments] in (["open"], ["torn"])
    assert len(table.gpus) == 4
    steps = np.diff(table[table.gpus[0].uuid]["time_ns"]) / 1e9
    assert np.median(steps) == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_with_a_complete_segment(tmp_path, number):
    folder = tmp_path / "telemetry"
    with running("--telemetry", folder, "--node", "n1", "--interval", 0.1, "--source", "host") as process:
        rows(folder, 1)
        process.send_signal(number)
        assert process.wait(10) == 0
    assert [state.state for state in read_samples(folder).segments] == ["closed"]
    assert read_topology(tmp_path).nodes["n1"].numa[0].cores


def test_unavailable_source_is_logged_and_others_are_recorded(tmp_path):
    options = ["--telemetry", tmp_path, "--node", "n1", "--interval", 0.1]
    with running(*options, "--source", "replay:/nowhere.arrows", "--source", "host") as process:
        assert rows(tmp_path, 2) >= 2
        process.terminate()
        _, errors = process.communicate(timeout=10)
        assert process.returncode == 0
    assert errors.count("\n") == 1
    assert "/nowhere.arrows" in errors


def test_recorder_without_sources_logs_the_reason_and_exits(tmp_path):
    with running("--telemetry", tmp_path, "--node", "n1", "--source", "synthetic:unheard-of") as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert errors.count("\n") == 1
    assert "Traceback" not in errors


def test_too_long_socket_path_disables_only_the_live_stream(tmp_path):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    options = ["--telemetry", tmp_path / "t", "--node", "n1", "--interval", 0.1, "--sockets", deep]
    with running(*options, "--source", "host") as process:
        assert rows(tmp_path / "t", 2) >= 2
        process.terminate()
        _, errors = process.communicate(timeout=10)
    assert errors.count("\n") == 1
    assert "live stream can't be opened" in errors


def test_recorder_ends_with_its_parent(tmp_path):
    command = [sys.executable, "-m", "gipfel_extension.recorder", "--telemetry", str(tmp_path)]
    command += ["--node", "n1", "--interval", "0.1", "--source", "host", "--with-parent"]
    script = f"import subprocess, time; print(subprocess.Popen({command!r}).pid, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert rows(tmp_path, 1) >= 1
        parent.kill()
        parent.wait(10)
        deadline = time.monotonic() + 10
        while read_samples(tmp_path).segments[0].state != "closed" and time.monotonic() < deadline:
            time.sleep(0.05)
        assert read_samples(tmp_path).segments[0].state == "closed"
    finally:
        parent.kill()
        parent.communicate()
        line = Path(f"/proc/{child}/cmdline")
        if line.exists() and b"recorder" in line.read_bytes():
            os.kill(child, signal.SIGKILL)


def test_recording_needs_neither_zeromq_nor_jupyter_nor_pydantic():
    code = (
        "import sys\n"
        "barred = 'zmq tornado pydantic jupyter_server psutil matplotlib plotly'\n"
        "sys.modules.update(dict.fromkeys(barred.split()))\n"
        "import gipfel_extension.recorder, gipfel_extension.telemetry.store.segments\n"
        "import gipfel_extension.telemetry.figures.activity, gipfel_extension.telemetry.sources.nvml\n"
        "import gipfel_extension.telemetry.sources.host\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
