"""Database queries: a node's results, worst nodes, baselines of a GPU model, observations for the rules.

Storage follows: validation of reports, rate limits, withdrawal, deletion of old reports; and the audit log.
"""

import hashlib
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Integer, Select, case, cast, delete, distinct, func, insert, select
from sqlalchemy.orm import Session

from gipfel_cluster.model import Frozen, GipfelError

from ..vetting.history.queries import Baseline, compute_baselines
from ..vetting.history.site_registry import SharedReport
from ..vetting.history.store import HistoryEntry
from ..vetting.model import Scope, Severity, Verdict
from .rules import DAY_NS, HOUR_NS, Observation
from .schema import AuditRow, CaseRow, ReportRow, ResultRow
from .settings import Settings

_BAD = (Verdict.FAIL.value, Verdict.DEGRADED.value)
# Limit per user, so that one user's many results do not displace those of others.
_MAX_PER_USER = 5000
_MIN_USERS = 2
_MIN_NODES = 3


class NodeResult(Observation):
    """One vetting result with its origin.

    ``measurement`` is in ``unit``, None without one. ``reporter`` is the sender, ``vouched`` and
    ``confirmed`` are as in `schema.ReportRow`. ``received`` is an ISO time in UTC.
    """

    node: str
    subject: str
    measurement: float | None
    unit: str
    protocol: str
    confirmed: bool
    received: str


class WorstNode(Frozen):
    """Node with bad results: number of bad and of all results, and of users who reported bad ones.

    ``last`` is the ISO time of the newest result in UTC.
    """

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
        severity=Severity(result.severity),
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
        received_ns=result.received_ns,
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
    """Return the results of one node to which rules apply.

    With `confirmed_only`, those of reports whose job Slurm confirmed (setting ``confirm_jobs``) or that are
    vouched.
    """
    newest = _newest_of_each_user(
        ResultRow.cluster == cluster, ResultRow.node == node, ResultRow.received_ns > since_ns
    )
    query = select(ResultRow, ReportRow).join(ReportRow).where(ResultRow.id.in_(newest))
    if confirmed_only:
        query = query.where(ReportRow.confirmed | ReportRow.vouched)
    return tuple(_node_result(result, report) for result, report in session.execute(query))


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


#: Maximum number of results in one report; senders shorten a longer one.
MAX_RESULTS = 50_000
_MAX_RESULTS_PER_HOUR = 400_000
_MAX_WITHDRAWALS_PER_HOUR = 3
_BATCH_SIZE = 2000


class Sender(Frozen):
    """Sender of a report as authenticated by the hub; ``vouched`` if the token has the scope `vouch`."""

    name: str
    vouched: bool = False


