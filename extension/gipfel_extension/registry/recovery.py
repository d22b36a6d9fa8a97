"""Carries cases on: after each report, and when an operator decides.

The nodes that rules still have to look at, after reports: a piece at a time, each node once.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Literal, TypeVar

from sqlalchemy.orm import Session, sessionmaker

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.command import run_command

from .cases import (
    REGISTRY,
    StepState,
    StepView,
    close,
    decide,
    drained_since,
    last_cases,
    nodes_to_consider,
    open_cases,
    open_step,
    opened_since,
    so_far,
    view,
)
from .nodes import Nodes, NodeState, as_typed, case_refusal, drain_refusal, resume_refusal
from .queries import statements
from .records import audit
from .rules import Action, Proposal, Rule, next_step
from .schema import StepRow
from .settings import Settings

_HOUR_NS = 3600 * 10**9
_NOTIFY_S = 20.0
_AT_ONCE = {Action.NOTE, Action.NOTIFY}
_T = TypeVar("_T")

_log = logging.getLogger("gipfel-registry")


class Recovery:
    """The one that proposes and does; one node at a time, so that limits hold.

    Parameters
    ----------
    nodes
        The cluster of ``settings.drain.cluster``.
    clock
        UTC nanoseconds.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        rules: Iterable[Rule],
        settings: Settings,
        nodes: Nodes,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._sessions = sessions
        self._rules = {rule.name: rule for rule in rules}
        self._settings = settings
        self._nodes = nodes
        self._clock = clock
        self._lock = asyncio.Lock()
        self._refused_ns = 0

    async def consider_reported(self, cluster: str, nodes: Sequence[str]) -> None:
        """Apply the rules to those of the nodes that can matter, after a report of them."""
        known = await self._known(cluster)
        named = [each for each in nodes if known is None or each in known]

        def worth(session: Session) -> list[str]:
            full = bool(self.refusal_of_cases(session))
            return nodes_to_consider(session, cluster, named, vouched_only=full)

        await self.consider(cluster, await self._in_thread(worth))

    async def consider(self, cluster: str, nodes: Iterable[str]) -> None:
        """See what the rules make of these nodes now, and do what needs no person."""
        for node in nodes:
            # Taken for each node: an operator who decides meanwhile waits for one of them.
            async with self._lock:
                await self._carry_on(cluster, node)

    def refusal_of_cases(self, session: Session) -> str:
        """Return why users' reports open no more cases now; empty where they do."""
        opened = opened_since(session, self._clock() - _HOUR_NS)
        return case_refusal(self._settings, opened_last_hour=opened, open_now=open_cases(session))

    async def _known(self, cluster: str) -> frozenset[str] | None:
        """Return the nodes that the scheduler has; None of a cluster that it says nothing about."""
        if not cluster or cluster != self._settings.drain.cluster:
            return None
        try:
            return frozenset(await self._nodes.states())
        except GipfelError as error:
            _log.warning("The nodes of %s are not known: %s", cluster, error)
            return None

    async def decide(self, step_id: int, decision: Literal["approve", "dismiss"], by: str) -> StepView:
        """Do what an operator approved, or close the case that they dismissed.

        Raises
        ------
        GipfelError
            There is no such step, it is decided already, or it may not be done; it waits on then.
        """
        async with self._lock:
            step = await self._in_thread(lambda session: self._waiting(session, step_id))
            if decision == "dismiss":
                done = await self._in_thread(lambda session: self._dismiss(session, step_id, by))
            else:
                try:
                    state, outcome = await self._perform(step)
                except GipfelError as error:
                    words = f"{step.action} refused: {error}"
                    await self._in_thread(lambda session: _remark(session, step_id, words, by, self._clock()))
                    raise
                done = await self._settle(step_id, state, outcome, by)
        if decision == "approve":
            await self.consider(done.cluster, [done.node])
        return done

    async def _carry_on(self, cluster: str, node: str) -> None:
        """Go as far as each rule gets without a person."""
        rules = list(self._rules.values())
        while rules:
            propose = partial(self._propose, rules=rules, cluster=cluster, node=node)
            proposed = await self._in_thread(propose)
            rules = [rule for rule, step in proposed if await self._do_alone(rule, step)]

    async def _do_alone(self, rule: Rule, step: StepView) -> bool:
        """Do a step that needs no person; whether it is done."""
        action = Action(step.action)
        if action in _AT_ONCE:
            if action is Action.NOTIFY:
                words = await self._notify(step)
                await self._in_thread(
                    lambda session: _remark(session, step.id, words, REGISTRY, self._clock())
                )
            return True
        position = await self._in_thread(lambda session: _row(session, step.id).position)
        if not (action is Action.DRAIN and rule.steps[position].automatic and self._settings.drain.automatic):
            return False
        try:
            state, outcome = await self._perform(step)
        except GipfelError as error:
            words = str(error)
            await self._in_thread(lambda session: _remark(session, step.id, words, REGISTRY, self._clock()))
            return False
        await self._settle(step.id, state, outcome, REGISTRY)
        return True

    async def _perform(self, step: StepView) -> tuple[StepState, str]:
        """Do it; what only a person can do is done when they say so."""
        drain = self._settings.drain
        reason = f"gipfel {step.rule} {step.key}"
        if step.action == Action.DRAIN:
            states = await self._states(step.cluster)
            since = self._clock() - _HOUR_NS
            count = await self._in_thread(lambda s: drained_since(s, since, dry_run=drain.dry_run))
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
            return "dry_run", f"would run: {as_typed(argv)}"
        await self._nodes.run(argv)
        return "done", as_typed(argv)

    async def _states(self, cluster: str) -> Mapping[str, NodeState]:
        # Of another cluster our scheduler says nothing, and the limits refuse it.
        return await self._nodes.states() if cluster == self._settings.drain.cluster else {}

    async def _notify(self, step: StepView) -> str:
        if not self._settings.notify:
            return "shown on the page; no command is set"
        given = json.dumps(step.model_dump(include={"key", "cluster", "node", "rule", "text", "created"}))
        environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        try:
            done = await run_command(
                self._settings.notify, environment=environment, limit=_NOTIFY_S, given=given + "\n"
            )
        except (GipfelError, TimeoutError) as error:
            return f"the command failed: {str(error) or 'it did not end in time'}"
        return f"the command ended with {done.code}" if done.code else "sent"

    def _propose(
        self, session: Session, rules: Sequence[Rule], cluster: str, node: str
    ) -> list[tuple[Rule, StepView]]:
        """Write down what is due, and return it with its rule; a note is done with that."""
        now = self._clock()
        heard = statements(
            session,
            cluster,
            node,
            since_ns=now - int(max(rule.enough.within_h for rule in rules) * _HOUR_NS),
            confirmed_only=self._settings.confirm_jobs,
        )
        cases, proposed = last_cases(session, cluster, node), []
        for rule in rules:
            case = cases.get(rule.name)
            while proposal := next_step(rule, so_far(case), heard, now_ns=now):
                if proposal.step is None:
                    if case is not None:
                        close(session, case, by=REGISTRY, now_ns=now)
                    break
                if proposal.position == 0 and self._is_one_too_many(session, proposal):
                    break
                row = open_step(session, rule, proposal, case, cluster=cluster, node=node, now_ns=now)
                case = row.case
                if proposal.step.action in _AT_ONCE:
                    # Nobody is to see it wait: it is done with being written down.
                    decide(session, row, "done", "", by=REGISTRY, now_ns=now)
                if proposal.step.action is not Action.NOTE:
                    proposed.append((rule, view(row)))
                    break
        return proposed

    def _is_one_too_many(self, session: Session, proposal: Proposal) -> bool:
        """Return whether no case may be opened for this, which is written down once an hour."""
        refusal = self.refusal_of_cases(session)
        if not refusal or any(each.vouched for each in proposal.evidence):
            return False
        now = self._clock()
        if now - self._refused_ns > _HOUR_NS:
            self._refused_ns = now
            audit(session, "limit", refusal, actor=REGISTRY, at_ns=now)
        return True

    def _waiting(self, session: Session, step_id: int) -> StepView:
        row = _row(session, step_id)
        if row.state != "proposed" or row.case.closed_ns is not None:
            raise GipfelError("This step is decided already.", "Load the page again.")
        return view(row)

    def _dismiss(self, session: Session, step_id: int, by: str) -> StepView:
        row, now = _row(session, step_id), self._clock()
        decide(session, row, "dismissed", "", by=by, now_ns=now)
        close(session, row.case, by=by, now_ns=now)
        return view(row)

    async def _settle(self, step_id: int, state: StepState, outcome: str, by: str) -> StepView:
        def settle(session: Session) -> StepView:
            row = _row(session, step_id)
            decide(session, row, state, outcome, by=by, now_ns=self._clock())
            return view(row)

        done = await self._in_thread(settle)
        if outcome:
            _log.warning("%s of %s by %s: %s", done.action, done.node, by, outcome)
        return done

    async def _in_thread(self, work: Callable[[Session], _T]) -> _T:
        def run() -> _T:
            with self._sessions.begin() as session:
                return work(session)

        return await asyncio.to_thread(run)


