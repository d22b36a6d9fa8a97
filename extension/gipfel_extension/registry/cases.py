"""Cases and steps in the database: what is open, what waits for a person, what was decided."""

import secrets
from collections.abc import Iterable, Sequence
from typing import Literal

from sqlalchemy import case as sql_case
from sqlalchemy import distinct, func, select
from sqlalchemy.orm import Session

from gipfel_cluster.model import Frozen

from .queries import iso
from .records import audit
from .rules import CaseSoFar, Proposal, Rule, written
from .schema import CaseRow, ReportRow, ResultRow, StepRow

#: ``proposed`` waits for a person; the others are decided.
StepState = Literal["proposed", "done", "dry_run", "dismissed"]
#: Who acts where no person does.
REGISTRY = "registry"
#: Of one page, and of one answer of the API.
MOST_STEPS = 200
_PIECE = 500
_WAITING = (StepRow.state == "proposed", CaseRow.closed_ns.is_(None))
_MOST_NAMED = 10


class StepView(Frozen):
    """A step as pages and API show it."""

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
    """The newest case of each rule on a node, open or closed."""
    query = select(CaseRow).where(CaseRow.cluster == cluster, CaseRow.node == node).order_by(CaseRow.id)
    return {case.rule: case for case in session.scalars(query)}


def so_far(case: CaseRow | None) -> CaseSoFar:
    """Where a rule is with a node, from its newest case."""
    if case is None:
        return CaseSoFar()
    if case.closed_ns is not None:
        return CaseSoFar(since_ns=case.closed_ns)
    step = case.steps[-1]
    since = step.decided_ns or step.created_ns
    return CaseSoFar(position=step.position, waiting=step.state == "proposed", since_ns=since)


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
    """Propose a step, and open the case where it is the first."""
    if proposal.step is None or proposal.position is None:
        raise ValueError("the case is at its end")
    if case is None or case.closed_ns is not None:
        key = secrets.token_hex(4)
        case = CaseRow(key=key, cluster=cluster, node=node, rule=rule.name, opened_ns=now_ns, closed_ns=None)
        session.add(case)
        session.flush()
        words = f"{rule.title} ({rule.name}, case {key}), reported by {_reporters(proposal)}"
        audit(session, "open", words, actor=REGISTRY, cluster=cluster, node=node, at_ns=now_ns)
    text = written(proposal.step, rule, proposal.evidence, cluster=cluster, node=node, key=case.key)
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
    words = f"{step.action}: {step.text}" if step.text else step.action
    audit(session, "propose", words, actor=REGISTRY, cluster=cluster, node=node, at_ns=now_ns)
    return step


def _reporters(proposal: Proposal) -> str:
    names = sorted({each.reporter for each in proposal.evidence})
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def decide(session: Session, step: StepRow, state: StepState, outcome: str, *, by: str, now_ns: int) -> None:
    """Write down what became of a step."""
    step.state, step.outcome, step.decided_by, step.decided_ns = state, outcome[:1000], by, now_ns
    event = "dismiss" if state == "dismissed" else step.action
    words = f"{state.replace('_', ' ')}: {outcome}" if outcome else state.replace("_", " ")
    audit(session, event, words, actor=by, cluster=step.case.cluster, node=step.case.node, at_ns=now_ns)


def close(session: Session, case: CaseRow, *, by: str, now_ns: int) -> None:
    """Close a case: what was said until now counts for no other."""
    case.closed_ns = now_ns
    audit(session, "close", f"case {case.key}", actor=by, cluster=case.cluster, node=case.node, at_ns=now_ns)


def opened_since(session: Session, since_ns: int) -> int:
    """Return how many cases were opened since then."""
    query = select(func.count()).select_from(CaseRow).where(CaseRow.opened_ns > since_ns)
    return session.scalar(query) or 0


def open_cases(session: Session) -> int:
    """Return how many cases are open."""
    query = select(func.count()).select_from(CaseRow).where(CaseRow.closed_ns.is_(None))
    return session.scalar(query) or 0


def drained_since(session: Session, since_ns: int, *, dry_run: bool) -> int:
    """How many nodes this registry drained since then; dry runs count among dry runs."""
    states = ("done", "dry_run") if dry_run else ("done",)
    query = select(func.count()).where(
        StepRow.action == "drain", StepRow.state.in_(states), StepRow.decided_ns > since_ns
    )
    return session.scalar(query) or 0


def steps(session: Session, *, waiting: bool, before: int = 0, limit: int = MOST_STEPS) -> Sequence[StepView]:
    """Return steps, newest first: those that wait for a person, or all.

    ``before`` is the number of a step: only older ones are returned then.
    """
    query = select(StepRow).join(CaseRow).order_by(StepRow.id.desc()).limit(limit)
    if before:
        query = query.where(StepRow.id < before)
    if waiting:
        query = query.where(*_WAITING)
    return [view(row) for row in session.scalars(query)]


def waiting_steps(session: Session) -> int:
    """Return how many steps wait for a person."""
    query = select(func.count()).select_from(StepRow).join(CaseRow).where(*_WAITING)
    return session.scalar(query) or 0


def view(row: StepRow) -> StepView:
    """The step with what its case says."""
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


def nodes_to_consider(
    session: Session, cluster: str, nodes: Iterable[str], *, vouched_only: bool = False
) -> list[str]:
    """Return the nodes that a rule can have something to say about, so that forged names cost little.

    They have an open case, or bad results of one user that is vouched for or, unless ``vouched_only``, of two
    others.
    """
    wanted = list(nodes)
    found: set[str] = set()
    for start in range(0, len(wanted), _PIECE):
        piece = wanted[start : start + _PIECE]
        found |= set(
            session.scalars(
                select(CaseRow.node).where(
                    CaseRow.cluster == cluster, CaseRow.node.in_(piece), CaseRow.closed_ns.is_(None)
                )
            )
        )
        vouched = func.max(sql_case((ReportRow.vouched, 1), else_=0))
        several = func.count(distinct(ReportRow.reporter)) > 1
        found |= set(
            session.scalars(
                select(ResultRow.node)
                .join(ReportRow)
                .where(ResultRow.cluster == cluster, ResultRow.node.in_(piece), ResultRow.verdict != "pass")
                .group_by(ResultRow.node)
                .having((vouched > 0) if vouched_only else (vouched > 0) | several)
            )
        )
    return sorted(found)
