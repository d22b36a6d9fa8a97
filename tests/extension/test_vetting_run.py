"""The parts of a vetting run, each with what can go wrong around it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.scheduler.hostlist import expand_hostlist, fold_hostlist
from gipfel_extension.vetting.history import Exclusion, Exclusions
from gipfel_extension.vetting.history.locking import locked
from gipfel_extension.vetting.model import CheckResult, Scope, Severity, Verdict
from gipfel_extension.vetting.probing import ProbeAnswer, ProbeSpec
from gipfel_extension.vetting.protocol import VettingProtocol
from gipfel_extension.vetting.protocol_load import parse_protocol
from gipfel_extension.vetting.report import CheckColumn, VettingReport, make_report, read_report
from gipfel_extension.vetting.report_table import Table
from gipfel_extension.vetting.run import session
from gipfel_extension.vetting.run.actions import Action, decide
from gipfel_extension.vetting.run.board import Board
from gipfel_extension.vetting.run.children import start_function, start_program
from gipfel_extension.vetting.run.coordinator import Coordinator
from gipfel_extension.vetting.run.desk import Desk
from gipfel_extension.vetting.run.groups import run_groups
from gipfel_extension.vetting.run.messages import (
    CheckDone,
    FindPort,
    Hello,
    PortFound,
    RankEnd,
    RanksDone,
    RunCheck,
    RunRanks,
    from_coordinator,
)
from gipfel_extension.vetting.run.peers import Peers
from gipfel_extension.vetting.run.place import Kind, Place
from gipfel_extension.vetting.run.rendezvous import Door, Link
from gipfel_extension.vetting.run.resubmit import known_bad, read_job, request_of

_TWO = parse_protocol(
    "name: two\nchecks:\n- {name: env, type: environment, parameters: {expected: {A: '1'}}}\n"
    "- {name: shm, type: shared_memory, tolerate_degraded: true}\n"
)
_STEP = {
    "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[1-4]",
    "SLURM_JOB_NODELIST": "n[1-9]", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n3",
}  # fmt: skip


class FakeAgent:
    """Says over a real link what a test wants."""

    def __init__(self, door: Door, node: str, *, token: str = "", extra: bool = False) -> None:
        self.link = Link(door.rendezvous, "127.0.0.1")
        self.node = node
        token = token or door.rendezvous.token
        self.say(Hello(token=token, node=node, address="127.0.0.1", pid=1, extra=extra))

    def say(self, message: Frozen | bytes) -> None:
        self.link.send(message if isinstance(message, bytes) else message.model_dump_json().encode())

    def heard(self) -> list[Any]:
        found = []
        while self.link.socket.poll(200):
            found.append(from_coordinator(self.link.socket.recv()))
        return found


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door(alone=True, node="here")
    yield door
    door.close()


def _until(peers: Peers, done: Callable[[], bool], limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not done():
        list(peers.listen(0.05))
        assert time.monotonic() < end


def _result(node: str, check: str, verdict: str = "pass", **more: Any) -> CheckResult:
    common = {"type": check, "scope": Scope.NODE, "subject": node or "all", "reason": f"{check} said so."}
    return CheckResult.model_validate({**common, "check": check, "node": node, "verdict": verdict, **more})


def test_who_does_not_know_the_token_is_nobody_and_a_stranger_only_waits(door: Door) -> None:
    peers = Peers(door, ["a", "b"])
    agents = [FakeAgent(door, "a", token="gu\u00e9ssed"), FakeAgent(door, "b"), FakeAgent(door, "c")]
    try:
        _until(peers, lambda: "b" in peers.present and bool(peers.notes))
        assert set(peers.present) == {"b"}
        assert agents[0].heard() == []
        assert "c is no node" in peers.notes[0]
    finally:
        for agent in agents:
            agent.link.close()


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x00\xff", b"{}", b'{"kind": "check_done"}', b"[" * 100_000,
        CheckDone(task=1, results=(_result("b", "env"),)).model_dump_json().encode(),
    ],
)  # fmt: skip
def test_an_agent_that_sends_rubbish_or_speaks_of_others_is_lost(door: Door, rubbish: bytes) -> None:
    peers = Peers(door, ["a", "b"])
    agent = FakeAgent(door, "a")
    try:
        _until(peers, lambda: "a" in peers.present)
        agent.say(rubbish)
        _until(peers, lambda: "a" in peers.lost)
        assert "can't be read" in peers.lost["a"]
    finally:
        agent.link.close()


def test_a_silent_agent_and_one_that_is_gone_are_told_apart(door: Door) -> None:
    peers = Peers(door, ["a", "b"], silence_s=8)
    silent, gone = FakeAgent(door, "a"), FakeAgent(door, "b")
    _until(peers, lambda: len(peers.present) == 2)
    gone.link.close()
    _until(peers, lambda: len(peers.lost) == 2)
    silent.link.close()
    assert "it was killed, or the node was cut off" in peers.lost["b"]
    assert "stopped or hangs" in peers.lost["a"]


def test_nodes_that_never_come_or_lie_get_verdicts_and_nothing_waits_for_them(
    door: Door, tmp_path: Path
) -> None:
    board = Board(_TWO, ["a", "b"], tmp_path, cluster="c", job="1")
    peers = Peers(door, board.nodes)
    agent = FakeAgent(door, "a")

    def answer() -> None:
        board.keep()
        while agent.link.socket.poll(0):
            message = from_coordinator(agent.link.socket.recv())
            if isinstance(message, RunCheck):
                # Of another check than it was asked for.
                agent.say(CheckDone(task=message.task, results=(_result("a", "else"),)))

    coordinator = Coordinator(
        board, peers, why_not=lambda _: "", ended=lambda: "", tick=answer, come_within_s=2
    )
    assert coordinator.run() == ""
    agent.link.close()
    report = board.report(ended=True, complete=True)
    assert report.good_nodes == ()
    assert report.exclude == "a,b"
    verdicts = {(each.node, each.check): each for each in report.results}
    assert "never came" in verdicts["b", "agent"].reason
    assert {verdicts["b", "env"].verdict, verdicts["a", "env"].verdict} == {Verdict.NOT_RUN}
    assert not read_report(tmp_path).complete


def test_a_run_that_is_ended_gives_every_check_a_verdict(door: Door, tmp_path: Path) -> None:
    board = Board(_TWO, ["a"], tmp_path, cluster="c", job="1")
    ends = time.monotonic() + 1

    def ended() -> str:
        return "Time is up." if time.monotonic() > ends else ""

    coordinator = Coordinator(board, Peers(door, ["a"]), why_not=lambda _: "", ended=ended, tick=lambda: None)
    assert coordinator.run() == "Time is up."
    assert [(each.check, each.reason) for each in board.results] == [
        ("env", "Time is up."),
        ("shm", "Time is up."),
    ]


def _ended(child: Any, limit_s: float = 30) -> Any:
    end = time.monotonic() + limit_s
    while not child.advance():
        assert time.monotonic() < end
        time.sleep(0.02)
    return child


def test_a_child_at_its_limit_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    script = f"sleep 4242 & echo $! >{tmp_path}/pid; echo said; wait"
    child = start_program(["sh", "-c", script], given=b"", environment=os.environ, limit_s=1)
    _ended(child)
    assert (child.timed_out, child.killed, bytes(child.output)) == (True, True, b"said\n")
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_stopped_child_is_noticed_long_before_its_limit() -> None:
    child = start_program(["sleep", "1000"], given=b"", environment=os.environ, limit_s=900)
    os.kill(child.pid, signal.SIGSTOP)
    assert _ended(child, 60).stopped


def test_a_function_in_a_child_gives_bytes_or_says_what_broke() -> None:
    assert bytes(_ended(start_function(lambda: b"x" * 300_000, limit_s=30)).output) == b"x" * 300_000
    broken = _ended(start_function(lambda: bytes(1 // 0), limit_s=30))
    assert broken.status == 1
    assert b"ZeroDivisionError" in broken.said


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


def test_a_place_is_told_by_slurms_variables() -> None:
    place = Place.of(_STEP)
    assert (place.kind, place.node, place.rank, place.extra) == (Kind.STEP, "n3", 2, False)
    assert place.nodes == ("n1", "n2", "n3", "n4")
    assert Place.of(_STEP | {"SLURM_LOCALID": "1"}).extra
    # A batch script's step has a special number; a notebook's container is a step of one task.
    batch = Place.of(_STEP | {"SLURM_STEP_ID": "4294967291"})
    notebook = Place.of(_STEP | {"SLURM_STEP_NUM_TASKS": "1", "GIPFEL_RUN": "/runs/x"})
    assert {(each.kind, each.nodes) for each in (batch, notebook)} == {
        (Kind.ALLOCATION, tuple(f"n{number}" for number in range(1, 10)))
    }
    assert Place.of({}).kind is Kind.MACHINE
    with pytest.raises(GipfelError, match="can't be read"):
        Place.of(_STEP | {"SLURM_STEP_NODELIST": "n[1-"})


def _report(*results: CheckResult, nodes: str = "n[1-4]", protocol: VettingProtocol = _TWO) -> VettingReport:
    return make_report(protocol, expand_hostlist(nodes), results, started_ns=1, ended_ns=2, complete=True)


def _all_good(nodes: str = "n[1-4]") -> list[CheckResult]:
    return [_result(node, check) for node in expand_hostlist(nodes) for check in ("env", "shm")]


def test_a_node_is_vetted_by_every_deciding_verdict_and_by_nothing_less() -> None:
    assert _report(*_all_good()).vetted
    assert _report(*_all_good()[1:]).good_nodes == ("n2", "n3", "n4")
    tolerated = [*_all_good(), _result("n1", "shm", "degraded"), _result("n2", "env", "degraded")]
    assert _report(*tolerated).good_nodes == ("n1", "n3", "n4")
    shown = _result("n1", "env", "fail", severity="warning")
    assert _report(*_all_good(), shown).vetted
    for verdict in ("fail", "not_run", "inconclusive"):
        against_all = _report(*_all_good(), _result("", "all together", verdict, scope="all"))
        assert (against_all.good_nodes, against_all.exclude) == ((), "")


def test_of_slow_links_as_few_nodes_as_can_be_are_left_out() -> None:
    links = [
        _result("", "env", "fail", scope="pair", subject=each)
        for each in ("n1|n2", "n2|n3", "n2|n4", "n1|n4")
    ]
    report = _report(*_all_good(), *links)
    assert report.good_nodes == ("n1", "n3")
    assert report.exclude == "n[2,4]"


@pytest.mark.parametrize(
    ("action", "least", "bad", "status", "resubmit"),
    [
        ("report", None, 0, 0, False), ("report", None, 1, 1, False), ("report", 1, 1, 1, False),
        ("report", 9, 0, 1, False), ("abort", None, 1, 1, False), ("shrink", None, 1, 1, False),
        ("shrink", 3, 1, 0, False), ("shrink", 3, 2, 1, False), ("shrink", 1, 4, 1, False),
        ("exclude", None, 1, 1, True), ("exclude", 3, 1, 0, False), ("exclude", None, 0, 0, False),
    ],
)  # fmt: skip
def test_the_exit_status_by_action(
    action: str, least: int | None, bad: int, status: int, resubmit: bool
) -> None:
    worse = [_result(f"n{number}", "env", "fail") for number in range(1, bad + 1)]
    decision = decide(_report(*_all_good(), *worse), Action(action), least)
    assert (decision.status, decision.resubmit) == (status, resubmit)
    cut_short = _report(*_all_good()).model_copy(update={"complete": False})
    assert decide(cut_short, Action(action), least).status == 1


def test_the_table_stays_in_80_columns_with_a_thousand_nodes_and_many_checks() -> None:
    checks = "".join(
        f"- {{name: check number {number}, type: environment, parameters: {{expected: {{A: b}}}}}}\n"
        for number in range(40)
    )
    protocol = parse_protocol(f"name: large\nchecks:\n{checks}")
    results = [
        _result(node, entry.name, "fail" if node == "n0017" and entry.name.endswith(" 3") else "pass")
        for node in expand_hostlist("n[0001-1024]")
        for entry in protocol.checks
    ]
    report = make_report(
        protocol, expand_hostlist("n[0001-1024]"), results, started_ns=1, ended_ns=2, complete=True
    )
    for table in (Table(), Table(plain=True)):
        lines = table.lines(report)
        assert max(map(len, lines)) <= 80
        assert len(lines) < 50
        assert lines[2].startswith("n0017 ")
        assert any("n0017: check number 3: fail" in line for line in lines)
    assert all(line.isascii() for line in Table(plain=True).lines(report))


_SHOWN = (
    "JobId=7 JobName=train it UserId=ada(1000) Account=(null) QOS=normal Partition=gpu TimeLimit=02:00:00 "
    "NodeList=n[1-4] ExcNodeList=n9 NumNodes=4-4 NumCPUs=4 NumTasks=16 CPUs/Task=2 ReqB:S:C:T=0:0:*:* "
    "NtasksPerN:B:S:C=4:0:*:* MinMemoryNode=64G Features=gh200 Reservation=(null) "
    "Command=/home/ada/train.sh WorkDir=/home/ada/a 7 folder StdOut=/home/ada/a 7 folder/log-7.txt "
    "TresPerNode=gres:gpu:gh200:4"
)


def test_a_job_is_asked_for_again_as_it_was_but_for_its_bad_nodes() -> None:
    request = request_of(
        read_job(_SHOWN), "#!/bin/sh\ntrue\n\0", bad="n[2-3]", job_id="7", environment={"A": "b"}
    )
    assert (request.name, request.directory, request.output) == (
        "train it", "/home/ada/a 7 folder", "/home/ada/a 7 folder/log-%j.txt"
    )  # fmt: skip
    assert (request.exclude, request.nodes, request.gpus_per_node) == ("n[2-3,9]", 4, 4)
    assert (request.account, request.partition, request.constraint) == ("", "gpu", "gh200")
    assert (request.memory, request.time, request.cpus_per_task) == ("64G", "02:00:00", 2)
    assert request.site_arguments == ("--ntasks-per-node=4",)
    assert request.script == "#!/bin/sh\ntrue\n"
    with_words = read_job(_SHOWN.replace("train.sh ", "train.sh --epochs 3 "))
    with pytest.raises(GipfelError, match="arguments"):
        request_of(with_words, "#!/bin/sh", bad="n2", job_id="7", environment={})
    with pytest.raises(GipfelError, match="at most 256"):
        request_of(read_job(_SHOWN), "#!/bin/sh", bad="n[100-500]", job_id="7", environment={})


@pytest.mark.parametrize(
    "text", ["n[001-003,007]", "a,b,c1", "n[8-12]", "x[1-3]-y[1-2]", "n007,n7", "", "n1"]
)
def test_a_folded_hostlist_names_the_same_nodes(text: str) -> None:
    nodes = expand_hostlist(text)
    assert set(expand_hostlist(fold_hostlist(nodes))) == set(nodes)
    assert fold_hostlist([*nodes, *reversed(nodes)]) == fold_hostlist(nodes)


def test_a_list_of_nodes_that_is_shorter_than_the_job_is_no_place() -> None:
    """Whoever is not on the list would not be vetted, and nobody would notice."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURMD_NODENAME": "n1"}
    job = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    for broken in (
        step,
        step | {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_NODES": "3"},
        job | {"SLURM_JOB_NUM_NODES": "2"},
        job | {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "4"},
    ):
        with pytest.raises(GipfelError, match="would not be vetted"):
            Place.of(broken)
    assert Place.of(step | {"SLURM_STEP_NODELIST": "n1"}).nodes == ("n1",)
    assert Place.of(job | {"SLURM_JOB_NUM_NODES": "1"}).nodes == ("n1",)
    assert Place.of({"SLURM_JOB_NUM_NODES": "4", "SLURMD_NODENAME": "n1"}).nodes == ("n1",)
    for odd in ("a|b", "<b>", "n1\nn2", "-n", "n" * 300):
        with pytest.raises(GipfelError, match="can't be the name of a node"):
            Place.of({"GIPFEL_NODE": odd})


def test_an_agent_cannot_make_a_check_unimportant_or_pass_for_a_group(door: Door, tmp_path: Path) -> None:
    protocol = parse_protocol(
        "checks:\n- {name: env, type: environment, parameters: {expected: {A: b}}}\n"
        "- {name: pairs, type: collective, scope: pair}\n"
    )
    board = Board(protocol, ["a"], tmp_path, cluster="c", job="1")
    peers = Peers(door, board.nodes)
    agent = FakeAgent(door, "a")

    def answer() -> None:
        while agent.link.socket.poll(0):
            message = from_coordinator(agent.link.socket.recv())
            if isinstance(message, RunCheck):
                name = dict(message.entry)["name"]  # type: ignore[call-overload]
                verdict = "fail" if name == "env" else "pass"
                forged = _result("a", str(name), verdict, severity="warning")
                agent.say(CheckDone(task=message.task, results=(forged,)))

    coordinator = Coordinator(board, peers, why_not=lambda _: "", ended=lambda: "", tick=answer)
    assert coordinator.run() == ""
    agent.link.close()
    found = {each.check: each for each in board.results}
    assert (found["env"].severity, found["env"].type) == (Severity.ERROR, "environment")
    assert found["pairs"].verdict is Verdict.NOT_RUN
    assert not board.report(ended=True, complete=True).vetted


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_OTHERS_S", 0.1)
    place = Place(kind=Kind.MACHINE, node="n1", nodes=("n1",), cluster="c")
    environment = {"GIPFEL_RUN": str(tmp_path), "GIPFEL_VETTING_HISTORY": str(tmp_path / "history")}
    options = session.VettingOptions(protocol=parse_protocol("checks: []"))
    (tmp_path / "vetting").mkdir()
    with (
        locked(tmp_path / "vetting" / ".lock"),
        pytest.raises(GipfelError, match="Another vetting writes"),
    ):
        session.vet(options, place, environment)
    # What an earlier run called good is not taken for this one's word, whenever it ends.
    (tmp_path / "good_nodes.txt").write_text("n1\n")
    seen: list[bool] = []
    ended = session.vet(
        options, place, environment, lambda _: seen.append((tmp_path / "good_nodes.txt").exists())
    )
    assert ended.report.exit_status == 1
    assert not any(seen)
    assert (tmp_path / "good_nodes.txt").read_text() == ""


def test_whoever_failed_lately_is_excluded_from_the_next_job_as_well(tmp_path: Path) -> None:
    now = time.time_ns()
    environment = {"GIPFEL_VETTING_HISTORY": str(tmp_path)}
    given = {"reason": "Slow.", "since_ns": now, "until_ns": now + 10**12}
    Exclusions(tmp_path / "c").add(
        [
            Exclusion(node="n1", check="env", **given),
            Exclusion(node="n2", check="another check", **given),
            Exclusion(node="n3", **given),
            Exclusion(node="n4", check="env", **given),
        ]
    )
    column = CheckColumn(name="env", type="environment", scope=Scope.NODE)
    report = VettingReport(protocol="p", cluster="c", started_ns=1, checks=(column,), good_nodes=("n4",))
    assert known_bad(report, environment) == "n[1,3]"
    assert known_bad(report.model_copy(update={"cluster": "elsewhere"}), environment) == ""


@pytest.mark.parametrize("said", [(), (0,), (0, 0), (1, 2)])
def test_a_rank_that_nobody_speaks_of_is_no_measurement(door: Door, said: tuple[int, ...]) -> None:
    peers = Peers(door, ["a"])
    agent = FakeAgent(door, "a")
    end = time.monotonic() + 30

    def answer() -> None:
        assert time.monotonic() < end
        while agent.link.socket.poll(0):
            message = from_coordinator(agent.link.socket.recv())
            if isinstance(message, FindPort):
                agent.say(PortFound(task=message.task, port=9))
            elif isinstance(message, RunRanks):
                assert message.ranks == (0, 1)
                good = ProbeAnswer(samples=(1.0, 1.0), unit="B/s")
                ends = tuple(RankEnd(rank=rank, answer=good) for rank in said)
                agent.say(RanksDone(task=message.task, ends=ends))

    _until(peers, lambda: "a" in peers.present)
    spec = ProbeSpec(argv=("probe",), time_limit_s=20)
    (outcome,) = run_groups(Desk(peers, lambda: "", answer), spec, [("a",)])
    agent.link.close()
    assert outcome.accused == ("a",)
    assert outcome.answer.samples == ()
    assert "no answer for all of its ranks" in outcome.answer.error
