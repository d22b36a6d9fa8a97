"""Rounds of pairs and the time limit: measurements within it are judged, and nothing else passes."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from gipfel_cluster.model import Frozen
from gipfel_extension.vetting.model import Verdict
from gipfel_extension.vetting.one_check import group_probe
from gipfel_extension.vetting.probing import ProbeAnswer
from gipfel_extension.vetting.protocol_files import parse_protocol
from gipfel_extension.vetting.report import VettingReport
from gipfel_extension.vetting.run.dispatch import AgentPool, ConnectedAgent, Dispatcher, RunEnded
from gipfel_extension.vetting.run.messages import (
    FindPort,
    Hello,
    PortFound,
    RankResult,
    RanksFinished,
    RunRanks,
)
from gipfel_extension.vetting.run.pairs import run_pairs
from gipfel_extension.vetting.run.report_builder import ReportBuilder

_GOOD, _SLOW = 20e9, 14e9
_ROUND_S, _LIMIT_S = 6.0, 20.0


class Step:
    """Nodes that measure a pair in some seconds by a clock of their own; ranks of some of them hang."""

    def __init__(self, nodes: int, hung: set[str], slow: set[str]) -> None:
        names = [f"n{number:02d}" for number in range(nodes)]
        hello = {name: Hello(token="", node=name, address="127.0.0.1") for name in names}
        self.present = {name: ConnectedAgent(name.encode(), hello[name]) for name in names}
        self.lost: dict[str, str] = {}
        self.now, self.asked = 0.0, Counter[str]()
        self._hung, self._slow = hung, slow
        self._said: list[tuple[str, Frozen]] = []
        self._ranks: dict[int, list[tuple[str, RunRanks]]] = {}

    def gpus(self, _nodes: Any) -> int:
        """Return that no node has a GPU."""
        return 0

    def send(self, node: str, message: Frozen) -> None:
        """Take work; all ranks of a round are known before any of them is asked about."""
        if isinstance(message, FindPort):
            # A port of its own tells its pair.
            self._said.append((node, PortFound(task=message.task, port=1 + message.task)))
        elif isinstance(message, RunRanks):
            self.asked[node] += 1
            self._ranks.setdefault(message.port, []).append((node, message))

    def receive(self, _seconds: float) -> Iterator[tuple[str, Frozen]]:
        """Return what the nodes say; a round takes as long as its slowest pair."""
        if self._ranks and not self._said:
            took = _ROUND_S
            for pair in self._ranks.values():
                names = {node for node, _ in pair}
                limit = min(message.spec.time_limit_s for _, message in pair)
                late = bool(names & self._hung) or limit < _ROUND_S
                took = max(took, limit) if late else took
                rate = _SLOW if names & self._slow else _GOOD
                answer = (
                    ProbeAnswer(error="The probe did not end within its time limit.")
                    if late
                    else ProbeAnswer(samples=(rate,) * 9, unit="B/s")
                )
                for node, message in pair:
                    ends = tuple(RankResult(rank=rank, answer=answer) for rank in message.ranks)
                    self._said.append((node, RanksFinished(task=message.task, results=ends)))
            self._ranks = {}
            self.now += took
        said, self._said = self._said, []
        yield from said


def _vet(
    folder: Path,
    nodes: int,
    seconds: float,
    *,
    hung: set[str] = frozenset(),  # type: ignore[assignment]
    slow: set[str] = frozenset(),  # type: ignore[assignment]
    ended: Callable[[float], str] = lambda _: "",
) -> tuple[VettingReport, Step]:
    protocol = parse_protocol(
        f"name: p\nchecks:\n- name: pairs\n  type: collective\n  scope: pair\n  time_limit: {_LIMIT_S:g} s\n"
        "  parameters: {device: cpu, per_gpu: false, samples: 9}\n"
    )
    step = Step(nodes, set(hung), set(slow))
    builder = ReportBuilder(protocol, list(step.present), folder, cluster="c", job="1")
    (entry,) = protocol.checks
    dispatcher = Dispatcher(
        cast("AgentPool", step), lambda: ended(step.now), due=seconds, clock=lambda: step.now
    )
    complete = True
    try:
        run_pairs(builder, dispatcher, entry, group_probe(entry), builder.nodes, later_s=0.0)
    except RunEnded:
        complete = False
    return builder.report(ended=True, complete=complete), step


def _verdicts(report: VettingReport) -> Counter[str]:
    return Counter(str(each.verdict) for each in report.results)


@pytest.mark.parametrize(("seconds", "every_pair"), [(240.0, True), (75.0, False)])
def test_rounds_fit_into_the_time_and_a_slow_node_is_found(
    tmp_path: Path, seconds: float, every_pair: bool
) -> None:
    report, step = _vet(tmp_path, 16, seconds, slow={"n03"})
    assert step.now <= seconds
    assert (report.complete, report.bad_nodes, report.exclude) == (True, ("n03",), "n03")
    met = {name: len(each.evidence["good_with"]) for each in report.results for name in [each.node]}  # type: ignore[arg-type]
    assert (min(met[node] for node in report.good_nodes) >= 14) is every_pair
    assert (not any("not every pair was measured" in note for note in report.notes)) is every_pair


def test_a_rank_that_hangs_costs_two_rounds_and_the_others_are_vetted(tmp_path: Path) -> None:
    report, step = _vet(tmp_path, 6, 100.0, hung={"n02"})
    assert step.now <= 100
    assert step.asked["n02"] == 2
    assert (report.complete, report.bad_nodes, report.exclude) == (True, ("n02",), "")
    (bad,) = [each for each in report.results if each.verdict is not Verdict.PASS]
    assert (bad.verdict, "did not end within its time limit" in bad.reason) == (Verdict.INCONCLUSIVE, True)


@pytest.mark.parametrize(
    ("seconds", "rounds", "verdicts"),
    [(3.0, 0, {"not_run": 8}), (16.0, 2, {"inconclusive": 8}), (22.0, 3, {"pass": 8})],
)
def test_what_was_not_measured_with_enough_partners_is_not_vetted(
    tmp_path: Path, seconds: float, rounds: int, verdicts: dict[str, int]
) -> None:
    report, step = _vet(tmp_path, 8, seconds)
    assert step.now == rounds * _ROUND_S
    assert _verdicts(report) == verdicts
    assert len(report.good_nodes) == verdicts.get("pass", 0)
    assert report.exclude == ""
    (note,) = report.notes
    assert f"allowed only {rounds} round(s)" in note


def test_the_last_round_is_cut_at_the_limit_and_says_nothing_of_what_it_cut(tmp_path: Path) -> None:
    # The first round hangs, and would take longer than there is time.
    report, step = _vet(tmp_path, 4, 16.0, hung={"n00"})
    assert step.now <= 16
    assert (_verdicts(report), report.exclude) == ({"inconclusive": 4}, "")
    assert not any(each.evidence["slow_with"] for each in report.results)


def test_what_was_measured_before_an_interruption_is_judged(tmp_path: Path) -> None:
    def ended(now: float) -> str:
        return "SIGTERM." if now >= 7 * _ROUND_S else ""

    report, _ = _vet(tmp_path, 8, 1000.0, slow={"n05"}, ended=ended)
    found: dict[str, Any] = {each.node: each.verdict for each in report.results}
    assert (report.complete, report.exclude) == (False, "n05")
    assert found["n05"] is Verdict.FAIL
    assert all(each.verdict is not Verdict.NOT_RUN for each in report.results)