class RefusedError(GipfelError):
    """Refusal of a report or withdrawal; ``status`` is the HTTP status."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


def check_report(report: SharedReport, settings: Settings, *, now_ns: int) -> None:
    """Check a report's content, without the database or the scheduler.

    Raises
    ------
    RefusedError
        The report's cluster is not accepted, or the report is empty, too large, too old, from the future, or
        inconsistent.
    """
    record = report.record
    latest_ns = now_ns + HOUR_NS
    problems = (
        (
            bool(settings.clusters) and record.cluster not in settings.clusters,
            (403, f"This registry accepts no results of the cluster {record.cluster!r}."),
        ),
        (
            not record.cluster or not record.job or not record.entries,
            (400, "A report needs a cluster, a job and at least one result."),
        ),
        (
            len(record.entries) > MAX_RESULTS,
            (413, f"The report contains more than {MAX_RESULTS} results."),
        ),
        (
            not record.started_ns <= record.ended_ns <= latest_ns,
            (400, "The report ends before it starts, or in the future."),
        ),
        (record.ended_ns < now_ns - 7 * DAY_NS, (400, "The report is older than 7 days.")),
        (
            any(entry.started_ns > latest_ns or not entry.node for entry in record.entries),
            (400, "A result is from the future, or has no node."),
        ),
    )
    for is_wrong, refusal in problems:
        if is_wrong:
            raise RefusedError(*refusal)


def store_report(
    session: Session,
    report: SharedReport,
    sender: Sender,
    settings: Settings,
    *,
    confirmed: bool,
    now_ns: int,
) -> bool:
    """Store a report; return False if this sender has sent the same report before.

    Raises
    ------
    RefusedError
        The sender has reached a limit per hour.
    """
    record = report.record
    digest = hashlib.sha256(record.model_dump_json().encode()).hexdigest()
    own = select(ReportRow).where(ReportRow.reporter == sender.name)
    if session.scalar(select(own.where(ReportRow.digest == digest).exists())):
        return False
    _check_rate(session, sender, settings, len(record.entries), now_ns)
    row = ReportRow(
        received_ns=now_ns,
        reporter=sender.name,
        vouched=sender.vouched,
        confirmed=confirmed,
        digest=digest,
        versions=report.versions,
        **record.model_dump(include={"cluster", "job", "protocol", "started_ns", "ended_ns", "complete"}),
    )
    session.add(row)
    session.flush()
    common = {"report_id": row.id, "received_ns": now_ns, "cluster": record.cluster}
    rows = [entry.model_dump(mode="json") | common for entry in record.entries]
    for start in range(0, len(rows), _BATCH_SIZE):
        session.execute(insert(ResultRow), rows[start : start + _BATCH_SIZE])
    return True


def _check_rate(session: Session, sender: Sender, settings: Settings, results: int, now_ns: int) -> None:
    recent = (ReportRow.reporter == sender.name, ReportRow.received_ns > now_ns - HOUR_NS)
    if (session.scalar(select(func.count()).where(*recent)) or 0) >= settings.reports_per_hour:
        raise RefusedError(429, f"More than {settings.reports_per_hour} reports within an hour.")
    stored = session.scalar(select(func.count(ResultRow.id)).join(ReportRow).where(*recent)) or 0
    if stored + results > _MAX_RESULTS_PER_HOUR:
        raise RefusedError(429, f"More than {_MAX_RESULTS_PER_HOUR} results within an hour.")


def withdraw(session: Session, reporter: str, *, now_ns: int) -> int:
    """Delete all reports of one user, and return their number.

    Raises
    ------
    RefusedError
        The user has reached the limit per hour. Without it, deleting would reset the limit on reports.
    """
    recent = select(func.count()).where(
        AuditRow.actor == reporter, AuditRow.event == "withdraw", AuditRow.at_ns > now_ns - HOUR_NS
    )
    if (session.scalar(recent) or 0) >= _MAX_WITHDRAWALS_PER_HOUR:
        raise RefusedError(429, f"More than {_MAX_WITHDRAWALS_PER_HOUR} withdrawals within an hour.")
    deleted = session.scalars(delete(ReportRow).where(ReportRow.reporter == reporter).returning(ReportRow.id))
    return len(deleted.all())


def delete_old(session: Session, settings: Settings, *, now_ns: int | None = None) -> None:
    """Delete reports, closed cases and audit lines that are older than ``keep_days``."""
    oldest = (time.time_ns() if now_ns is None else now_ns) - int(settings.keep_days * DAY_NS)
    session.execute(delete(ReportRow).where(ReportRow.received_ns < oldest))
    session.execute(delete(CaseRow).where(CaseRow.closed_ns < oldest))
    session.execute(delete(AuditRow).where(AuditRow.at_ns < oldest))


def audit(
    session: Session, event: str, detail: str, *, actor: str, cluster: str = "", node: str = "", at_ns: int
) -> None:
    """Add a line to the audit log; ``actor`` is a user, or ``registry`` for automatic actions."""
    session.add(
        AuditRow(at_ns=at_ns, actor=actor, event=event, cluster=cluster, node=node, detail=detail[:1000])
    )


def reported_nodes(report: SharedReport) -> Sequence[str]:
    """Return the nodes of a report's results."""
    return sorted({entry.node for entry in report.record.entries})
