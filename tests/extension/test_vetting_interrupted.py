"""Interrupted vetting runs: they neither pass nor fail a node."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from vetting_verdicts import TWO, verdict_of

from gipfel_cluster.scheduler.excluded_nodes import excluded_nodes
from gipfel_extension.vet_first import VetFirst, summarize_failures, vetting_progress
from gipfel_extension.vetting.grid import make_grid
from gipfel_extension.vetting.history.queries import Exclusions
from gipfel_extension.vetting.model import CheckResult, Verdict
from gipfel_extension.vetting.report import VettingReport, make_report, read_report
from gipfel_extension.vetting.report_display import Table
from gipfel_extension.vetting.run.actions import Action, decide, record_from_report, store_report
from gipfel_extension.vetting.run.agent import Agent
from gipfel_extension.vetting.run.coordinator import Coordinator
from gipfel_extension.vetting.run.dispatch import AgentPool
from gipfel_extension.vetting.run.messages import AgentEnded, CheckDone, Hello
from gipfel_extension.vetting.run.rendezvous import AgentSocket, CoordinatorSocket
from gipfel_extension.vetting.run.report_builder import ReportBuilder

_NODES = ("n1", "n2", "n3")


def _report(*results: CheckResult, complete: bool = False) -> VettingReport:
    """Return the report of a run in which n1 passed everything, and n2 and n3 were not reached."""
    known = {(each.node, each.check) for each in results}
    passed = [verdict_of("n1", check) for check in ("env", "shm") if ("n1", check) not in known]
    rest = [
        verdict_of(node, check, "not_run", reason="It was interrupted.", evidence={"consequence": True})
        for node in ("n2", "n3")
        for check in ("env", "shm")
        if (node, check) not in known
    ]
    report = make_report(
        TWO, _NODES, [*results, *passed, *rest], started_ns=1, ended_ns=2, complete=complete, cluster="c"
    )
    return report.model_copy(update={"outcome": decide(report, Action.REPORT, None).outcome})


def test_no_node_is_vetted_and_none_is_bad_where_nothing_was_found(tmp_path: Path) -> None:
    report = _report()
    assert "no node is vetted" in report.outcome
    assert (report.vetted, report.good_nodes, report.bad_nodes, report.exclude) == (False, (), (), "")
    assert {(each.node, each.vetted, str(each.verdict)) for each in report.nodes} == {
        (node, False, "not_run") for node in _NODES
    }
    report.write(tmp_path)
    assert [(tmp_path / f"{name}_nodes.txt").read_text() for name in ("good", "bad")] == ["", ""]
    # So it is shown, too.
    grid = make_grid(read_report(tmp_path))
    assert "0 of 3 nodes vetted" in grid.heading
    assert {(row.vetted, row.verdict) for row in grid.rows} == {(False, "not_run")}
    rows = [line for line in Table().lines(report) if line.startswith("n1")]
    assert rows[0].split()[-2:] == ["not", "run"]
    assert (vetting_progress(report).bad, vetting_progress(report).rows[0].state) == (0, "not_run")
    assert summarize_failures(report) == f"two: {report.outcome}"
    # And remembered: the next run skips nothing, and nothing is excluded.
    assert record_from_report(report).vetted == ()
    store_report(report, {"GIPFEL_VETTING_HISTORY": str(tmp_path)})
    assert Exclusions(tmp_path / "c").read() == ((), "")


def test_what_was_found_until_then_stays_found() -> None:
    report = _report(verdict_of("n2", "shm", "fail"))
    assert (report.good_nodes, report.bad_nodes, report.exclude) == ((), ("n2",), "n2")
    assert summarize_failures(report).startswith("1 of 3 nodes not fit by two: n2: shm: shm said so")
    # Rounds of pairs that had no time decide nothing.
    doubt = verdict_of("n2", "pairs", "inconclusive", scope="pair")
    assert _report(doubt).bad_nodes == ()
    assert _report(doubt, complete=True).bad_nodes == ("n2", "n3")


@pytest.mark.parametrize("action", ["abort", "shrink"])
def test_no_server_starts_on_nodes_of_which_none_counts(action: str, tmp_path: Path) -> None:
    environment = {"GIPFEL_RUN": str(tmp_path), "GIPFEL_NODE": "n1", "HOME": str(tmp_path)}
    vetting = VetFirst("two", action, environment)
    assert "no node is vetted" in vetting._decide(_report(), vetted=False)
    assert (vetting.without, excluded_nodes(str(tmp_path))) == ((), frozenset())


@pytest.fixture
def listener() -> Iterator[CoordinatorSocket]:
    listener = CoordinatorSocket(local_only=True, node="here")
    yield listener
    listener.close()


@pytest.mark.parametrize("interrupted", [True, False])
def test_an_agent_that_the_same_signal_ends_does_not_accuse_its_node(
    listener: CoordinatorSocket, tmp_path: Path, *, interrupted: bool
) -> None:
    """Slurm sends a step's signal to each task of it, this one among them."""
    builder = ReportBuilder(TWO, ["n1"], tmp_path, cluster="c", job="1")
    pool = AgentPool(listener, builder.nodes)
    link = AgentSocket(listener.rendezvous, "127.0.0.1")
    hello = Hello(token=listener.rendezvous.token, node="n1", address="127.0.0.1")
    link.send(hello.encode())
    end = time.monotonic() + 30

    def tick() -> None:
        assert time.monotonic() < end
        if "n1" in pool.present:
            link.send(AgentEnded(reason="SIGTERM was sent to it").encode())

    def ended() -> str:
        return "The run was interrupted by SIGTERM." if interrupted and "n1" in pool.lost else ""

    coordinator = Coordinator(
        builder,
        pool,
        agent_problem=lambda _: "",
        end_reason=ended,
        tick=tick,
        interrupted=lambda: interrupted,
    )
    reason = coordinator.run()
    link.close()
    report = builder.report(ended=True, complete=not reason)
    if interrupted:
        assert {(each.check, each.verdict, each.reason) for each in report.results} == {
            (check, Verdict.NOT_RUN, reason) for check in ("env", "shm")
        }
        assert (report.bad_nodes, report.exclude) == ((), "")
    else:
        # Without an end of the run, the node's agent is what failed.
        assert (report.bad_nodes, report.exclude) == (("n1",), "n1")


def test_what_a_check_says_that_the_same_signal_killed_is_not_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = Agent(lambda: None, node="n1", environment={})
    passed_on: list[object] = []
    monkeypatch.setattr(agent, "_send", passed_on.append)
    killed = CheckDone(task=1, results=(verdict_of("n1", "env", "fail"),))
    line = killed.encode() + b"\n"
    agent._on_worker_output(line)
    assert passed_on == [killed]
    agent._on_signal(15, None)
    agent._on_worker_output(line)
    assert passed_on == [killed]
