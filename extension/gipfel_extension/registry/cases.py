"""Cases (a rule that applies to a node) and their recovery steps in the database."""

import secrets
from collections.abc import Iterable, Sequence
from typing import Literal

from sqlalchemy import case as sql_case
from sqlalchemy import distinct, func, select
from sqlalchemy.orm import Session

from gipfel_cluster.model import Frozen

from .queries import audit, iso
from .rules import CaseProgress, Proposal, Rule, render_text
from .schema import CaseRow, ReportRow, ResultRow, StepRow

#: ``proposed`` waits for an operator's decision; the others are decided.
StepState = Literal["proposed", "done", "dry_run", "dismissed"]
#: Name of the actor in the audit log for actions without an operator.
REGISTRY = "registry"
#: Maximum number of steps on one page, and in one response of the API.
MAX_STEPS = 200
_BATCH_SIZE = 500
_PENDING = (StepRow.state == "proposed", CaseRow.closed_ns.is_(None))
_MAX_NAMED = 10


class StepView(Frozen):
    """Recovery step with the data of its case, for pages and API.

    ``key`` is the random identifier of the case, which drain reasons and the audit log show.
    """

    id: int
    key: str
    cluster: str
    node: str
    rule: str
    action: str
    text: str
    state: StepState
    created: str
    decided: str
    decided_by: str
    outcome: str


def last_cases(session: Session, cluster: str, node: str) -> dict[str, CaseRow]:
    """Return the newest case of each rule on a node, open or closed."""
    query = select(CaseRow).where(CaseRow.cluster == cluster, CaseRow.node == node).order_by(CaseRow.id)
    return {case.rule: case for case in session.scalars(query)}


def case_progress(case: CaseRow | None) -> CaseProgress:
    """Return the progress of a rule on a node, from its newest case."""
    if case is None:
        return CaseProgress()
    if case.closed_ns is not None:
        return CaseProgress(since_ns=case.closed_ns)
    step = case.steps[-1]
    since = step.decided_ns or step.created_ns
    return CaseProgress(position=step.position, waiting=step.state == "proposed", since_ns=since)


def open_step(
    session: Session,
    rule: Rule,
    proposal: Proposal,
    case: CaseRow | None,
    *,
    cluster: str,
    node: str,
    now_ns: int,
) -> StepRow:
    """Propose a step; the first step also opens the case."""
    if proposal.step is None or proposal.position is None:
        raise ValueError("the case has no further step")
    if case is None or case.closed_ns is not None:
        key = secrets.token_hex(4)
        case = CaseRow(key=key, cluster=cluster, node=node, rule=rule.name, opened_ns=now_ns, closed_ns=None)
        session.add(case)
        session.flush()
        detail = f"{rule.title} ({rule.name}, case {key}), reported by {_reporters(proposal)}"
        audit(session, "open", detail, actor=REGISTRY, cluster=cluster, node=node, at_ns=now_ns)
    text = render_text(proposal.step, rule, proposal.evidence, cluster=cluster, node=node, key=case.key)
    step = StepRow(
        case=case,
        position=proposal.position,
        action=proposal.step.action.value,
        text=text[:4000],
        state="proposed",
        created_ns=now_ns,
        decided_ns=None,
        decided_by="",
        outcome="",
    )
    session.add(step)
    session.flush()
    detail = f"{step.action}: {step.text}" if step.text else step.action
    audit(session, "propose", detail, actor=REGISTRY, cluster=cluster, node=node, at_ns=now_ns)
    return step


def _reporters(proposal: Proposal) -> str:
    names = sorted({each.reporter for each in proposal.evidence})
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def decide(session: Session, step: StepRow, state: StepState, outcome: str, *, by: str, now_ns: int) -> None:
    """Record the decision on a step and its outcome."""
    step.state, step.outcome, step.decided_by, step.decided_ns = state, outcome[:1000], by, now_ns
    event = "dismiss" if state == "dismissed" else step.action
    detail = f"{state.replace('_', ' ')}: {outcome}" if outcome else state.replace("_", " ")
    audit(session, event, detail, actor=by, cluster=step.case.cluster, node=step.case.node, at_ns=now_ns)


