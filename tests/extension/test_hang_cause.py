"""A launch that hangs: its supervisor's watch, the cause in one sentence, NCCL's RAS."""

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hang_dumps import Layout, make_hang

from gipfel_extension.telemetry.events import read_events
from gipfel_extension.training.flight_recorder import FlightReport, analyse
from gipfel_extension.training.flight_recorder.dump import dump_of
from gipfel_extension.training.launches.hang_cause import (
    HangCause,
    RasStatus,
    describe_cause,
    find_cause,
    read_ras,
    status_of,
)
from gipfel_extension.training.launches.hang_watch import HangWatch
from gipfel_extension.training.record import LaunchState

STACK = """\
Current thread 0x00007f (most recent call first):
  File "/opt/venv/lib/python3.11/threading.py", line 3 in wait
Thread 0x00007e (most recent call first):
  File "/usr/lib/python3.11/site-packages/torch/utils/data.py", line 9 in next
  File "/home/u/train.py", line 41 in read_batch
  File "/home/u/train.py", line 7 in main
"""


def ras_document(world: int, *, dead: tuple[int, ...] = (), counts: dict[int, int] | None = None) -> Any:
    """Return what RAS of NCCL 2.28 prints, with an inner communicator first."""
    alive = [rank for rank in range(world) if rank not in dead]
    ranks = [
        {"rank": rank, "host": "n0", "status": {"finalize": False},
         "collective_counts": {"AllReduce": (counts or {}).get(rank, 120), "AllGather": 3}}
        for rank in alive
    ]  # fmt: skip
    missing = [{"rank": rank, "unresponsive": True, "considered_dead": False} for rank in dead]
    inner = {"hash": "0x1", "ranks": ranks[:1], "missing_ranks": []}
    return {"nccl_version": "2.28.7", "communicators": [inner, {"ranks": ranks, "missing_ranks": missing}]}


class RasServer:
    """A server of RAS's protocol: text commands, then a line and a document."""

    def __init__(self, answer: bytes, *, hold: bool = False) -> None:
        self.asked = b""
        self._answer, self._hold = answer, hold
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while b"STATUS" not in self.asked:
                self.asked += connection.recv(1024)
            connection.sendall(self._answer)
            if self._hold:
                connection.recv(1)

    def close(self) -> None:
        self._listener.close()
        self._thread.join(5)


def ask(answer: bytes, world: int = 4, *, hold: bool = False) -> tuple[RasStatus | None, bytes]:
    server = RasServer(answer, hold=hold)
    try:
        return read_ras(world, server.address, 0.3), server.asked
    finally:
        server.close()


def test_ras_names_ranks_that_are_unreachable_or_behind() -> None:
    text = b"NCCL version 2.28.7\n" + json.dumps(ras_document(4, dead=(3,), counts={1: 118})).encode()
    found, asked = ask(text)
    assert found == RasStatus(unreachable=(3,), behind={1: 2})
    assert asked.splitlines()[-1] == b"VERBOSE STATUS"
    assert b"SET FORMAT json" in asked
    # NCCL keeps the connection open.
    assert ask(text, hold=True)[0] == found
    assert status_of(ras_document(4), 4) == RasStatus()
    # Communicators of other sizes are not the job's ranks.
    assert status_of(ras_document(4), 8) is None
    assert describe_cause(None, {}, None, found).message == "Cause: rank 3, which NCCL no longer reaches."
    behind = describe_cause(None, {}, None, RasStatus(behind={1: 2}))
    assert behind.ranks == (1,)
    assert behind.message == "Cause: rank 1, which according to NCCL launched fewer collectives than others."


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"OK\n", b"{", b"{}", b"[]", b'{"communicators": 3}',
        b'{"communicators": [{"ranks": [{}, 1, 2, 3]}]}',
        b'{"communicators": [{"ranks": [{"rank": "x"}], "missing_ranks": [1, 2, 3]}]}',
        b'{"communicators": ' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_not_ras_on_its_port_is_no_answer(answer: bytes) -> None:
    assert ask(answer)[0] is None


