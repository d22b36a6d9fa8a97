"""Coordinator of a run: each node's own checks, then groups, then a verdict for whatever is left."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import JsonValue

from ..local_probes import IMPORT_LIMIT_S
from ..model import CheckResult, Owner, Scope, Verdict
from ..one_check import is_group, time_limit, uses_torch
from ..protocol import ProtocolCheck
from .dispatch import AgentPool, Dispatcher, PendingTask, RunEnded
from .group_checks import GroupChecks
from .messages import CheckDone, RunCheck
from .report_builder import ReportBuilder, failed_alone

#: Type and name of results on a node's agent.
AGENT = "agent"
#: In the evidence of a verdict that an earlier run gave.
SKIPPED = "skipped"
#: Seconds until an agent must have come, containers' starts included.
COME_WITHIN_S = 90.0
#: Seconds that stay for the report, rounds of pairs that must fit behind the nodes' own checks, and the most
#: that these leave to checks of groups, as a share of the run's time.
_MARGIN_S, _LEAST_ROUNDS, _MOST_FOR_GROUPS = 2.0, 3, 0.4
#: A signal for a whole step reaches some agents so many seconds before this process.
_SAME_SIGNAL_S = 10.0


class Coordinator:
    """Runs a protocol on the nodes of a report.

    Parameters
    ----------
    why_not
        Why the agent of a node has ended or can't come; empty as far as nobody knows.
    ended
        Why the run must end now; empty as long as it need not.
    skipped
        Nodes whose own checks need not run again, with when they were vetted (UTC, ns).
    stop_early
        End after the nodes' own checks where one of them has failed.
    one_suffices
        As of `GroupChecks`.
    interrupted
        Whether a signal has asked this run to end.
    due
        When the run must end, by `clock`.
    """

    def __init__(
        self,
        builder: ReportBuilder,
        pool: AgentPool,
        *,
        why_not: Callable[[str], str],
        ended: Callable[[], str],
        tick: Callable[[], None],
        skipped: Mapping[str, int] | None = None,
        stop_early: bool = False,
        one_suffices: bool = False,
        come_within_s: float = COME_WITHIN_S,
        interrupted: Callable[[], bool] = lambda: False,
        due: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.builder, self._pool = builder, pool
        self._why_not, self._tick, self._stop_early = why_not, tick, stop_early
        self._one_suffices = one_suffices
        self._skipped = skipped or {}
        self._interrupted = interrupted
        self._dispatcher = Dispatcher(pool, ended, self._look, due, clock)
        self._come_by = time.monotonic() + come_within_s
        self._come_within_s = come_within_s
        self._reported_lost: set[str] = set()

    def run(self) -> str:
        """Run everything until each check has a verdict on each node; return why it ended early, or ""."""
        reason = ""
        try:
            self._run_own_checks()
            if self._stop_early and failed_alone(self.builder):
                reason = "Not run: a node had already failed, and the run was to be given up then."
            else:
                GroupChecks(self.builder, self._dispatcher, one_suffices=self._one_suffices).run()
        except RunEnded as ended:
            reason = str(ended)
        self._report_lost()
        if self._interrupted():
            self._forgive_lost()
        self._fill(reason)
        self.builder.replace(self.builder.earlier_runs.settle(self.builder.results))
        return reason

    def _run_own_checks(self) -> None:
        waiting = {node: self._own_checks(node) for node in self.builder.nodes}
        active: dict[str, tuple[ProtocolCheck, PendingTask]] = {}
        until = self._own_checks_until()
        while waiting or active:
            self._dispatcher.pump()
            late = {*waiting, *active} - self._pool.lost.keys()
            if self._dispatcher.clock() > until and not late.issuperset(self._pool.present):
                self._leave_behind(late, active)
                break
            for node, (entry, pending) in list(active.items()):
                if pending.done:
                    del active[node]
                    self.builder.run(node, "")
                    self.builder.add(_results(entry, node, pending))
            for node in list(waiting):
                if node in self._pool.lost or not waiting[node]:
                    del waiting[node]
                elif node in self._pool.present and node not in active:
                    entry = waiting[node].pop(0)
                    self.builder.run(node, entry.name)
                    active[node] = (entry, self._give(node, entry))
        self.builder.replace(self.builder.compared(self.builder.results))

    def _own_checks_until(self) -> float:
        """Return when nodes must have ended their own checks, so that there is time for those of groups."""
        groups = [each for each in self.builder.protocol.runnable if is_group(each)]
        needed = sum(time_limit(each) * (_LEAST_ROUNDS if each.scope is Scope.PAIR else 1) for each in groups)
        left = self._dispatcher.due - self._dispatcher.clock()
        return self._dispatcher.due - _MARGIN_S - min(needed, _MOST_FOR_GROUPS * left)

    def _leave_behind(
        self, late: Collection[str], active: Mapping[str, tuple[ProtocolCheck, PendingTask]]
    ) -> None:
        """Continue without nodes that take longer than the run has: they must not cost the others theirs."""
        fix = "See why this node is slow, or give the run more time (--time-limit)."
        for node in sorted(late):
            running = ""
            if node in active:
                entry, pending = active[node]
                running = entry.name
                self._dispatcher.give_up(pending)
            came = (
                "It had not ended its own checks" if node in self._pool.present else "Its agent had not come"
            )
            reason = f"{came} when the time for them was up, and others had."
            self.builder.run(node, "")
            left = [
                each
                for each in self.builder.protocol.runnable
                if not self.builder.has_verdict(node, each.name)
            ]
            # What it did at the moment is what it is left behind for.
            blamed = running or (left[0].name if left else "")
            for each in left:
                follows = {} if each.name == blamed else {"evidence": {"follows": True}}
                self.builder.add([each.not_run(node, node, reason, fix).model_copy(update=follows)])

    def _own_checks(self, node: str) -> list[ProtocolCheck]:
        """Return the checks that this node runs; add the reason for those that it skips."""
        # Torch is imported beside the checks that do without it.
        entries = sorted(self.builder.protocol.runnable, key=uses_torch)
        if node not in self._skipped:
            return entries
        alone = [entry for entry in entries if not is_group(entry)]
        when = datetime.fromtimestamp(self._skipped[node] / 1e9, UTC)
        self.builder.add([_not_again(entry, node, f"{when:%Y-%m-%d %H:%M} UTC") for entry in alone])
        return [entry for entry in entries if is_group(entry)]

    def _give(self, node: str, entry: ProtocolCheck) -> PendingTask:
        document: JsonValue = entry.model_dump(mode="json")
        limit, patience = time_limit(entry), 0.0
        torch: Literal["", "later", "now"] = ""
        if uses_torch(entry):
            torch = "now"
            patience = 0.0 if node in self._pool.torch_import_s else IMPORT_LIMIT_S
        elif any(uses_torch(each) for each in self.builder.protocol.runnable):
            torch = "later"
        return self._dispatcher.give(
            node,
            lambda task: RunCheck(task=task, entry=document, limit_s=limit, torch=torch),
            limit + patience,
        )

    def _look(self) -> None:
        late = time.monotonic() > self._come_by
        for node in self.builder.nodes:
            if node in self._pool.present or node in self._pool.lost:
                if node in self._pool.present and (problem := self._why_not(node)):
                    self._pool.lose(node, problem)
                continue
            problem = self._why_not(node)
            if problem or late:
                self._pool.lose(
                    node, f"Its agent never came: {problem or f'{self._come_within_s:g} s were not enough.'}"
                )
        self._report_lost()
        self.builder.imported(self._pool.torch_import_s)
        self._tick()

    def _report_lost(self) -> None:
        for node, reason in self._pool.lost.items():
            if node not in self._reported_lost:
                self._reported_lost.add(node)
                running = self.builder.running.get(node, "")
                self.builder.run(node, "")
                during = f" It was running the check {running}." if running else ""
                self.builder.add([_of_agent(node, f"{reason}{during}")])

    def _forgive_lost(self) -> None:
        """Remove results on agents that the signal for this run has ended as well."""
        since_ns = time.time_ns() - int(_SAME_SIGNAL_S * 1e9)
        just_now = {
            each.node for each in self.builder.results if each.type == AGENT and each.started_ns > since_ns
        }
        self._reported_lost -= just_now
        self.builder.replace(
            [each for each in self.builder.results if each.type != AGENT or each.node not in just_now]
        )

    def _fill(self, reason: str) -> None:
        """Add a verdict "not run" wherever a check has given none."""
        judged = {(each.node, each.check) for each in self.builder.results}
        for entry in self.builder.protocol.runnable:
            if ("", entry.name) in judged:
                continue
            for node in self.builder.nodes:
                if (node, entry.name) not in judged:
                    why = (
                        "The node's agent was lost."
                        if node in self._reported_lost
                        else reason or "It gave no verdict."
                    )
                    missing = entry.not_run(node, node, why)
                    self.builder.add([missing.model_copy(update={"evidence": {"follows": True}})])


def _not_again(entry: ProtocolCheck, node: str, when: str) -> CheckResult:
    result = entry.not_run(node, node, f"Not run again: this node was vetted by this protocol at {when}.")
    return result.model_copy(update={"verdict": Verdict.PASS, "evidence": {SKIPPED: True}})


def _of_agent(node: str, reason: str) -> CheckResult:
    return CheckResult(
        check=AGENT,
        type=AGENT,
        scope=Scope.NODE,
        subject=node,
        node=node,
        verdict=Verdict.FAIL,
        reason=reason,
        fix="Look at the node and at the log of the step; a node that does not answer is not vetted.",
        started_ns=time.time_ns(),
    )


def _results(entry: ProtocolCheck, node: str, pending: PendingTask) -> Sequence[CheckResult]:
    answer = pending.answer
    if not isinstance(answer, CheckDone):
        # The node is lost: its agent has a result of its own.
        return []
    if answer.problem:
        return [entry.not_run(node, node, answer.problem, "See why this node is slow, or give it more time.")]
    group = is_group(entry)
    # Of a group's check a node says alone what it lacks: that it is good is for the group to find out.
    stray = [
        each
        for each in answer.results
        if each.check != entry.name or (group and each.verdict is Verdict.PASS)
    ]
    if stray or not (answer.results or group):
        silent = entry.not_run(
            node, node, "The check gave no verdict.", "Report it to whoever wrote the check."
        )
        return [silent.model_copy(update={"owner": Owner.NODE})]
    own = {"type": entry.type, "scope": entry.scope, "severity": entry.severity}
    return [each.model_copy(update=own) for each in answer.results]