def close(session: Session, case: CaseRow, *, by: str, now_ns: int) -> None:
    """Close a case; observations until now do not count for a later case."""
    case.closed_ns = now_ns
    audit(session, "close", f"case {case.key}", actor=by, cluster=case.cluster, node=case.node, at_ns=now_ns)


def opened_since(session: Session, since_ns: int) -> int:
    """Return how many cases were opened since a time (UTC, ns)."""
    query = select(func.count()).select_from(CaseRow).where(CaseRow.opened_ns > since_ns)
    return session.scalar(query) or 0


def open_cases(session: Session) -> int:
    """Return how many cases are open."""
    query = select(func.count()).select_from(CaseRow).where(CaseRow.closed_ns.is_(None))
    return session.scalar(query) or 0


def drained_since(session: Session, since_ns: int, *, dry_run: bool) -> int:
    """Return how many nodes were drained since a time (UTC, ns); in dry runs, count simulated drains, too."""
    states = ("done", "dry_run") if dry_run else ("done",)
    query = select(func.count()).where(
        StepRow.action == "drain", StepRow.state.in_(states), StepRow.decided_ns > since_ns
    )
    return session.scalar(query) or 0


def steps(session: Session, *, waiting: bool, before: int = 0, limit: int = MAX_STEPS) -> Sequence[StepView]:
    """Return steps, newest first: all, or with ``waiting`` those without a decision.

    If ``before``, the ID of a step, is not 0, only older steps are returned.
    """
    query = select(StepRow).join(CaseRow).order_by(StepRow.id.desc()).limit(limit)
    if before:
        query = query.where(StepRow.id < before)
    if waiting:
        query = query.where(*_PENDING)
    return [view(row) for row in session.scalars(query)]


def waiting_steps(session: Session) -> int:
    """Return how many steps wait for an operator's decision."""
    query = select(func.count()).select_from(StepRow).join(CaseRow).where(*_PENDING)
    return session.scalar(query) or 0


def view(row: StepRow) -> StepView:
    """Return a step with the data of its case."""
    return StepView.model_validate(
        {
            "id": row.id,
            "key": row.case.key,
            "cluster": row.case.cluster,
            "node": row.case.node,
            "rule": row.case.rule,
            "action": row.action,
            "text": row.text,
            "state": row.state,
            "created": iso(row.created_ns),
            "decided": iso(row.decided_ns) if row.decided_ns else "",
            "decided_by": row.decided_by,
            "outcome": row.outcome,
        }
    )


def nodes_with_evidence(
    session: Session, cluster: str, nodes: Iterable[str], *, vouched_only: bool = False
) -> list[str]:
    """Return the nodes to which a rule may apply, so that reports with forged node names cause little work.

    These nodes have an open case, or bad results in a vouched report or, unless ``vouched_only``, in the
    reports of two users.
    """
    names = list(nodes)
    found: set[str] = set()
    for start in range(0, len(names), _BATCH_SIZE):
        batch = names[start : start + _BATCH_SIZE]
        found |= set(
            session.scalars(
                select(CaseRow.node).where(
                    CaseRow.cluster == cluster, CaseRow.node.in_(batch), CaseRow.closed_ns.is_(None)
                )
            )
        )
        vouched = func.max(sql_case((ReportRow.vouched, 1), else_=0))
        several = func.count(distinct(ReportRow.reporter)) > 1
        found |= set(
            session.scalars(
                select(ResultRow.node)
                .join(ReportRow)
                .where(ResultRow.cluster == cluster, ResultRow.node.in_(batch), ResultRow.verdict != "pass")
                .group_by(ResultRow.node)
                .having((vouched > 0) if vouched_only else (vouched > 0) | several)
            )
        )
    return sorted(found)
