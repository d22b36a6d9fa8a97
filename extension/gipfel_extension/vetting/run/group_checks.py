"""Run group checks: within each node, between pairs of nodes, and over all nodes that are still good."""

import time
from collections.abc import Sequence
from statistics import median

from gipfel_cluster.model import one_line

from ..model import CheckResult, Finding, Owner, Scope, Verdict
from ..one_check import group_probe, is_group, result_of, time_limit
from ..probing import ProbeAnswer, ProbeSpec
from ..protocol import ProtocolCheck
from ..threshold import judge
from .dispatch import Dispatcher
from .groups import GroupOutcome, run_groups
from .pairs import run_pairs
from .report_builder import ReportBuilder, failed_alone

_ORDER = (Scope.GPU, Scope.NODE, Scope.PAIR, Scope.ALL)
#: Attempts with all nodes; each leaves out those that failed in an earlier one.
_MAX_ATTEMPTS = 3


class GroupChecks:
    """Runner of a protocol's group checks, the smallest groups first.

    Parameters
    ----------
    single_node_allowed
        Whether the job may continue with one node, which then needs no measurement between nodes.
    """

    def __init__(
        self, builder: ReportBuilder, dispatcher: Dispatcher, *, single_node_allowed: bool = False
    ) -> None:
        self._builder, self._dispatcher, self._one_suffices = builder, dispatcher, single_node_allowed

    def run(self) -> None:
        """Run all group checks; nodes that have failed are left out of pairs and of groups of all nodes.

        Raises
        ------
        RunEnded
            The run ended before all checks were done.
        """
        entries = [entry for entry in self._builder.protocol.runnable if is_group(entry)]
        entries.sort(key=lambda each: _ORDER.index(each.scope))
        for index, entry in enumerate(entries):
            nodes = self._participants(entry)
            spec = self._with_device(group_probe(entry), nodes)
            for node in nodes:
                self._builder.set_running(node, entry.name)
            try:
                self._run(entry, spec, nodes, sum(map(time_limit, entries[index + 1 :])))
            finally:
                for node in nodes:
                    self._builder.set_running(node, "")

    def _run(self, entry: ProtocolCheck, spec: ProbeSpec, nodes: Sequence[str], later_s: float) -> None:
        # `later_s` are the seconds that the following checks may need.
        if entry.scope in {Scope.GPU, Scope.NODE}:
            self._within_nodes(entry, spec, nodes)
        elif (
            len(self._builder.nodes) == 1
            and not entry.skip_if_alone
            and self._several_ranks(entry, spec, nodes)
        ):
            self._over_all_nodes(entry, spec, nodes)
        elif len(self._builder.nodes) == 1:
            reason = "The job has one node: there is no other to measure with."
            self._builder.add([entry.not_applicable(node, reason) for node in nodes])
        elif len(nodes) < 2 and self._one_suffices:
            reason = "There is no other good node to measure with, and the job may continue with one node."
            self._builder.add([entry.not_applicable(node, reason) for node in nodes])
        elif len(nodes) < 2:
            reason = "There is no other good node to measure with."
            self._builder.add([entry.not_run(node, reason, owner=Owner.SITE) for node in nodes])
        elif entry.scope is Scope.PAIR:
            run_pairs(self._builder, self._dispatcher, entry, spec, nodes, later_s=later_s)
        else:
            self._over_all_nodes(entry, spec, nodes)

    def _several_ranks(self, entry: ProtocolCheck, spec: ProbeSpec, nodes: Sequence[str]) -> bool:
        """Return whether a check over all nodes can measure between the ranks of the only node."""
        return entry.scope is Scope.ALL and spec.per_gpu and self._dispatcher.pool.gpus(nodes) > 1

    def _participants(self, entry: ProtocolCheck) -> Sequence[str]:
        """Return the nodes that take part; add results for the others."""
        failed = failed_alone(self._builder)
        nodes = []
        for node in self._builder.nodes:
            if self._builder.has_verdict(node, entry.name) or node not in self._dispatcher.pool.present:
                # The node lacks what the probe needs, or is lost; in both cases it already has a result.
                continue
            if node in failed and entry.scope in {Scope.PAIR, Scope.ALL}:
                reason = "It did not take part, because it had failed other checks."
                # Reports don't count what only follows from another failure.
                self._builder.add([entry.not_run(node, reason, evidence={"consequence": True})])
                continue
            nodes.append(node)
        return nodes

    def _with_device(self, spec: ProbeSpec, nodes: Sequence[str]) -> ProbeSpec:
        """Return the probe with "auto" replaced: "cpu" only if no node of the group has a GPU."""
        if spec.request.get("device") != "auto":
            return spec
        device = "cuda" if self._dispatcher.pool.gpus(nodes) else "cpu"
        return spec.model_copy(update={"request": {**spec.request, "device": device}})

    def _within_nodes(self, entry: ProtocolCheck, spec: ProbeSpec, nodes: Sequence[str]) -> None:
        single_gpu = [
            node for node in nodes if spec.per_gpu and self._dispatcher.pool.present[node].hello.gpus == 1
        ]
        reason = "The job has one GPU on this node: there is no link between GPUs to measure."
        self._builder.add([entry.not_applicable(node, reason) for node in single_gpu])
        started = time.time_ns()
        outcomes = run_groups(self._dispatcher, spec, [(node,) for node in nodes if node not in single_gpu])
        judged = [_result(entry, outcome, outcome.nodes[0], started) for outcome in outcomes]
        self._builder.add(self._builder.compare(judged))

    def _over_all_nodes(self, entry: ProtocolCheck, spec: ProbeSpec, nodes: Sequence[str]) -> None:
        remaining = tuple(nodes)
        for _ in range(_MAX_ATTEMPTS):
            started = time.time_ns()
            (outcome,) = run_groups(self._dispatcher, spec, [remaining])
            faulty = [node for node in outcome.accused if node in remaining]
            for node in faulty:
                self._builder.set_running(node, "")
                if node in self._dispatcher.pool.present:
                    self._builder.add([_result(entry, outcome, node, started)])
            remaining = tuple(node for node in remaining if node not in faulty)
            if not faulty or len(remaining) < 2:
                break
        if faulty:
            reason = "There is no measurement, because nodes were lost or failed in it."
            self._builder.add([entry.not_run(node, reason) for node in remaining])
            return
        self._builder.add(self._builder.compare([_result(entry, outcome, "", started)]))


