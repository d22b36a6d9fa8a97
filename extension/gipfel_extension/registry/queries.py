"""What the registry can be asked: a node's history, the worst nodes, what a GPU model usually does."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Integer, Select, case, cast, distinct, func, select
from sqlalchemy.orm import Session

from gipfel_cluster.model import Frozen

from ..vetting.history.queries import Baseline, baselines_of
from ..vetting.history.store import HistoryEntry
from ..vetting.model import Scope, Severity, Verdict
from .rules import Statement
from .schema import AuditRow, ReportRow, ResultRow

_BAD = (Verdict.FAIL.value, Verdict.DEGRADED.value)
# Of each user: who sends more must not push out what others said.
_MOST_OF_ONE = 5000
_FEWEST_USERS = 2
_FEWEST_NODES = 3


class Told(Frozen):
    """One result with where it came from; ``when`` is ISO time in UTC, of receipt."""

    node: str
    check: str
    type: str
    verdict: Verdict
    reason: str
    subject: str
    figure: float | None
    unit: str
    gpu_model: str
    codes: tuple[int, ...]
    protocol: str
    job: str
    reporter: str
    vouched: bool
    confirmed: bool
    when: str


class WorstNode(Frozen):
    """How often a node was bad: results, and by how many users they were seen."""

    node: str
    bad: int
    results: int
    users: int
    last: str


class Done(Frozen):
    """One line of the audit."""

    when: str
    actor: str
    event: str
    cluster: str
    node: str
    words: str


def iso(moment_ns: int) -> str:
    """UTC nanoseconds as ISO time with seconds."""
    return datetime.fromtimestamp(moment_ns / 1e9, UTC).isoformat(timespec="seconds")


def node_history(session: Session, cluster: str, node: str, *, limit: int = 500) -> tuple[Told, ...]:
    """The newest results of a node, newest first."""
    rows = session.execute(
        select(ResultRow, ReportRow)
        .join(ReportRow)
        .where(ResultRow.cluster == cluster, ResultRow.node == node)
        .order_by(ResultRow.received_ns.desc(), ResultRow.id)
        .limit(limit)
    )
    return tuple(_told(result, report) for result, report in rows)


def _told(result: ResultRow, report: ReportRow) -> Told:
    return Told(
        node=result.node,
        check=result.check,
        type=result.type,
        verdict=Verdict(result.verdict),
        reason=result.reason,
        subject=result.subject,
        figure=result.figure,
        unit=result.unit,
        gpu_model=result.gpu_model,
        codes=tuple(result.codes),
        protocol=report.protocol,
        job=report.job,
        reporter=report.reporter,
        vouched=report.vouched,
        confirmed=report.confirmed,
        when=iso(result.received_ns),
    )


def worst_nodes(session: Session, cluster: str, *, since_ns: int, limit: int = 20) -> tuple[WorstNode, ...]:
    """Nodes with bad results since then, those first that most users saw bad."""
    bad = case((ResultRow.verdict.in_(_BAD), 1), else_=0)
    users = func.count(distinct(case((ResultRow.verdict.in_(_BAD), ReportRow.reporter))))
    bad_sum = cast(func.sum(bad), Integer)
    rows = session.execute(
        select(ResultRow.node, bad_sum, func.count(), users, func.max(ResultRow.received_ns))
        .join(ReportRow)
        .where(ResultRow.cluster == cluster, ResultRow.received_ns > since_ns)
        .group_by(ResultRow.node)
        .having(bad_sum > 0)
        .order_by(users.desc(), bad_sum.desc(), ResultRow.node)
        .limit(limit)
    )
    return tuple(
        WorstNode(node=node, bad=bad, results=results, users=seen, last=iso(last))
        for node, bad, results, seen, last in rows
    )


def baselines(session: Session, cluster: str, gpu_model: str, *, since_ns: int) -> tuple[Baseline, ...]:
    """What checks usually measure on a model: from three nodes and two users at least, vouched ones aside.

    Fewer could be one person's wish.
    """
    newest = _newest_of_each_user(
        ResultRow.cluster == cluster,
        ResultRow.gpu_model == gpu_model,
        ResultRow.received_ns > since_ns,
        ResultRow.verdict == Verdict.PASS.value,
        ResultRow.figure.is_not(None),
    )
    query = select(ResultRow, ReportRow.reporter, ReportRow.vouched).join(ReportRow)
    rows = session.execute(query.where(ResultRow.id.in_(newest))).all()
    users: dict[str, set[str]] = {}
    vouched = set()
    for row, reporter, sure in rows:
        users.setdefault(row.check, set()).add(reporter)
        if sure:
            vouched.add(row.check)
    known = {check for check, names in users.items() if len(names) >= _FEWEST_USERS} | vouched
    entries = (_entry(row) for row, *_ in rows if row.check in known)
    return baselines_of(entries, least_nodes=_FEWEST_NODES)


def _entry(row: ResultRow) -> HistoryEntry:
    return HistoryEntry(
        node=row.node,
        check=row.check,
        type=row.type,
        scope=Scope(row.scope),
        verdict=Verdict(row.verdict),
        figure=row.figure,
        unit=row.unit,
        gpu_model=row.gpu_model,
    )


def statements(
    session: Session, cluster: str, node: str, *, since_ns: int, confirmed_only: bool
) -> tuple[Statement, ...]:
    """What rules may go by for one node; vouched sources need no confirmation."""
    newest = _newest_of_each_user(
        ResultRow.cluster == cluster, ResultRow.node == node, ResultRow.received_ns > since_ns
    )
    query = select(ResultRow, ReportRow).join(ReportRow).where(ResultRow.id.in_(newest))
    if confirmed_only:
        query = query.where(ReportRow.confirmed | ReportRow.vouched)
    return tuple(
        Statement(
            check=result.check,
            type=result.type,
            verdict=Verdict(result.verdict),
            severity=Severity(result.severity),
            gpu_model=result.gpu_model,
            codes=tuple(result.codes),
            reason=result.reason,
            reporter=report.reporter,
            job=report.job,
            vouched=report.vouched,
            received_ns=result.received_ns,
        )
        for result, report in session.execute(query)
    )


def _newest_of_each_user(*conditions: ColumnElement[bool]) -> Select[tuple[int]]:
    place = func.row_number().over(partition_by=ReportRow.reporter, order_by=ResultRow.id.desc())
    counted = select(ResultRow.id, place.label("place")).join(ReportRow).where(*conditions).subquery()
    return select(counted.c.id).where(counted.c.place <= _MOST_OF_ONE)


def clusters(session: Session) -> Sequence[str]:
    """The clusters that have reports."""
    return session.scalars(select(distinct(ReportRow.cluster)).order_by(ReportRow.cluster)).all()


def last_done(session: Session, *, limit: int = 200) -> tuple[Done, ...]:
    """The newest lines of the audit, newest first."""
    rows = session.scalars(select(AuditRow).order_by(AuditRow.id.desc()).limit(limit))
    return tuple(
        Done(
            when=iso(row.at_ns),
            actor=row.actor,
            event=row.event,
            cluster=row.cluster,
            node=row.node,
            words=row.words,
        )
        for row in rows
    )
