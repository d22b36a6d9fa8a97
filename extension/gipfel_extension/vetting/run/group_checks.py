"""Checks on groups of ranks: within each node, between pairs of nodes, over all that are still good."""

import time
from collections.abc import Sequence
from statistics import median

from gipfel_cluster.model import one_line

from ..model import CheckResult, Finding, Owner, Scope, Verdict
from ..one_check import group_probe, is_group, time_limit
from ..probing import ProbeAnswer, ProbeSpec
from ..protocol import ProtocolCheck
from ..threshold import judge
from .dispatch import Dispatcher
from .groups import GroupOutcome, run_groups
from .pairs import run_pairs
from .report_builder import ReportBuilder, failed_alone

_ORDER = (Scope.GPU, Scope.NODE, Scope.PAIR, Scope.ALL)
#: How often a group of all nodes is tried again without those that broke it.
_TRIES = 3


class GroupChecks:
    """Runs a protocol's checks of groups, the smallest groups first.

    Parameters
    ----------
    one_suffices
        Whether the job may go on with one node: what is measured between nodes then says nothing of the last.
    """

    def __init__(self, builder: ReportBuilder, dispatcher: Dispatcher, *, one_suffices: bool = False) -> None:
        self._builder, self._dispatcher, self._one_suffices = builder, dispatcher, one_suffices

    def run(self) -> None:
        """Run all of them; a node that has failed takes no part in what concerns others.

        Raises
        ------
        RunEnded
            The run ends first.
        """
        entries = [entry for entry in self._builder.protocol.runnable if is_group(entry)]
        entries.sort(key=lambda each: _ORDER.index(each.scope))
        for place, entry in enumerate(entries):
            able = self._able(entry)
            spec = self._with_device(group_probe(entry), able)
            for node in able:
                self._builder.run(node, entry.name)
            try:
                self._run(entry, spec, able, sum(map(time_limit, entries[place + 1 :])))
            finally:
                for node in able:
                    self._builder.run(node, "")

    def _run(self, entry: ProtocolCheck, spec: ProbeSpec, able: Sequence[str], later_s: float) -> None:
        if entry.scope in {Scope.GPU, Scope.NODE}:
            self._within(entry, spec, able)
        elif (
            len(self._builder.nodes) == 1
            and not entry.skip_if_alone
            and self._several_ranks(entry, spec, able)
        ):
            self._over_all(entry, spec, able)
        elif len(self._builder.nodes) == 1:
            reason = "The job has one node: there is no other to measure with."
            self._builder.add([entry.without_object(node, reason) for node in able])
        elif len(able) < 2 and self._one_suffices:
            reason = "One node may go on alone: no other is left to measure with."
            self._builder.add([entry.without_object(node, reason) for node in able])
        elif len(able) < 2:
            reason = "No other node is left to measure with."
            alone = [entry.not_run(node, node, reason) for node in able]
            self._builder.add([each.model_copy(update={"owner": Owner.SITE}) for each in alone])
        elif entry.scope is Scope.PAIR:
            run_pairs(self._builder, self._dispatcher, entry, spec, able, later_s=later_s)
        else:
            self._over_all(entry, spec, able)

    def _several_ranks(self, entry: ProtocolCheck, spec: ProbeSpec, able: Sequence[str]) -> bool:
        """Return whether a check over all nodes can measure between the ranks of the only node."""
        several = any(self._dispatcher.pool.present[node].hello.gpus > 1 for node in able)
        return entry.scope is Scope.ALL and spec.per_gpu and several

    def _able(self, entry: ProtocolCheck) -> Sequence[str]:
        """Return the nodes that take part; add the reason for the others."""
        failed = failed_alone(self._builder)
        able = []
        for node in self._builder.nodes:
            if self._builder.has_verdict(node, entry.name) or node not in self._dispatcher.pool.present:
                # It lacks what the probe needs, or is lost; both have been said.
                continue
            if node in failed and entry.scope in {Scope.PAIR, Scope.ALL}:
                reason = "It was left out, so that others are measured without it: it had failed before."
                skipped = entry.not_run(node, node, reason)
                self._builder.add([skipped.model_copy(update={"evidence": {"follows": True}})])
                continue
            able.append(node)
        return able

    def _with_device(self, spec: ProbeSpec, able: Sequence[str]) -> ProbeSpec:
        """Return the probe, for CPUs only where no node of the group has a GPU."""
        if spec.request.get("device") != "auto":
            return spec
        gpus = any(
            self._dispatcher.pool.present[node].hello.gpus
            for node in able
            if node in self._dispatcher.pool.present
        )
        return spec.model_copy(update={"request": {**spec.request, "device": "cuda" if gpus else "cpu"}})

    def _within(self, entry: ProtocolCheck, spec: ProbeSpec, able: Sequence[str]) -> None:
        alone = [
            node for node in able if spec.per_gpu and self._dispatcher.pool.present[node].hello.gpus == 1
        ]
        reason = "The job has one GPU on this node: there is no link between GPUs to measure."
        self._builder.add([entry.without_object(node, reason) for node in alone])
        started = time.time_ns()
        outcomes = run_groups(self._dispatcher, spec, [(node,) for node in able if node not in alone])
        judged = [_judged(entry, outcome, outcome.nodes[0], started) for outcome in outcomes]
        self._builder.add(self._builder.compared(judged))

    def _over_all(self, entry: ProtocolCheck, spec: ProbeSpec, able: Sequence[str]) -> None:
        left = tuple(able)
        for _ in range(_TRIES):
            started = time.time_ns()
            (outcome,) = run_groups(self._dispatcher, spec, [left])
            culprits = [node for node in outcome.accused if node in left]
            for node in culprits:
                self._builder.run(node, "")
                if node in self._dispatcher.pool.present:
                    self._builder.add([_accusation(entry, outcome, node, started)])
            left = tuple(node for node in left if node not in culprits)
            if not culprits or len(left) < 2:
                break
        if culprits:
            reason = "It gave no measurement: nodes were lost in it repeatedly."
            self._builder.add([entry.not_run(node, node, reason) for node in left])
            return
        self._builder.add(self._builder.compared([_judged(entry, outcome, "", started)]))