def _result(entry: ProtocolCheck, outcome: GroupOutcome, node: str, started_ns: int) -> CheckResult:
    """Return the result of a group's measurement; it counts for all nodes if `node` is empty."""
    finding = judge(_finding(outcome.answer, bool(outcome.accused)), entry.threshold, type_=entry.type)
    return result_of(entry, finding, node, started_ns, outcome.seconds)


def _finding(answer: ProbeAnswer, accused: bool) -> Finding:  # noqa: FBT001
    if answer.missing:
        return Finding(
            verdict=Verdict.NOT_RUN,
            reason=one_line(answer.error),
            fix=f"Install {answer.missing} in the image.",
            owner=Owner.IMAGE,
        )
    if answer.error:
        verdict = Verdict.FAIL if accused else Verdict.INCONCLUSIVE
        return Finding(verdict=verdict, reason=one_line(answer.error), evidence=answer.evidence)
    if answer.wrong:
        return Finding(
            verdict=Verdict.FAIL,
            reason=f"{answer.wrong} values of the result are wrong.",
            fix="Don't compute on these nodes, and tell the operators.",
            evidence=answer.evidence,
        )
    if not answer.samples:
        return Finding(verdict=Verdict.INCONCLUSIVE, reason="The probe measured nothing.")
    return Finding(
        verdict=Verdict.PASS,
        reason="All values are correct.",
        measurement=median(answer.samples),
        unit=answer.unit,
        samples=answer.samples,
        evidence=answer.evidence,
    )
