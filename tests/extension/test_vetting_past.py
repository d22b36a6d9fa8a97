"""Values that a vetting run takes from earlier ones."""

from pathlib import Path

from gipfel_extension.vetting.history.store import HistoryContent, HistoryEntry, VettingRecord
from gipfel_extension.vetting.model import CheckResult, Scope, Verdict
from gipfel_extension.vetting.protocol_files import parse_protocol
from gipfel_extension.vetting.run.report_builder import EarlierRuns, ReportBuilder


def test_a_run_is_held_against_what_earlier_runs_measured(tmp_path: Path) -> None:
    protocol = parse_protocol(
        "name: p\nchecks:\n"
        "- {name: link, type: collective, scope: node, threshold: {below_baseline: 10 %}}\n"
        "- {name: pairs, type: collective, scope: pair, threshold: {below_baseline: 10 %}}\n"
    )
    earlier_runs = [
        HistoryEntry(node=f"n{number}", check="link", type="collective", scope=Scope.NODE,
                     verdict=Verdict.PASS, measurement=100.0, unit="B/s")
        for number in range(3)
    ]  # fmt: skip
    record = VettingRecord(cluster="c", protocol="p", started_ns=1, ended_ns=2, entries=tuple(earlier_runs))
    builder = ReportBuilder(
        protocol,
        ("n1", "n2"),
        tmp_path,
        cluster="c",
        job="",
        earlier_runs=EarlierRuns(HistoryContent((record,))),
    )
    waiting = CheckResult(
        check="link", type="collective", scope=Scope.NODE, subject="n1", node="n1", unit="B/s",
        verdict=Verdict.INCONCLUSIVE, reason="It waits.", measurement=80.0,
        evidence={"awaits_comparison": True},
    )  # fmt: skip
    (bad,) = builder.compare([waiting])
    assert (bad.verdict, "20% below the stored baseline" in bad.reason) == (Verdict.FAIL, True)
    (good,) = builder.compare([waiting.model_copy(update={"measurement": 99.0})])
    assert good.verdict is Verdict.PASS
    link, pairs = protocol.checks
    assert (builder.earlier_runs.baseline(link), builder.earlier_runs.baseline(pairs)) == (100.0, None)
