"""Outcome of a vetting run: good nodes, exit status, a table, the next job."""

import time
from pathlib import Path

import pytest
from vetting_verdicts import TWO, verdict_of

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.notation import expand_hostlist
from gipfel_extension.vetting.grid import make_grid
from gipfel_extension.vetting.history.queries import Exclusion, Exclusions
from gipfel_extension.vetting.model import CheckResult, Scope
from gipfel_extension.vetting.protocol import VettingProtocol
from gipfel_extension.vetting.protocol_files import parse_protocol
from gipfel_extension.vetting.report import CheckColumn, VettingReport, make_report
from gipfel_extension.vetting.report_display import Table
from gipfel_extension.vetting.run.actions import Action, decide, job_request, read_job, recently_failed


def _report(*results: CheckResult, nodes: str = "n[1-4]", protocol: VettingProtocol = TWO) -> VettingReport:
    return make_report(protocol, expand_hostlist(nodes), results, started_ns=1, ended_ns=2, complete=True)


def _all_good(nodes: str = "n[1-4]") -> list[CheckResult]:
    return [verdict_of(node, check) for node in expand_hostlist(nodes) for check in ("env", "shm")]


def test_a_node_is_vetted_by_every_deciding_verdict_and_by_nothing_less() -> None:
    assert _report(*_all_good()).vetted
    assert _report(*_all_good()[1:]).good_nodes == ("n2", "n3", "n4")
    tolerated = [*_all_good(), verdict_of("n1", "shm", "degraded"), verdict_of("n2", "env", "degraded")]
    assert _report(*tolerated).good_nodes == ("n1", "n3", "n4")
    shown = verdict_of("n1", "env", "fail", severity="warning")
    assert _report(*_all_good(), shown).vetted
    for verdict in ("fail", "not_run", "inconclusive"):
        against_all = _report(*_all_good(), verdict_of("", "all together", verdict, scope="all"))
        assert (against_all.good_nodes, against_all.exclude) == ((), "")


def test_of_slow_links_as_few_nodes_as_can_be_are_left_out() -> None:
    links = [
        verdict_of("", "env", "fail", scope="pair", subject=each)
        for each in ("n1|n2", "n2|n3", "n2|n4", "n1|n4")
    ]
    report = _report(*_all_good(), *links)
    assert report.good_nodes == ("n1", "n3")
    # A link is neither end's own fault: the run continues without these, but they are not barred.
    assert (report.bad_nodes, report.exclude) == (("n2", "n4"), "")


def test_the_table_shows_failed_nodes_first_as_the_panel_does() -> None:
    report = _report(*_all_good("n[1-2]"), verdict_of("n4", "env", "fail"), verdict_of("n4", "shm"))
    lines = Table().lines(report, max_rows=2)
    assert [line.split()[0] for line in lines[2:4]] == ["n4", "n3"]
    assert [each.node for each in make_grid(report).rows][:2] == ["n4", "n3"]
    assert "and 2 more: pass" in lines


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
    worse = [verdict_of(f"n{number}", "env", "fail") for number in range(1, bad + 1)]
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
        verdict_of(node, entry.name, "fail" if node == "n0017" and entry.name.endswith(" 3") else "pass")
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
    request = job_request(
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
        job_request(with_words, "#!/bin/sh", bad="n2", job_id="7", environment={})
    with pytest.raises(GipfelError, match="256 are allowed"):
        job_request(read_job(_SHOWN), "#!/bin/sh", bad="n[100-500]", job_id="7", environment={})


def test_whoever_failed_lately_is_excluded_from_the_next_job_as_well(tmp_path: Path) -> None:
    now = time.time_ns()
    environment = {"GIPFEL_VETTING_HISTORY": str(tmp_path)}
    given = {"reason": "Slow.", "since_ns": now, "until_ns": now + 10**12}
    Exclusions(tmp_path / "c").update(
        [
            Exclusion(node="n1", check="env", **given),
            Exclusion(node="n2", check="another check", **given),
            Exclusion(node="n3", **given),
            Exclusion(node="n4", check="env", **given),
        ]
    )
    column = CheckColumn(name="env", type="environment", scope=Scope.NODE)
    report = VettingReport(protocol="p", cluster="c", started_ns=1, checks=(column,), good_nodes=("n4",))
    assert recently_failed(report, environment) == "n[1,3]"
    assert recently_failed(report.model_copy(update={"cluster": "elsewhere"}), environment) == ""
