"""Database queries: a node's results, worst nodes, baselines of a GPU model, observations for the rules."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Integer, Select, case, cast, distinct, func, select
from sqlalchemy.orm import Session

from gipfel_cluster.model import Frozen

from ..vetting.history.queries import Baseline, compute_baselines
from ..vetting.history.store import HistoryEntry
from ..vetting.model import Scope, Severity, Verdict
from .rules import Observation
from .schema import AuditRow, ReportRow, ResultRow

_BAD = (Verdict.FAIL.value, Verdict.DEGRADED.value)
# Limit per user, so that one user's many results do not displace those of others.
_MAX_PER_USER = 5000
_MIN_USERS = 2
_MIN_NODES = 3


class NodeResult(Frozen):
    """One vetting result with its origin; ``received`` is an ISO time in UTC."""

    node: str
    check: str
    type: str
    verdict: Verdict
    reason: str
    subject: str
    measurement: float | None
    unit: str
    gpu_model: str
    codes: tuple[int, ...]
    protocol: str
    job: str
    reporter: str
    vouched: bool
    confirmed: bool
    received: str


class WorstNode(Frozen):
    """Node with bad results: counts of bad and of all results, and of users who reported bad ones."""

    node: str
    bad: int
    results: int
    users: int
    last: str


class AuditLine(Frozen):
    """One line of the audit log; ``time`` is an ISO time in UTC."""

    time: str
    actor: str
    event: str
    cluster: str
    node: str
    detail: str


def iso(moment_ns: int) -> str:
    """Return UTC nanoseconds as an ISO time with seconds."""
    return datetime.fromtimestamp(moment_ns / 1e9, UTC).isoformat(timespec="seconds")


def node_history(session: Session, cluster: str, node: str, *, limit: int = 500) -> tuple[NodeResult, ...]:
    """Return the newest results of a node, newest first."""
    rows = session.execute(
        select(ResultRow, ReportRow)
        .join(ReportRow)
        .where(ResultRow.cluster == cluster, ResultRow.node == node)
        .order_by(ResultRow.received_ns.desc(), ResultRow.id)
        .limit(limit)
    )
    return tuple(_node_result(result, report) for result, report in rows)


def _node_result(result: ResultRow, report: ReportRow) -> NodeResult:
    return NodeResult(
        node=result.node,
        check=result.check,
        type=result.type,
        verdict=Verdict(result.verdict),
        reason=result.reason,
        subject=result.subject,
        measurement=result.measurement,
        unit=result.unit,
        gpu_model=result.gpu_model,
        codes=tuple(result.codes),
        protocol=report.protocol,
        job=report.job,
        reporter=report.reporter,
        vouched=report.vouched,
        confirmed=report.confirmed,
        received=iso(result.received_ns),
    )


def worst_nodes(session: Session, cluster: str, *, since_ns: int, limit: int = 20) -> tuple[WorstNode, ...]:
    """Return the nodes with bad results since a time (UTC, ns), those reported by most users first."""
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
        WorstNode(node=node, bad=bad, results=results, users=users, last=iso(last))
        for node, bad, results, users, last in rows
    )


def baselines(session: Session, cluster: str, gpu_model: str, *, since_ns: int) -> tuple[Baseline, ...]:
    """Return the usual measurements of checks on a GPU model.

    A baseline needs results of three nodes, and of two users or one vouched source, so that no single user
    can set it.
    """
    newest = _newest_of_each_user(
        ResultRow.cluster == cluster,
        ResultRow.gpu_model == gpu_model,
        ResultRow.received_ns > since_ns,
        ResultRow.verdict == Verdict.PASS.value,
        ResultRow.measurement.is_not(None),
    )
    query = select(ResultRow, ReportRow.reporter, ReportRow.vouched).join(ReportRow)
    rows = session.execute(query.where(ResultRow.id.in_(newest))).all()
    users: dict[str, set[str]] = {}
    vouched = set()
    for row, reporter, is_vouched in rows:
        users.setdefault(row.check, set()).add(reporter)
        if is_vouched:
            vouched.add(row.check)
    known = {check for check, names in users.items() if len(names) >= _MIN_USERS} | vouched
    entries = (_entry(row) for row, *_ in rows if row.check in known)
    return compute_baselines(entries, min_nodes=_MIN_NODES)


def _entry(row: ResultRow) -> HistoryEntry:
    return HistoryEntry(
        node=row.node,
        check=row.check,
        type=row.type,
        scope=Scope(row.scope),
        verdict=Verdict(row.verdict),
        measurement=row.measurement,
        unit=row.unit,
        gpu_model=row.gpu_model,
    )


def observations(
    session: Session, cluster: str, node: str, *, since_ns: int, confirmed_only: bool
) -> tuple[Observation, ...]:
    """Return the results of one node to which rules apply; vouched reports need no confirmation."""
    newest = _newest_of_each_user(
        ResultRow.cluster == cluster, ResultRow.node == node, ResultRow.received_ns > since_ns
    )
    query = select(ResultRow, ReportRow).join(ReportRow).where(ResultRow.id.in_(newest))
    if confirmed_only:
        query = query.where(ReportRow.confirmed | ReportRow.vouched)
    return tuple(
        Observation(
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
    number = func.row_number().over(partition_by=ReportRow.reporter, order_by=ResultRow.id.desc())
    numbered = select(ResultRow.id, number.label("number")).join(ReportRow).where(*conditions).subquery()
    return select(numbered.c.id).where(numbered.c.number <= _MAX_PER_USER)


def clusters(session: Session) -> Sequence[str]:
    """Return the clusters that have reports."""
    return session.scalars(select(distinct(ReportRow.cluster)).order_by(ReportRow.cluster)).all()


def recent_audit_lines(session: Session, *, limit: int = 200) -> tuple[AuditLine, ...]:
    """Return the newest lines of the audit log, newest first."""
    rows = session.scalars(select(AuditRow).order_by(AuditRow.id.desc()).limit(limit))
    return tuple(
        AuditLine(
            time=iso(row.at_ns),
            actor=row.actor,
            event=row.event,
            cluster=row.cluster,
            node=row.node,
            detail=row.detail,
        )
        for row in rows
    )
