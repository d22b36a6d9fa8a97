"""Recovery: applies the rules after each report, and performs steps that operators approve.

`Backlog` queues the nodes to which the rules have to be applied, each node once.
"""

import asyncio
import json
import logging
import os
import shlex
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Literal, TypeVar

from sqlalchemy.orm import Session, sessionmaker

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.machine import run_command

from .cases import (
    REGISTRY,
    StepState,
    StepView,
    case_progress,
    close,
    decide,
    drained_since,
    last_cases,
    nodes_with_evidence,
    open_cases,
    open_step,
    opened_since,
    view,
)
from .nodes import NodeControl, NodeState, case_refusal, drain_refusal, resume_refusal
from .queries import audit, observations
from .rules import HOUR_NS, Action, Proposal, Rule, next_step
from .schema import StepRow
from .settings import Settings

_NOTIFY_S = 20.0
_IMMEDIATE = {Action.NOTE, Action.NOTIFY}
_T = TypeVar("_T")

_log = logging.getLogger("gipfel-registry")


class Recovery:
    """Proposer and executor of recovery steps, for one node at a time so that the limits hold.

    Parameters
    ----------
    nodes
        Nodes of the cluster ``settings.drain.cluster``.
    clock
        Returns the time in UTC nanoseconds.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        rules: Iterable[Rule],
        settings: Settings,
        nodes: NodeControl,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._sessions = sessions
        self._rules = {rule.name: rule for rule in rules}
        self._settings = settings
        self._nodes = nodes
        self._clock = clock
        self._lock = asyncio.Lock()
        self._refused_ns = 0

    async def apply_rules_to_reported(self, cluster: str, nodes: Sequence[str]) -> None:
        """Apply the rules to those nodes of a report that exist and have enough evidence."""
        known = await self._known_nodes(cluster)
        existing = [each for each in nodes if known is None or each in known]

        def query(session: Session) -> list[str]:
            vouched_only = bool(self.case_refusal_now(session))
            return nodes_with_evidence(session, cluster, existing, vouched_only=vouched_only)

        await self.apply_rules(cluster, await self.query(query))

    async def apply_rules(self, cluster: str, nodes: Iterable[str]) -> None:
        """Apply the rules to these nodes now, and perform the steps that need no approval."""
        for node in nodes:
            # Locked per node, so that an operator's decision waits for one node at most.
            async with self._lock:
                await self._advance_cases(cluster, node)

    def case_refusal_now(self, session: Session) -> str:
        """Return why unvouched reports can't open cases now; empty if they can."""
        opened = opened_since(session, self._clock() - HOUR_NS)
        return case_refusal(self._settings, opened_last_hour=opened, open_now=open_cases(session))

    async def _known_nodes(self, cluster: str) -> frozenset[str] | None:
        """Return the nodes of the scheduler; None if it can't be queried for this cluster."""
        if not cluster or cluster != self._settings.drain.cluster:
            return None
        try:
            return frozenset(await self._nodes.states())
        except GipfelError as error:
            _log.warning("The nodes of %s can't be listed: %s", cluster, error)
            return None

    async def decide(self, step_id: int, decision: Literal["approve", "dismiss"], by: str) -> StepView:
        """Perform a step that an operator approved, or close the case that an operator dismissed.

        Raises
        ------
        GipfelError
            There is no such step, it is already decided, or a limit refuses it; then it keeps waiting.
        """
        async with self._lock:
            step = await self.query(lambda session: self._pending_step(session, step_id))
            if decision == "dismiss":
                done = await self.query(lambda session: self._dismiss(session, step_id, by))
            else:
                try:
                    state, outcome = await self._perform(step)
                except GipfelError as error:
                    detail = f"{step.action} refused: {error}"
                    await self.query(
                        lambda session: _record_attempt(session, step_id, detail, by, self._clock())
                    )
                    raise
                done = await self._record_outcome(step_id, state, outcome, by)
        if decision == "approve":
            await self.apply_rules(done.cluster, [done.node])
        return done

    async def _advance_cases(self, cluster: str, node: str) -> None:
        """Propose and perform steps of each rule until one needs an operator."""
        rules = list(self._rules.values())
        while rules:
            propose = partial(self._propose, rules=rules, cluster=cluster, node=node)
            proposed = await self.query(propose)
            rules = [
                rule
                for rule, automatic, step in proposed
                if await self._perform_without_approval(step, automatic=automatic)
            ]

    async def _perform_without_approval(self, step: StepView, *, automatic: bool) -> bool:
        """Perform a step if it needs no approval; return whether it is done."""
        if step.action == Action.NOTIFY:
            detail = await self._notify(step)
            await self.query(
                lambda session: _record_attempt(session, step.id, detail, REGISTRY, self._clock())
            )
            return True
        if not (step.action == Action.DRAIN and automatic and self._settings.drain.automatic):
            return False
        try:
            state, outcome = await self._perform(step)
        except GipfelError as error:
            detail = str(error)
            await self.query(
                lambda session: _record_attempt(session, step.id, detail, REGISTRY, self._clock())
            )
            return False
        await self._record_outcome(step.id, state, outcome, REGISTRY)
        return True

    async def _perform(self, step: StepView) -> tuple[StepState, str]:
        """Run a drain or resume; other actions are an operator's own work, and are done once approved."""
        drain = self._settings.drain
        reason = f"gipfel {step.rule} {step.key}"
        if step.action == Action.DRAIN:
            states = await self._states(step.cluster)
            since = self._clock() - HOUR_NS
            count = await self.query(lambda s: drained_since(s, since, dry_run=drain.dry_run))
            refusal = drain_refusal(step.node, step.cluster, states, drain, drained_last_hour=count)
            argv = () if refusal else self._nodes.drain_command(step.node, reason)
        elif step.action == Action.RESUME:
            states = await self._states(step.cluster)
            refusal = resume_refusal(step.node, step.cluster, states, reason=reason, allowed=drain.cluster)
            argv = () if refusal else self._nodes.resume_command(step.node)
        else:
            return "done", ""
        if refusal:
            raise GipfelError(refusal)
        if drain.dry_run:
            return "dry_run", f"would run: {shlex.join(argv)}"
        await self._nodes.run(argv)
        return "done", shlex.join(argv)

    async def _states(self, cluster: str) -> Mapping[str, NodeState]:
        # The scheduler knows only its own cluster; without states, the limits refuse other clusters.
        return await self._nodes.states() if cluster == self._settings.drain.cluster else {}

    async def _notify(self, step: StepView) -> str:
        if not self._settings.notify:
            return "only shown on the page, because the setting notify is empty"
        notice = json.dumps(step.model_dump(include={"key", "cluster", "node", "rule", "text", "created"}))
        environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        try:
            done = await run_command(
                self._settings.notify, environment=environment, limit=_NOTIFY_S, stdin=notice + "\n"
            )
        except (GipfelError, TimeoutError) as error:
            return f"the notify command failed: {str(error) or 'it did not end in time'}"
        return f"the notify command ended with exit status {done.code}" if done.code else "sent"

    def _propose(
        self, session: Session, rules: Sequence[Rule], cluster: str, node: str
    ) -> list[tuple[Rule, bool, StepView]]:
        """Record the steps that are due; return their rule, whether they may be automatic, and the step.

        Notes, which need no further work, are not returned.
        """
        now = self._clock()
        node_observations = observations(
            session,
            cluster,
            node,
            since_ns=now - int(max(rule.threshold.within_h for rule in rules) * HOUR_NS),
            confirmed_only=self._settings.confirm_jobs,
        )
        cases, proposed = last_cases(session, cluster, node), []
        for rule in rules:
            case = cases.get(rule.name)
            while proposal := next_step(rule, case_progress(case), node_observations, now_ns=now):
                # The rule has no further step: the case ends.
                if proposal.step is None:
                    if case is not None:
                        close(session, case, by=REGISTRY, now_ns=now)
                    break
                if proposal.position == 0 and self._exceeds_case_limit(session, proposal):
                    break
                row = open_step(session, rule, proposal, case, cluster=cluster, node=node, now_ns=now)
                case = row.case
                if proposal.step.action in _IMMEDIATE:
                    # Recorded as done in the same transaction, so that it is never shown as waiting.
                    decide(session, row, "done", "", by=REGISTRY, now_ns=now)
                if proposal.step.action is not Action.NOTE:
                    proposed.append((rule, proposal.step.automatic, view(row)))
                    break
        return proposed

    def _exceeds_case_limit(self, session: Session, proposal: Proposal) -> bool:
        """Return whether a limit prevents a new case; log that in the audit log once an hour."""
        refusal = self.case_refusal_now(session)
        if not refusal or any(each.vouched for each in proposal.evidence):
            return False
        now = self._clock()
        if now - self._refused_ns > HOUR_NS:
            self._refused_ns = now
            audit(session, "limit", refusal, actor=REGISTRY, at_ns=now)
        return True

    def _pending_step(self, session: Session, step_id: int) -> StepView:
        row = _row(session, step_id)
        if row.state != "proposed" or row.case.closed_ns is not None:
            raise GipfelError(
                "This step was already approved or dismissed, or its case is closed.", "Reload the page."
            )
        return view(row)

    def _dismiss(self, session: Session, step_id: int, by: str) -> StepView:
        row, now = _row(session, step_id), self._clock()
        decide(session, row, "dismissed", "", by=by, now_ns=now)
        close(session, row.case, by=by, now_ns=now)
        return view(row)

    async def _record_outcome(self, step_id: int, state: StepState, outcome: str, by: str) -> StepView:
        def record(session: Session) -> StepView:
            row = _row(session, step_id)
            decide(session, row, state, outcome, by=by, now_ns=self._clock())
            return view(row)

        done = await self.query(record)
        if outcome:
            _log.warning("%s of %s by %s: %s", done.action, done.node, by, outcome)
        return done

    async def query(self, work: Callable[[Session], _T]) -> _T:
        """Return the result of ``work``, called in a thread with a database session in a transaction."""

        def run() -> _T:
            with self._sessions.begin() as session:
                return work(session)

        return await asyncio.to_thread(run)


