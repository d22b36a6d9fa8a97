"""Coordinator of a run: checks of single nodes, then of groups, then verdicts for checks that did not run."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from ..model import CheckResult, Owner, Scope, Verdict
from ..one_check import is_group, time_limit, uses_torch
from ..probing import IMPORT_LIMIT_S
from ..protocol import ProtocolCheck
from .dispatch import AgentPool, Dispatcher, PendingTask, RunEnded
from .group_checks import GroupChecks
from .messages import CheckDone, RunCheck
from .report_builder import ReportBuilder, failed_alone

#: Check name and type of results about a node's agent.
AGENT = "agent"
#: Evidence key of a verdict that is taken from an earlier run.
SKIPPED = "skipped"
#: Seconds within which an agent must connect, including the start of its container.
CONNECT_LIMIT_S = 90.0
#: Seconds reserved for the report; rounds of pairs that must fit after the nodes' own checks; and the share
#: of the run's time that is reserved for group checks at most.
_MARGIN_S, _MIN_ROUNDS, _MAX_GROUP_SHARE = 2.0, 3, 0.4
#: A signal to the whole step may reach some agents this many seconds before this process.
_SAME_SIGNAL_S = 10.0


class Coordinator:
    """Runs a protocol on the nodes of a report.

    Parameters
    ----------
    agent_problem
        Returns why the agent of a node has ended or can't connect; empty if that is unknown.
    end_reason
        Returns why the run must end now; empty if it need not.
    skipped
        Nodes whose own checks are skipped, and when they were vetted (UTC, ns).
    stop_early
        Whether to end after the nodes' own checks if one of them has failed.
    single_node_allowed
        See `GroupChecks`.
    interrupted
        Returns whether a signal has interrupted the run.
    due
        When the run must end, by `clock`.
    """

    def __init__(
        self,
        builder: ReportBuilder,
        pool: AgentPool,
        *,
        agent_problem: Callable[[str], str],
        end_reason: Callable[[], str],
        tick: Callable[[], None],
        skipped: Mapping[str, int] | None = None,
        stop_early: bool = False,
        single_node_allowed: bool = False,
        connect_limit_s: float = CONNECT_LIMIT_S,
        interrupted: Callable[[], bool] = lambda: False,
        due: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.builder, self._pool = builder, pool
        builder.torch_import_s = pool.torch_import_s
        self._agent_problem, self._tick, self._stop_early = agent_problem, tick, stop_early
        self._one_suffices = single_node_allowed
        self._skipped = skipped or {}
        self._interrupted = interrupted
        self._dispatcher = Dispatcher(pool, end_reason, self._update, due, clock)
        self._connect_deadline = time.monotonic() + connect_limit_s
        self._connect_limit_s = connect_limit_s

    def run(self) -> str:
        """Run all checks until each has a verdict on each node; return why it ended early, or ""."""
        reason = ""
        try:
            self._run_own_checks()
            if self._stop_early and failed_alone(self.builder):
                reason = "Not run: a node had already failed, and the action 'abort' ends the run."
            else:
                GroupChecks(self.builder, self._dispatcher, single_node_allowed=self._one_suffices).run()
        except RunEnded as ended:
            reason = str(ended)
        self._report_lost()
        if self._interrupted():
            self._drop_recently_lost()
        self._add_missing(reason)
        self.builder.replace(self.builder.earlier_runs.settle(self.builder.results))
        return reason

    def _run_own_checks(self) -> None:
        waiting = {node: self._own_checks(node) for node in self.builder.nodes}
        active: dict[str, tuple[ProtocolCheck, PendingTask]] = {}
        until = self._own_checks_until()
        while waiting or active:
            self._dispatcher.process_messages()
            unfinished = {*waiting, *active} - self._pool.lost.keys()
            if self._dispatcher.clock() > until and not unfinished.issuperset(self._pool.present):
                self._give_up_slow(unfinished, active)
                break
            for node, (entry, pending) in list(active.items()):
                if pending.done:
                    del active[node]
                    self.builder.set_running(node, "")
                    self.builder.add(_results(entry, node, pending))
            for node in list(waiting):
                if node in self._pool.lost or not waiting[node]:
                    del waiting[node]
                elif node in self._pool.present and node not in active:
                    entry = waiting[node].pop(0)
                    self.builder.set_running(node, entry.name)
                    active[node] = (entry, self._submit(node, entry))
        self.builder.replace(self.builder.compare(self.builder.results))

    def _own_checks_until(self) -> float:
        """Return the time by which nodes must have ended their own checks, to leave time for group checks."""
        groups = [each for each in self.builder.protocol.runnable if is_group(each)]
        needed = sum(time_limit(each) * (_MIN_ROUNDS if each.scope is Scope.PAIR else 1) for each in groups)
        left = self._dispatcher.due - self._dispatcher.clock()
        return self._dispatcher.due - _MARGIN_S - min(needed, _MAX_GROUP_SHARE * left)

    def _give_up_slow(
        self, slow: Collection[str], active: Mapping[str, tuple[ProtocolCheck, PendingTask]]
    ) -> None:
        """Add results "not run" for nodes that are too slow, so that the other nodes can continue."""
        fix = "Find out why this node is slow, or give the run more time (--time-limit)."
        for node in sorted(slow):
            running = self.builder.running.get(node, "")
            if node in active:
                self._dispatcher.give_up(active[node][1])
            state = (
                "It had not finished its own checks"
                if node in self._pool.present
                else "Its agent had not connected"
            )
            reason = f"{state} when the time for these was up; other nodes had."
            self.builder.set_running(node, "")
            remaining = [
                each
                for each in self.builder.protocol.runnable
                if not self.builder.has_verdict(node, each.name)
            ]
            # The running check is blamed; the others are a consequence.
            blamed = running or (remaining[0].name if remaining else "")
            for each in remaining:
                evidence = {} if each.name == blamed else {"consequence": True}
                self.builder.add([each.not_run(node, reason, fix, evidence=evidence)])

    def _own_checks(self, node: str) -> list[ProtocolCheck]:
        """Return the checks that this node runs; add results for those that it skips."""
        # Checks without torch come first, because torch is imported meanwhile.
        entries = sorted(self.builder.protocol.runnable, key=uses_torch)
        if node not in self._skipped:
            return entries
        alone = [entry for entry in entries if not is_group(entry)]
        when = datetime.fromtimestamp(self._skipped[node] / 1e9, UTC)
        reason = f"Not run again: this node was vetted by this protocol at {when:%Y-%m-%d %H:%M} UTC."
        self.builder.add(
            [entry.not_run(node, reason, verdict=Verdict.PASS, evidence={SKIPPED: True}) for entry in alone]
        )
        return [entry for entry in entries if is_group(entry)]

    def _submit(self, node: str, entry: ProtocolCheck) -> PendingTask:
        limit, import_limit = time_limit(entry), 0.0
        torch: Literal["", "later", "now"] = ""
        if uses_torch(entry):
            torch = "now"
            import_limit = 0.0 if node in self._pool.torch_import_s else IMPORT_LIMIT_S
        elif any(uses_torch(each) for each in self.builder.protocol.runnable):
            torch = "later"
        return self._dispatcher.submit(
            node,
            partial(RunCheck, entry=entry, limit_s=limit, torch=torch),
            limit + import_limit,
        )

    def _update(self) -> None:
        late = time.monotonic() > self._connect_deadline
        for node in [node for node in self.builder.nodes if node not in self._pool.lost]:
            problem = self._agent_problem(node)
            if node not in self._pool.present and (problem or late):
                cause = problem or f"it had {self._connect_limit_s:g} s to do so."
                problem = f"Its agent never connected: {cause}"
            if problem:
                self._pool.lose(node, problem)
        self._report_lost()
        self._tick()

    def _report_lost(self) -> None:
        for node, reason in self._pool.lost.items():
            if not self.builder.has_verdict(node, AGENT):
                running = self.builder.running.get(node, "")
                self.builder.set_running(node, "")
                during = f" It was running the check {running}." if running else ""
                self.builder.add([_agent_result(node, f"{reason}{during}")])

    def _drop_recently_lost(self) -> None:
        """Remove the results of agents that ended because the signal reached them too."""
        since_ns = time.time_ns() - int(_SAME_SIGNAL_S * 1e9)
        recent = {
            each.node for each in self.builder.results if each.type == AGENT and each.started_ns > since_ns
        }
        self.builder.replace(
            [each for each in self.builder.results if each.type != AGENT or each.node not in recent]
        )

    def _add_missing(self, reason: str) -> None:
        """Add a result "not run" for every check that has none."""
        judged = {(each.node, each.check) for each in self.builder.results}
        missing = [
            (entry, node)
            for entry in self.builder.protocol.runnable
            for node in self.builder.nodes
            if judged.isdisjoint({("", entry.name), (node, entry.name)})
        ]
        for entry, node in missing:
            lost = "The node's agent was lost." if (node, AGENT) in judged else ""
            cause = lost or reason or "The check gave no verdict."
            self.builder.add([entry.not_run(node, cause, evidence={"consequence": True})])


def _agent_result(node: str, reason: str) -> CheckResult:
    return CheckResult(
        check=AGENT,
        type=AGENT,
        scope=Scope.NODE,
        subject=node,
        node=node,
        verdict=Verdict.FAIL,
        reason=reason,
        fix="Check the node and the log of the job step. A node that does not respond is not vetted.",
        started_ns=time.time_ns(),
    )


def _results(entry: ProtocolCheck, node: str, pending: PendingTask) -> Sequence[CheckResult]:
    answer = pending.answer
    if not isinstance(answer, CheckDone):
        # The node is lost, for which there is a result of its agent.
        return []
    if answer.problem:
        fix = "Find out why this node is slow, or raise the check's time_limit."
        return [entry.not_run(node, answer.problem, fix)]
    group = is_group(entry)
    # For a group check, a node only reports what it lacks; only the group can pass it.
    invalid = [
        each
        for each in answer.results
        if each.check != entry.name or (group and each.verdict is Verdict.PASS)
    ]
    if invalid or not (answer.results or group):
        fix = "Report this to the author of the check."
        return [entry.not_run(node, "The check gave no valid verdict.", fix, owner=Owner.NODE)]
    own = {"type": entry.type, "scope": entry.scope, "severity": entry.severity}
    return [each.model_copy(update=own) for each in answer.results]