def test_a_port_without_ras_is_no_answer() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert read_ras(4, unused.getsockname(), 1.0) is None


def report_of_hang(fault: str) -> tuple[FlightReport, int]:
    """Return the report on made dumps of four ranks, and the rank at fault."""
    hang = make_hang(Layout(4, 1, 1), (3, fault), fault, buffer=2000, timing=False)
    return analyse([dump_of(raw, rank) for rank, raw in hang.dumps.items()]), hang.truth[0]


def test_dumps_come_before_silent_ranks_and_ras() -> None:
    report, rank = report_of_hang("host")
    found = describe_cause(report, {}, None, RasStatus(behind={(rank + 1) % 4: 3}))
    assert found.ranks == (rank,)
    assert found.message.startswith(f"Cause: rank {rank}")
    silent = describe_cause(None, {2: "it does not answer a signal"}, None, RasStatus(unreachable=(1,)))
    assert silent == HangCause(message="Cause: rank 2 (it does not answer a signal).", ranks=(2,))
    nothing = describe_cause(None, {}, None, None)
    assert nothing.ranks == ()
    assert nothing.message == "Cannot tell, because no rank wrote a dump."


class Ranks:
    """Ranks of a launch on this machine, as far as their supervisor sees them: files."""

    def __init__(self, folder: Path, count: int, *, silent: tuple[int, ...] = ()) -> None:
        self.folder = folder
        self._count, self._silent = count, silent
        for name in ("ranks", "progress"):
            (folder / name).mkdir(parents=True)
        for rank in range(count):
            self.record(rank)
        (folder / "state.json").write_text(LaunchState(phase="running", number=1).model_dump_json())

    def record(self, rank: int, *, status: int | None = None) -> None:
        ended = None if status is None else time.time_ns()
        content = {"rank": rank, "node": f"n{rank // 2}", "pid": 1, "world": self._count, "status": status,
                   "ended_ns": ended}  # fmt: skip
        (self.folder / "ranks" / f"{rank}.json").write_text(json.dumps(content))

    def report(self, steps: int, phase: str = "", *, busy: float = 0.0) -> None:
        for rank in range(self._count):
            content = {"rank": rank, "steps": steps, "phase": phase, "busy": busy, "time_ns": time.time_ns()}
            (self.folder / "progress" / str(rank)).write_text(json.dumps(content))

    def answer(self) -> None:
        """Wait for a request for stacks, and answer it as the ranks' watchers do."""
        end = time.monotonic() + 30
        while not (self.folder / "stacks.json").exists() and time.monotonic() < end:
            time.sleep(0.01)
        request = json.loads((self.folder / "stacks.json").read_text())
        answers = self.folder / "deeper" / request["id"]
        for rank in request["ranks"]:
            if rank not in self._silent:
                (answers / f"rank-{rank}.txt").write_text(STACK)
                (answers / f"answer-{rank}.json").write_text(json.dumps({"rank": rank, "bytes": len(STACK)}))


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path / "alps-1" / "launches" / "1", 4)


def test_a_rank_that_does_not_answer_a_signal_is_the_cause(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path / "1", 4, silent=(2,))
    ranks.record(0, status=0)
    answering = threading.Thread(target=ranks.answer)
    answering.start()
    found = find_cause(ranks.folder, ras=lambda world: RasStatus(behind={world - 1: 1}), gather_s=3)
    answering.join()
    assert found == HangCause(message="Cause: rank 2 (it does not answer a signal).", ranks=(2,))
    # Where all answer and wrote no dump, RAS is next.
    ranks = Ranks(tmp_path / "2", 4)
    answering = threading.Thread(target=ranks.answer)
    answering.start()
    found = find_cause(ranks.folder, ras=lambda world: RasStatus(behind={world - 1: 1}), gather_s=3)
    answering.join()
    assert found.ranks == (3,)