def _row(session: Session, step_id: int) -> StepRow:
    row = session.get(StepRow, step_id)
    if row is None:
        raise GipfelError("There is no such step.", "Load the page again.")
    return row


def _remark(session: Session, step_id: int, words: str, by: str, at_ns: int) -> None:
    """Say what came of trying: the event of an operator's try is `refuse`."""
    row = _row(session, step_id)
    row.outcome = words[:1000]
    case = row.case
    event = row.action if by == REGISTRY else "refuse"
    audit(session, event, words, actor=by, cluster=case.cluster, node=case.node, at_ns=at_ns)


_PIECE = 100


class Backlog:
    """Nodes in the order in which they were reported; one task works through them.

    Parameters
    ----------
    consider
        What is called with a cluster and some of its nodes; it must not raise.
    """

    def __init__(self, consider: Callable[[str, Sequence[str]], Awaitable[None]]) -> None:
        self._consider = consider
        self._nodes: dict[str, dict[str, None]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, cluster: str, nodes: Iterable[str]) -> None:
        """Put nodes at the end; one that waits already keeps its place."""
        self._nodes.setdefault(cluster, {}).update(dict.fromkeys(nodes))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def settled(self) -> None:
        """Wait until no node is left."""
        while self._task and not self._task.done():
            await asyncio.wait({self._task})

    async def close(self, patience_s: float) -> None:
        """Drop what waits; what is under way has so many seconds to end."""
        self._nodes.clear()
        if self._task and not self._task.done():
            await asyncio.wait({self._task}, timeout=patience_s)
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _work(self) -> None:
        while self._nodes:
            # A piece of each cluster in turn: a long list of one holds up no other.
            for cluster, waiting in list(self._nodes.items()):
                piece = list(islice(waiting, _PIECE))
                for node in piece:
                    del waiting[node]
                if not waiting:
                    self._nodes.pop(cluster, None)
                await self._consider(cluster, piece)
