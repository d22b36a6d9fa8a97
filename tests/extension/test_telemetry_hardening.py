"""A recorder with failing parts: flushed samples remain, and the reader reports missing ones."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from recorder_process import OneGpu, TwoClocks, kinds, running, until

from gipfel_extension.recorder import Recorder, Settings
from gipfel_extension.telemetry.live import LiveReader
from gipfel_extension.telemetry.store.segments import read_samples


def fill(path: Path) -> None:
    """A file of all the room that there is."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(512)):
            pass


def test_sigstop_leaves_a_gap_and_intact_segments(tmp_path: Path) -> None:
    with running(tmp_path, "--source", "synthetic:idle:1") as process:
        assert until(lambda: read_samples(tmp_path).rows > 3)
        process.send_signal(signal.SIGSTOP)
        before = read_samples(tmp_path).rows
        stopped = time.monotonic()
        assert not until(lambda: read_samples(tmp_path).rows > before + 3, 2.0)
        process.send_signal(signal.SIGCONT)
        gap = time.monotonic() - stopped
        assert until(lambda: read_samples(tmp_path).rows > before + 3)
        process.terminate()
        assert process.wait(20) == 0
    table = read_samples(tmp_path)
    steps = np.diff(table[table.gpus[0].uuid]["time_ns"]) / 1e9
    # What was missed is left out, not made up for.
    assert steps.max() >= gap - 0.5
    assert [each.state for each in table.segments] == ["closed"]


def test_source_with_invalid_values_does_not_end_the_recording(tmp_path: Path) -> None:
    clock = TwoClocks()
    source = OneGpu(clock)
    recorder = Recorder([source], Settings(tmp_path, "n1", flush=0.5), clock=clock)
    for reasons in (0.0, "many", 0.0, float("nan"), 0.0):
        source.reasons = reasons  # type: ignore[assignment]
        recorder.tick()
        clock.wait(1.0, threading.Event())
    recorder.close()
    levels = sorted(read_samples(tmp_path)["GPU-1"]["SM_ACTIVE"] * 1024)
    assert levels == pytest.approx([1, 3, 4, 5], rel=1e-3)
    assert {"source_lost", "samples_lost"} <= set(kinds(tmp_path))


def test_recorder_ends_if_its_parent_has_ended_before(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(20)
    # Named, it is known also where it ended while the recorder was loaded.
    with running(tmp_path, "--source", "host", f"--with-parent={gone.pid}") as process:
        assert process.wait(20) == 0
    assert read_samples(tmp_path).rows == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a small file system")
def test_full_disk_loses_no_samples_if_space_is_freed(tmp_path: Path) -> None:
    folder = tmp_path / "telemetry"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "gipfel-test", str(folder)], check=False
    )
    if mounted.returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        with running(folder, "--source", "synthetic:training:8") as process:
            assert until(lambda: read_samples(folder).rows > 8)
            fill(folder / "ballast")
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "The disk is full" in line
            flushed = read_samples(folder).rows
            (folder / "ballast").unlink()
            assert until(lambda: read_samples(folder).rows > flushed + 80)
            process.terminate()
            assert process.wait(20) == 0
        table = read_samples(folder)
        steps = np.diff(table[table.gpus[0].uuid]["time_ns"]) / 1e9
        assert steps.max() < 2.0, steps
        assert {"disk_full", "disk_back"} <= set(kinds(folder))
        assert "samples_lost" not in kinds(folder)
        # What was begun while nothing could be written is not left behind as files of nothing.
        assert [each.state for each in table.segments].count("unreadable") == 0
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_second_recorder_with_the_same_name_is_renamed(tmp_path: Path) -> None:
    folder, sockets = tmp_path / "telemetry", tmp_path / "s"
    sockets.mkdir()
    more = ("--source", "host", "--sockets", sockets)
    with running(folder, *more) as first:
        assert until(lambda: read_samples(folder).rows > 2)
        with running(folder, *more) as second, contextlib.closing(LiveReader(sockets)) as reader:
            heard: set[str] = set()

            def both() -> bool:
                tick = reader.receive(1.0)
                heard.update({tick.origin.recorder} if tick else set())
                return len(heard) == 2

            assert until(both), heard
            for process in (first, second):
                process.terminate()
                assert process.wait(20) == 0
    table = read_samples(folder)
    assert sorted((each.provenance.recorder, each.state) for each in table.segments) == [
        ("job", "closed"),
        ("job-2", "closed"),
    ]
    assert kinds(folder).count("second_recorder") == 1
    # The name is free again, also after a recorder that was killed.
    with running(folder, *more) as third:
        assert until(
            lambda: [each.provenance.recorder for each in read_samples(folder).segments].count("job") == 2
        )
        third.kill()
    assert sorted(each.provenance.recorder for each in read_samples(folder).segments) == [
        "job",
        "job",
        "job-2",
    ]