def _judged(entry: ProtocolCheck, outcome: GroupOutcome, node: str, started_ns: int) -> CheckResult:
    """Return the verdict on a group's measurement; for one node, or for all where none is named."""
    finding = judge(_finding(outcome.answer, bool(outcome.accused)), entry.threshold, type_=entry.type)
    return _result(entry, finding, node, started_ns, outcome.seconds)


def _accusation(entry: ProtocolCheck, outcome: GroupOutcome, node: str, started_ns: int) -> CheckResult:
    finding = _finding(outcome.answer, accused=True)
    return _result(entry, finding, node, started_ns, outcome.seconds)


def _finding(answer: ProbeAnswer, accused: bool) -> Finding:  # noqa: FBT001
    if answer.missing:
        return Finding(
            verdict=Verdict.NOT_RUN,
            reason=one_line(answer.error),
            fix=f"Put {answer.missing} into the image.",
            owner=Owner.IMAGE,
        )
    if answer.error:
        verdict = Verdict.FAIL if accused else Verdict.INCONCLUSIVE
        return Finding(verdict=verdict, reason=one_line(answer.error), evidence=answer.evidence)
    if answer.wrong:
        return Finding(
            verdict=Verdict.FAIL,
            reason=f"{answer.wrong} values of the result were wrong.",
            fix="Don't compute on these nodes; tell the cluster's administrators.",
            evidence=answer.evidence,
        )
    if not answer.samples:
        return Finding(verdict=Verdict.INCONCLUSIVE, reason="The probe measured nothing.")
    return Finding(
        verdict=Verdict.PASS,
        reason="Values are right.",
        figure=median(answer.samples),
        unit=answer.unit,
        samples=answer.samples,
        evidence=answer.evidence,
    )


def _result(
    entry: ProtocolCheck, finding: Finding, node: str, started_ns: int, seconds: float
) -> CheckResult:
    return CheckResult(
        check=entry.name,
        type=entry.type,
        scope=entry.scope,
        subject=node or "all",
        node=node,
        verdict=finding.verdict,
        reason=finding.reason,
        fix=finding.fix,
        figure=finding.figure,
        unit=finding.unit,
        samples=finding.samples,
        threshold=entry.threshold.words(finding.unit) if entry.threshold else "",
        started_ns=started_ns,
        seconds=seconds,
        severity=entry.severity,
        owner=finding.owner,
        evidence=finding.evidence,
    )
