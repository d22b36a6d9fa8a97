"""Processes that a vetting run starts: time limits, stops, failures, and orphans."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gipfel_extension.vetting import children
from gipfel_extension.vetting.children import LocalProbes, start_function, start_program
from gipfel_extension.vetting.probing import ProbeSpec


def _ended(child: Any, limit_s: float = 30) -> Any:
    end = time.monotonic() + limit_s
    while not child.advance():
        assert time.monotonic() < end
        time.sleep(0.02)
    return child


def test_a_child_at_its_limit_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    script = f"sleep 4242 & echo $! >{tmp_path}/pid; echo said; wait"
    child = start_program(["sh", "-c", script], stdin=b"", environment=os.environ, limit_s=1)
    _ended(child)
    assert (child.timed_out, child.killed, bytes(child.output)) == (True, True, b"said\n")
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_stopped_child_is_noticed_long_before_its_limit() -> None:
    child = start_program(["sleep", "1000"], stdin=b"", environment=os.environ, limit_s=900)
    os.kill(child.pid, signal.SIGSTOP)
    assert _ended(child, 60).stopped


def test_a_function_in_a_child_gives_bytes_or_says_what_broke() -> None:
    assert bytes(_ended(start_function(lambda: b"x" * 300_000, limit_s=30)).output) == b"x" * 300_000
    broken = _ended(start_function(lambda: bytes(1 // 0), limit_s=30))
    assert broken.status == 1
    assert b"ZeroDivisionError" in broken.errors


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port where every further connection waits for ever: its queue is full."""
    with socket.socket() as server, contextlib.ExitStack() as clients:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()[1]


def test_a_killed_coordinator_takes_everything_along(tmp_path: Path, deaf: int) -> None:
    protocol = tmp_path / "p.yaml"
    protocol.write_text(
        "name: p\nchecks:\n- {name: far, type: internet, time_limit: 100 s,"
        f" parameters: {{host: 127.0.0.1, port: {deaf}, seconds: 90}}}}\n"
    )
    runs = str(tmp_path / "runs")
    kept = {name: each for name, each in os.environ.items() if name in {"PATH", "LANG"}}
    environment = {**kept, "HOME": str(tmp_path), "GIPFEL_RUNS": runs}
    argv = [sys.executable, "-m", "gipfel_extension.cli", "vet", str(protocol)]
    process = subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not any("run.worker" in words for words in _of(runs)):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    end = time.monotonic() + 30
    while _of(runs):
        assert time.monotonic() < end, _of(runs)
        time.sleep(0.05)
    (report,) = (json.loads(path.read_text()) for path in Path(runs).glob("*/vetting.json"))
    assert (report["complete"], report["good_nodes"], report["ended_ns"]) == (False, [], None)


def _of(runs: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"GIPFEL_RUNS={runs}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_a_stopped_probe_of_a_nodes_own_check_is_ended_long_before_its_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(children, "STOPPED_S", 0.3)
    file = tmp_path / "probe.py"
    file.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    started = time.monotonic()
    answer = LocalProbes(sys.executable, os.environ).run(ProbeSpec(argv=(str(file),), time_limit_s=600))
    assert answer.error == "The probe was stopped by SIGSTOP and did not continue."
    assert time.monotonic() - started < 300