def _row(session: Session, step_id: int) -> StepRow:
    row = session.get(StepRow, step_id)
    if row is None:
        raise GipfelError("There is no such step.", "Reload the page.")
    return row


def _record_attempt(session: Session, step_id: int, detail: str, by: str, at_ns: int) -> None:
    """Record the outcome of an attempt; an operator's refused attempt has the event ``refuse``."""
    row = _row(session, step_id)
    row.outcome = detail[:1000]
    case = row.case
    event = row.action if by == REGISTRY else "refuse"
    audit(session, event, detail, actor=by, cluster=case.cluster, node=case.node, at_ns=at_ns)


_BATCH_SIZE = 100


class Backlog:
    """Queue of reported nodes, processed by one task.

    Parameters
    ----------
    apply_rules
        Called with a cluster and some of its nodes; must not raise.
    """

    def __init__(self, apply_rules: Callable[[str, Sequence[str]], Awaitable[None]]) -> None:
        self._apply_rules = apply_rules
        self._nodes: dict[str, dict[str, None]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, cluster: str, nodes: Iterable[str]) -> None:
        """Append nodes; one that is already queued keeps its position."""
        self._nodes.setdefault(cluster, {}).update(dict.fromkeys(nodes))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def wait_until_idle(self) -> None:
        """Wait until the queue is empty."""
        while self._task and not self._task.done():
            await asyncio.wait({self._task})

    async def close(self, patience_s: float) -> None:
        """Drop queued nodes, and cancel the running work after ``patience_s`` seconds."""
        self._nodes.clear()
        if self._task and not self._task.done():
            await asyncio.wait({self._task}, timeout=patience_s)
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _work(self) -> None:
        while self._nodes:
            # One batch per cluster in turn, so that a long queue of one cluster does not delay the others.
            for cluster, waiting in list(self._nodes.items()):
                batch = list(islice(waiting, _BATCH_SIZE))
                for node in batch:
                    del waiting[node]
                if not waiting:
                    self._nodes.pop(cluster, None)
                await self._apply_rules(cluster, batch)
