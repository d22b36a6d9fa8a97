"""Owner of a verdict; only a node's own faults exclude it from jobs."""

from pathlib import Path

import pytest
from vetting_readings import FakeProbes, Readings, context
from vetting_verdicts import TWO, verdict_of

from gipfel_cluster.scheduler.notation import expand_hostlist
from gipfel_extension.vetting.history.queries import Exclusions, decide_borderline
from gipfel_extension.vetting.history.site_registry import _public_record
from gipfel_extension.vetting.history.store import record_from_results
from gipfel_extension.vetting.model import CheckResult, Owner, Verdict, with_owners
from gipfel_extension.vetting.one_check import run_check
from gipfel_extension.vetting.probing import ProbeAnswer
from gipfel_extension.vetting.protocol_files import parse_protocol
from gipfel_extension.vetting.report import VettingReport, make_report
from gipfel_extension.vetting.run.actions import Action, decide, store_report


def _report(*results: CheckResult, nodes: int) -> VettingReport:
    names = expand_hostlist(f"n[1-{nodes}]") if nodes > 1 else ["n1"]
    known = {(each.node, each.check) for each in results}
    rest = [
        verdict_of(node, check, type={"env": "environment", "shm": "shared_memory"}[check])
        for node in names
        for check in ("env", "shm")
        if (node, check) not in known
    ]
    return make_report(TWO, names, [*results, *rest], started_ns=1, ended_ns=2, complete=True, cluster="c")


def _bad(check: str, *numbers: int, verdict: str = "fail") -> list[CheckResult]:
    kind = {"env": "environment", "shm": "shared_memory"}[check]
    return [verdict_of(f"n{number}", check, verdict, type=kind) for number in numbers]


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_variable_that_the_edf_lacks_bars_no_node_and_costs_no_job(nodes: int, tmp_path: Path) -> None:
    report = _report(*_bad("env", *range(1, nodes + 1)), nodes=nodes)
    assert (len(report.bad_nodes), report.exclude) == (nodes, "")
    decision = decide(report, Action.EXCLUDE, None)
    assert (decision.status, decision.resubmit) == (1, False)
    assert "No node has a fault of its own" in decision.outcome
    environment = {"GIPFEL_VETTING_HISTORY": str(tmp_path)}
    assert store_report(report, environment) == ()
    assert Exclusions(tmp_path / "c").read() == ((), "")


def test_one_node_that_differs_is_to_blame_whatever_the_check(tmp_path: Path) -> None:
    report = _report(*_bad("env", 2), *_bad("shm", 3), nodes=4)
    assert report.exclude == "n[2-3]"
    assert decide(report, Action.EXCLUDE, None).resubmit
    store_report(report, {"GIPFEL_VETTING_HISTORY": str(tmp_path)})
    assert {each.node for each in Exclusions(tmp_path / "c").read()[0]} == {"n2", "n3"}


@pytest.mark.parametrize(
    ("nodes", "bad", "owner"),
    [(2, 2, "node"), (3, 3, "site"), (5, 4, "site"), (5, 3, "node"), (1, 1, "node")],
)
def test_what_four_fifths_of_three_or_more_nodes_share_is_no_nodes_own(
    nodes: int, bad: int, owner: str
) -> None:
    report = _report(*_bad("shm", *range(1, bad + 1)), nodes=nodes)
    owners = {each.owner for each in report.results if each.verdict is Verdict.FAIL}
    assert owners == {Owner(owner)}
    assert len(expand_hostlist(report.exclude) if report.exclude else ()) == (bad if owner == "node" else 0)


def test_doubt_and_what_follows_from_elsewhere_accuse_nothing() -> None:
    doubt = _report(*_bad("shm", 1, verdict="inconclusive"), nodes=4)
    assert (doubt.bad_nodes, doubt.exclude) == (("n1",), "")
    follows = verdict_of("n1", "shm", "not_run", evidence={"consequence": True})
    report = _report(*_bad("env", *range(1, 5)), follows, nodes=4)
    assert {each.owner for each in report.results if each.check == "shm" and each.node == "n1"} == {
        Owner.IMAGE
    }
    # A pair of two nodes that is slow may be either of them.
    pair = [verdict_of(node, "pairs", "fail", scope="pair") for node in ("n1", "n2")]
    assert {each.owner for each in with_owners(pair)} == {Owner.LINK}


def test_an_image_without_torch_or_gpus_is_the_images() -> None:
    entry = parse_protocol("checks:\n- {type: matmul, parameters: {device: cuda}}").checks[0]
    lacking = ProbeAnswer(error="the image lacks a module: torch", missing="torch")
    blind = ProbeAnswer(error="RuntimeError: torch sees no GPU")
    for answer in (lacking, blind):
        found = [run_check(entry, context(node=node, probes=FakeProbes(answer)))[0] for node in ("n1", "n2")]
        assert {each.owner for each in with_owners(found)} == {Owner.IMAGE}
    # A protocol for GPUs in a job that has none is the wrong protocol; where it has some, the node differs.
    of_nvml = parse_protocol("checks:\n- {type: temperature}").checks[0]
    silent = Readings(error="NVML can't be initialized: Driver Not Loaded.")
    found = run_check(of_nvml, context(gpus=silent, expected_gpus=0))
    assert with_owners(found)[0].owner is Owner.PROTOCOL
    found = run_check(of_nvml, context(node="n1", gpus=silent))
    found += run_check(of_nvml, context(node="n2"))
    assert with_owners(found)[0].owner is Owner.NODE


def test_faults_of_others_neither_reach_the_registry_nor_count_as_a_nodes_past() -> None:
    results = [
        verdict_of("n1", "env", "fail", owner="image"), verdict_of("n1", "shm", "fail", owner="node"),
        verdict_of("n2", "env"),
    ]  # fmt: skip
    record = record_from_results(
        results, cluster="c", job="1", protocol="p", started_ns=1, ended_ns=2, complete=True, vetted=["n2"]
    )
    sent = _public_record(record)
    assert [(each.node, each.check) for each in sent.entries] == [("n1", "shm"), ("n2", "env")]
    again = verdict_of("n1", "env", "degraded")
    of_image = [record.entries[0]] * 4
    assert decide_borderline(again, of_image).verdict is Verdict.DEGRADED
    own = [each.model_copy(update={"owner": Owner.NODE}) for each in of_image]
    assert decide_borderline(again, own).verdict is Verdict.FAIL
