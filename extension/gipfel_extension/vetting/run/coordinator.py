"""The course of a vetting run: each node's own checks, then groups, then a verdict for whatever is left."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import JsonValue

from ..fork_server import IMPORT_LIMIT_S
from ..model import CheckResult, Owner, Scope, Verdict
from ..one_check import is_group, time_limit, uses_torch
from ..protocol import ProtocolCheck
from .board import Board
from .desk import Desk, RunEnded, Ticket
from .group_checks import GroupChecks
from .judging import failed_alone
from .messages import CheckDone, RunCheck
from .peers import Peers

#: Type and name of what is said of a node's agent.
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
    """Runs a protocol on the nodes of a board.

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
        board: Board,
        peers: Peers,
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
        self.board, self._peers = board, peers
        self._why_not, self._tick, self._stop_early = why_not, tick, stop_early
        self._one_suffices = one_suffices
        self._skipped = skipped or {}
        self._interrupted = interrupted
        self._desk = Desk(peers, ended, self._look, due, clock)
        self._come_by = time.monotonic() + come_within_s
        self._come_within_s = come_within_s
        self._told: set[str] = set()

    def run(self) -> str:
        """Run everything; why it ended early, or nothing. Then every check has a verdict on every node."""
        reason = ""
        try:
            self._run_own_checks()
            if self._stop_early and failed_alone(self.board):
                reason = "Not run: a node had already failed, and the run was to be given up then."
            else:
                GroupChecks(self.board, self._desk, one_suffices=self._one_suffices).run()
        except RunEnded as ended:
            reason = str(ended)
        self._tell_lost()
        if self._interrupted():
            self._forgive_lost()
        self._fill(reason)
        self.board.replace(self.board.past.settle(self.board.results))
        return reason

    def _run_own_checks(self) -> None:
        waiting = {node: self._own_checks(node) for node in self.board.nodes}
        active: dict[str, tuple[ProtocolCheck, Ticket]] = {}
        until = self._own_checks_until()
        while waiting or active:
            self._desk.pump()
            late = {*waiting, *active} - self._peers.lost.keys()
            if self._desk.clock() > until and not late.issuperset(self._peers.present):
                self._leave_behind(late, active)
                break
            for node, (entry, ticket) in list(active.items()):
                if ticket.done:
                    del active[node]
                    self.board.run(node, "")
                    self.board.add(_results(entry, node, ticket))
            for node in list(waiting):
                if node in self._peers.lost or not waiting[node]:
                    del waiting[node]
                elif node in self._peers.present and node not in active:
                    entry = waiting[node].pop(0)
                    self.board.run(node, entry.name)
                    active[node] = (entry, self._give(node, entry))
        self.board.replace(self.board.compared(self.board.results))

    def _own_checks_until(self) -> float:
        """Return when nodes must have ended their own checks, so that there is time for those of groups."""
        groups = [each for each in self.board.protocol.runnable if is_group(each)]
        needed = sum(time_limit(each) * (_LEAST_ROUNDS if each.scope is Scope.PAIR else 1) for each in groups)
        left = self._desk.due - self._desk.clock()
        return self._desk.due - _MARGIN_S - min(needed, _MOST_FOR_GROUPS * left)

    def _leave_behind(
        self, late: Collection[str], active: Mapping[str, tuple[ProtocolCheck, Ticket]]
    ) -> None:
        """Go on without nodes that take longer than there is time: they must not cost the others theirs."""
        fix = "See why this node is slow, or give the run more time (--time-limit)."
        for node in sorted(late):
            running = ""
            if node in active:
                entry, ticket = active[node]
                running = entry.name
                self._desk.give_up(ticket)
            came = (
                "It had not ended its own checks" if node in self._peers.present else "Its agent had not come"
            )
            reason = f"{came} when the time for them was up, and others had."
            self.board.run(node, "")
            left = [each for each in self.board.protocol.runnable if not self.board.heard_of(node, each.name)]
            # What it did at the moment is what it is left behind for.
            blamed = running or (left[0].name if left else "")
            for each in left:
                follows = {} if each.name == blamed else {"evidence": {"follows": True}}
                self.board.add([each.not_run(node, node, reason, fix).model_copy(update=follows)])

    def _own_checks(self, node: str) -> list[ProtocolCheck]:
        """What this node runs; of what it need not run again it is said why."""
        # Torch is imported beside the checks that do without it.
        entries = sorted(self.board.protocol.runnable, key=uses_torch)
        if node not in self._skipped:
            return entries
        alone = [entry for entry in entries if not is_group(entry)]
        when = datetime.fromtimestamp(self._skipped[node] / 1e9, UTC)
        self.board.add([_not_again(entry, node, f"{when:%Y-%m-%d %H:%M} UTC") for entry in alone])
        return [entry for entry in entries if is_group(entry)]

    def _give(self, node: str, entry: ProtocolCheck) -> Ticket:
        document: JsonValue = entry.model_dump(mode="json")
        limit, patience = time_limit(entry), 0.0
        torch: Literal["", "later", "now"] = ""
        if uses_torch(entry):
            torch = "now"
            patience = 0.0 if node in self._peers.torch_import_s else IMPORT_LIMIT_S
        elif any(uses_torch(each) for each in self.board.protocol.runnable):
            torch = "later"
        return self._desk.give(
            node,
            lambda task: RunCheck(task=task, entry=document, limit_s=limit, torch=torch),
            limit + patience,
        )

    def _look(self) -> None:
        late = time.monotonic() > self._come_by
        for node in self.board.nodes:
            if node in self._peers.present or node in self._peers.lost:
                if node in self._peers.present and (problem := self._why_not(node)):
                    self._peers.lose(node, problem)
                continue
            problem = self._why_not(node)
            if problem or late:
                self._peers.lose(
                    node, f"Its agent never came: {problem or f'{self._come_within_s:g} s were not enough.'}"
                )
        self._tell_lost()
        self.board.imported(self._peers.torch_import_s)
        self._tick()

    def _tell_lost(self) -> None:
        for node, reason in self._peers.lost.items():
            if node not in self._told:
                self._told.add(node)
                running = self.board.running.get(node, "")
                self.board.run(node, "")
                during = f" It was running the check {running}." if running else ""
                self.board.add([_of_agent(node, f"{reason}{during}")])

    def _forgive_lost(self) -> None:
        """Take back what was said of agents that the signal for this run has ended as well."""
        since_ns = time.time_ns() - int(_SAME_SIGNAL_S * 1e9)
        just_now = {
            each.node for each in self.board.results if each.type == AGENT and each.started_ns > since_ns
        }
        self._told -= just_now
        self.board.replace(
            [each for each in self.board.results if each.type != AGENT or each.node not in just_now]
        )

    def _fill(self, reason: str) -> None:
        """A verdict "not run" wherever a check has said nothing of a node."""
        heard = {(each.node, each.check) for each in self.board.results}
        for entry in self.board.protocol.runnable:
            if ("", entry.name) in heard:
                continue
            for node in self.board.nodes:
                if (node, entry.name) not in heard:
                    why = (
                        "The node's agent was lost."
                        if node in self._told
                        else reason or "It gave no verdict."
                    )
                    missing = entry.not_run(node, node, why)
                    self.board.add([missing.model_copy(update={"evidence": {"follows": True}})])


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


def _results(entry: ProtocolCheck, node: str, ticket: Ticket) -> Sequence[CheckResult]:
    answer = ticket.answer
    if not isinstance(answer, CheckDone):
        # The node is lost, which is said of its agent.
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