class Watched:
    """A watch of a launch with a clock of its own."""

    def __init__(self, ranks: Ranks, cause: HangCause) -> None:
        self.ranks, self.now = ranks, 0.0
        run = ranks.folder.parents[1]
        environment = {"GIPFEL_RUNS": str(run.parent), "HOME": str(run.parent)}
        self.state = LaunchState(phase="running", number=1, name="x", run=str(run), ranks=4)
        self._watch = HangWatch(ranks.folder, environment, 300.0, clock=lambda: self.now,
                                cause=lambda _: cause)  # fmt: skip

    def pass_s(self, seconds: float) -> None:
        """Let time pass, and look every ten seconds."""
        for _ in range(int(seconds / 10)):
            self.now += 10
            notice = self._watch.poll(self.state)
            self.state = self.state.model_copy(update={"hang": notice})

    def notice(self) -> bool:
        """Return whether a notice has been written by the thread that searches for the cause."""
        deadline = time.monotonic() + 10
        while self.state.hang is None and time.monotonic() < deadline:
            time.sleep(0.01)
            self.pass_s(10)
        return self.state.hang is not None

    def message(self) -> str:
        """Return the notice's message; empty without one."""
        return self.state.hang.message if self.state.hang else ""

    def events(self) -> list[str]:
        folder = Path(self.state.run)
        return [each.kind for each in read_events(folder / "telemetry")]


@pytest.fixture
def watched(ranks: Ranks) -> Watched:
    (ranks.folder.parents[1] / "telemetry").mkdir()
    return Watched(ranks, HangCause(message="Cause: rank 2 (it sleeps).", ranks=(2,)))


def test_a_watch_writes_one_notice_with_the_cause_and_ends_it_when_ranks_continue(watched: Watched) -> None:
    watched.pass_s(10)
    for steps in range(1, 4):
        watched.ranks.report(steps)
        watched.pass_s(10)
    watched.ranks.report(3, "checkpoint")
    watched.pass_s(1000)
    assert watched.message() == ""
    watched.ranks.report(4)
    watched.pass_s(310)
    assert watched.notice()
    assert watched.message().startswith("No rank has ended a step for 300 s. Cause: rank 2")
    assert watched.state.hang
    assert watched.state.hang.ranks == (2,)
    assert watched.state.hang.ended_ns is None
    watched.ranks.report(5)
    watched.pass_s(10)
    assert watched.state.hang.ended_ns is not None
    assert watched.events() == ["hang", "hang_over"]


def test_a_rank_that_keeps_writing_does_not_hang_until_it_stops(watched: Watched) -> None:
    file = watched.ranks.folder / "writing" / "0"
    file.parent.mkdir()
    watched.ranks.report(3)
    for second in range(100):
        file.touch()
        os.utime(file, (second, second))  # clocks of nodes may differ
        watched.pass_s(10)
    assert watched.message() == ""
    watched.pass_s(310)
    assert watched.notice()


def test_a_launch_without_steps_is_not_said_to_hang(ranks: Ranks) -> None:
    (ranks.folder.parents[1] / "telemetry").mkdir()
    watched = Watched(ranks, HangCause(message="Cannot tell, because no rank wrote a dump."))
    ranks.report(0)
    watched.pass_s(1790)
    assert watched.message() == ""
    watched.pass_s(20)
    assert watched.notice()
    assert watched.message().startswith("Cannot tell whether the launch hangs: it has shown no step")


def test_reports_of_strangers_and_of_an_earlier_start_do_not_count(watched: Watched) -> None:
    old = watched.ranks.folder / "progress" / "0"
    old.write_text(json.dumps({"rank": 0, "steps": 9, "time_ns": 1}))
    os.mkfifo(watched.ranks.folder / "progress" / "1")
    (watched.ranks.folder / "progress" / "2").write_text("{" * 5000)
    watched.pass_s(2000)
    assert watched.notice()
