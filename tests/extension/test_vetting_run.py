"""A coordinator and its agents over real sockets, with failures of each."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vetting_verdicts import TWO, verdict_of

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.workloads.run_folders import list_runs
from gipfel_extension.vetting.grid import make_grid
from gipfel_extension.vetting.history.store import locked
from gipfel_extension.vetting.model import Severity, Verdict
from gipfel_extension.vetting.probing import ProbeAnswer, ProbeSpec
from gipfel_extension.vetting.protocol_files import parse_protocol
from gipfel_extension.vetting.report import read_report
from gipfel_extension.vetting.report_display import Table
from gipfel_extension.vetting.run import session
from gipfel_extension.vetting.run.coordinator import Coordinator
from gipfel_extension.vetting.run.dispatch import AgentPool, Dispatcher
from gipfel_extension.vetting.run.groups import run_groups
from gipfel_extension.vetting.run.location import Location, LocationKind
from gipfel_extension.vetting.run.messages import (
    CheckDone,
    FindPort,
    Hello,
    PortFound,
    RankResult,
    RanksFinished,
    RunCheck,
    RunRanks,
    from_coordinator,
)
from gipfel_extension.vetting.run.rendezvous import AgentSocket, CoordinatorSocket
from gipfel_extension.vetting.run.report_builder import ReportBuilder


class FakeAgent:
    """Says over a real link what a test wants."""

    def __init__(
        self, listener: CoordinatorSocket, node: str, *, token: str = "", redundant: bool = False
    ) -> None:
        self.link = AgentSocket(listener.rendezvous, "127.0.0.1")
        self.node = node
        token = token or listener.rendezvous.token
        self.say(Hello(token=token, node=node, address="127.0.0.1", redundant=redundant))

    def say(self, message: Frozen | bytes) -> None:
        self.link.send(message if isinstance(message, bytes) else message.encode())

    def heard(self) -> list[Any]:
        found = []
        while self.link.socket.poll(200):
            found.append(from_coordinator(self.link.socket.recv()))
        return found


@pytest.fixture
def listener() -> Iterator[CoordinatorSocket]:
    listener = CoordinatorSocket(local_only=True, node="here")
    yield listener
    listener.close()


def _until(pool: AgentPool, done: Callable[[], bool], limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not done():
        list(pool.receive(0.05))
        assert time.monotonic() < end


def test_who_does_not_know_the_token_is_nobody_and_a_stranger_only_waits(listener: CoordinatorSocket) -> None:
    pool = AgentPool(listener, ["a", "b"])
    agents = [
        FakeAgent(listener, "a", token="gu\u00e9ssed"),
        FakeAgent(listener, "b"),
        FakeAgent(listener, "c"),
    ]
    try:
        _until(pool, lambda: "b" in pool.present and bool(pool.notes))
        assert set(pool.present) == {"b"}
        assert agents[0].heard() == []
        assert "c is not a node" in pool.notes[0]
    finally:
        for agent in agents:
            agent.link.close()


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x00\xff", b"{}", b"CheckDone {}", b"[" * 100_000,
        CheckDone(task=1, results=(verdict_of("b", "env"),)).encode(),
    ],
)  # fmt: skip
def test_an_agent_that_sends_rubbish_or_speaks_of_others_is_lost(
    listener: CoordinatorSocket, rubbish: bytes
) -> None:
    pool = AgentPool(listener, ["a", "b"])
    agent = FakeAgent(listener, "a")
    try:
        _until(pool, lambda: "a" in pool.present)
        agent.say(rubbish)
        _until(pool, lambda: "a" in pool.lost)
        assert "an invalid message" in pool.lost["a"]
    finally:
        agent.link.close()


def test_a_silent_agent_and_one_that_is_gone_are_told_apart(listener: CoordinatorSocket) -> None:
    pool = AgentPool(listener, ["a", "b"], silence_s=8)
    silent, gone = FakeAgent(listener, "a"), FakeAgent(listener, "b")
    _until(pool, lambda: len(pool.present) == 2)
    gone.link.close()
    _until(pool, lambda: len(pool.lost) == 2)
    silent.link.close()
    assert "it was killed, or the node lost its network" in pool.lost["b"]
    assert "stopped or hangs" in pool.lost["a"]


def test_nodes_that_never_come_or_lie_get_verdicts_and_nothing_waits_for_them(
    listener: CoordinatorSocket, tmp_path: Path
) -> None:
    builder = ReportBuilder(TWO, ["a", "b"], tmp_path, cluster="c", job="1")
    pool = AgentPool(listener, builder.nodes)
    agent = FakeAgent(listener, "a")

    def answer() -> None:
        builder.write_if_changed()
        while agent.link.socket.poll(0):
            message = from_coordinator(agent.link.socket.recv())
            if isinstance(message, RunCheck):
                # Of a check that was not requested.
                agent.say(CheckDone(task=message.task, results=(verdict_of("a", "else"),)))

    coordinator = Coordinator(
        builder, pool, agent_problem=lambda _: "", end_reason=lambda: "", tick=answer, connect_limit_s=2
    )
    assert coordinator.run() == ""
    agent.link.close()
    report = builder.report(ended=True, complete=True)
    assert report.good_nodes == ()
    assert report.exclude == "a,b"
    verdicts = {(each.node, each.check): each for each in report.results}
    assert "never connected" in verdicts["b", "agent"].reason
    assert {verdicts["b", "env"].verdict, verdicts["a", "env"].verdict} == {Verdict.NOT_RUN}
    assert not read_report(tmp_path).complete


def test_a_run_that_is_ended_gives_every_check_a_verdict(listener: CoordinatorSocket, tmp_path: Path) -> None:
    builder = ReportBuilder(TWO, ["a"], tmp_path, cluster="c", job="1")
    ends = time.monotonic() + 1

    def ended() -> str:
        return "Time is up." if time.monotonic() > ends else ""

    coordinator = Coordinator(
        builder, AgentPool(listener, ["a"]), agent_problem=lambda _: "", end_reason=ended, tick=lambda: None
    )
    assert coordinator.run() == "Time is up."
    assert [(each.check, each.reason) for each in builder.results] == [
        ("env", "Time is up."),
        ("shm", "Time is up."),
    ]


@pytest.mark.parametrize("slow", [("b",), ("a", "b")])
def test_a_node_that_hangs_in_its_own_checks_does_not_take_the_time_of_the_others(
    listener: CoordinatorSocket, tmp_path: Path, slow: tuple[str, ...]
) -> None:
    builder = ReportBuilder(TWO, ["a", "b"], tmp_path, cluster="c", job="1")
    pool = AgentPool(listener, builder.nodes)
    agents = {node: FakeAgent(listener, node) for node in builder.nodes}
    now, told = [0.0], set[str]()

    def answer() -> None:
        for node, agent in agents.items():
            while agent.link.socket.poll(0):
                message = from_coordinator(agent.link.socket.recv())
                told.add(f"{node} {type(message).__name__}")
                if isinstance(message, RunCheck) and node not in slow:
                    name = message.entry.name
                    agent.say(CheckDone(task=message.task, results=(verdict_of(node, name),)))
        if {each.check for each in builder.results if each.node == "a"} >= {"env", "shm"} or (
            {"a RunCheck", "b RunCheck"} <= told and "a" in slow
        ):
            # It is late, but not the run's end; that comes if no other agent has ended.
            now[0] = 99.0 if now[0] < 99 else now[0] + 0.5

    def ended() -> str:
        return "Time is up." if now[0] > 100 else ""

    coordinator = Coordinator(
        builder,
        pool,
        agent_problem=lambda _: "",
        end_reason=ended,
        tick=answer,
        due=100.0,
        clock=lambda: now[0],
    )
    reason = coordinator.run()
    _until(pool, lambda: answer() or "a" in slow or "b Stop" in told)  # type: ignore[func-returns-value]
    for agent in agents.values():
        agent.link.close()
    report = builder.report(ended=True, complete=not reason)
    assert (reason, report.complete) == (("Time is up.", False) if "a" in slow else ("", True))
    assert report.good_nodes == (() if "a" in slow else ("a",))
    if "a" not in slow:
        assert report.exclude == "b"
        found = {each.check: each for each in report.results if each.node == "b"}
        assert {each.verdict for each in found.values()} == {Verdict.NOT_RUN}
        assert "had not finished its own checks" in found["env"].reason
        assert (found["env"].is_consequence, found["shm"].is_consequence) == (False, True)


def test_an_agent_cannot_make_a_check_unimportant_or_pass_for_a_group(
    listener: CoordinatorSocket, tmp_path: Path
) -> None:
    protocol = parse_protocol(
        "checks:\n- {name: env, type: environment, parameters: {expected: {A: b}}}\n"
        "- {name: pairs, type: collective, scope: pair}\n"
    )
    builder = ReportBuilder(protocol, ["a"], tmp_path, cluster="c", job="1")
    pool = AgentPool(listener, builder.nodes)
    agent = FakeAgent(listener, "a")

    def answer() -> None:
        while agent.link.socket.poll(0):
            message = from_coordinator(agent.link.socket.recv())
            if isinstance(message, RunCheck):
                name = message.entry.name
                verdict = "fail" if name == "env" else "pass"
                forged = verdict_of("a", str(name), verdict, severity="warning")
                agent.say(CheckDone(task=message.task, results=(forged,)))

    coordinator = Coordinator(builder, pool, agent_problem=lambda _: "", end_reason=lambda: "", tick=answer)
    assert coordinator.run() == ""
    agent.link.close()
    found = {each.check: each for each in builder.results}
    assert (found["env"].severity, found["env"].type) == (Severity.ERROR, "environment")
    assert found["pairs"].verdict is Verdict.NOT_RUN
    assert not builder.report(ended=True, complete=True).vetted


@pytest.mark.parametrize("alone", [True, False])
def test_the_last_node_is_vetted_only_where_one_may_go_on_alone(
    listener: CoordinatorSocket, tmp_path: Path, *, alone: bool
) -> None:
    protocol = parse_protocol(
        "checks:\n- {name: env, type: environment, parameters: {expected: {A: b}}}\n"
        "- {name: pairs, type: collective, scope: pair}\n- {name: all, type: collective, scope: all}\n"
    )
    builder = ReportBuilder(protocol, ["a", "b"], tmp_path, cluster="c", job="1")
    pool = AgentPool(listener, builder.nodes)
    agents = {node: FakeAgent(listener, node) for node in builder.nodes}

    def answer() -> None:
        for node, agent in agents.items():
            while agent.link.socket.poll(0):
                message = from_coordinator(agent.link.socket.recv())
                if isinstance(message, RunCheck):
                    own = message.entry.name == "env"
                    found = verdict_of(node, "env", "fail" if node == "b" else "pass")
                    # Of a group's probe the node lacks nothing.
                    agent.say(CheckDone(task=message.task, results=(found,) if own else ()))

    coordinator = Coordinator(
        builder,
        pool,
        agent_problem=lambda _: "",
        end_reason=lambda: "",
        tick=answer,
        single_node_allowed=alone,
    )
    assert coordinator.run() == ""
    for agent in agents.values():
        agent.link.close()
    report = builder.report(ended=True, complete=True)
    verdicts = {(each.node, each.check): str(each.verdict) for each in report.results}
    assert {verdicts["a", "pairs"], verdicts["a", "all"]} == {"not_run"}
    assert {verdicts["b", "pairs"], verdicts["b", "all"]} == {"not_run"}
    assert report.good_nodes == (("a",) if alone else ())
    # What could not be tested is not shown as if it had passed.
    row = next(each for each in make_grid(report).rows if each.node == "a")
    shown = [cell.verdict for cell in row.cells]
    assert shown == (
        ["pass", "not_applicable", "not_applicable"] if alone else ["pass", "not_run", "not_run"]
    )
    lines = Table().lines(report)
    assert ("∅ n/a: nothing was measured" in lines) is alone
    assert any("✓ ∅ ∅" in line for line in lines) is alone


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_OTHER_RUN_LIMIT_S", 0.1)
    place = Location(kind=LocationKind.MACHINE, node="n1", nodes=("n1",), cluster="c")
    environment = {"GIPFEL_RUN": str(tmp_path), "GIPFEL_VETTING_HISTORY": str(tmp_path / "history")}
    options = session.VettingOptions(protocol=parse_protocol("checks: []"))
    (tmp_path / "vetting").mkdir()
    with (
        locked(tmp_path / "vetting" / ".lock"),
        pytest.raises(GipfelError, match="Another vetting run is using"),
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


def test_a_run_folder_made_by_vetting_is_listed_with_its_kind_and_end(tmp_path: Path) -> None:
    location = Location(kind=LocationKind.MACHINE, node="n1", nodes=("n1",), cluster="c")
    environment = {"GIPFEL_RUNS": str(tmp_path / "runs"), "GIPFEL_VETTING_HISTORY": str(tmp_path / "history")}
    options = session.VettingOptions(protocol=parse_protocol("checks: []"))
    status = session.vet(options, location, environment).report.exit_status
    (run,) = list_runs(environment)
    assert (run.kind, run.exit_status, run.in_use_reason) == ("vetting", status, "")
    assert run.started <= run.ended


@pytest.mark.parametrize(
    ("said", "samples"), [((), 7), ((0,), 7), ((0, 0), 7), ((1, 2), 7), ((0, 1), 1), ((0, 1), 0)]
)
def test_a_rank_that_nobody_speaks_of_or_that_measured_too_little_is_no_measurement(
    listener: CoordinatorSocket, said: tuple[int, ...], samples: int
) -> None:
    pool = AgentPool(listener, ["a"])
    agent = FakeAgent(listener, "a")
    end = time.monotonic() + 30

    def answer() -> None:
        assert time.monotonic() < end
        while agent.link.socket.poll(0):
            message = from_coordinator(agent.link.socket.recv())
            if isinstance(message, FindPort):
                agent.say(PortFound(task=message.task, port=9))
            elif isinstance(message, RunRanks):
                assert message.ranks == (0, 1)
                ends = tuple(
                    RankResult(rank=rank, answer=ProbeAnswer(samples=(1.0,) * (samples if rank == 1 else 7)))
                    for rank in said
                )
                agent.say(RanksFinished(task=message.task, results=ends))

    _until(pool, lambda: "a" in pool.present)
    spec = ProbeSpec(argv=("probe",), request={"samples": 7}, time_limit_s=20)
    (outcome,) = run_groups(Dispatcher(pool, lambda: "", answer), spec, [("a",)])
    agent.link.close()
    assert outcome.accused == ("a",)
    assert outcome.answer.samples == ()
    wanted = f"Rank 1 on a delivered {samples} of 7" if samples < 7 else "did not report all of its ranks"
    assert wanted in outcome.answer.error
