"""Storage of reports: validation, rate limits, withdrawal, deletion of old ones; and the audit log."""

import hashlib
import time
from collections.abc import Sequence

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from gipfel_cluster.model import Frozen, GipfelError

from ..vetting.history.site_registry import SharedReport
from .schema import AuditRow, CaseRow, ReportRow, ResultRow
from .settings import Settings

_HOUR_NS = 3600 * 10**9
_DAY_NS = 24 * _HOUR_NS
#: Maximum in one report; senders shorten a longer report.
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
    if settings.clusters and record.cluster not in settings.clusters:
        raise RefusedError(403, f"This registry accepts no results of the cluster {record.cluster!r}.")
    if not record.cluster or not record.job or not record.entries:
        raise RefusedError(400, "A report needs a cluster, a job and at least one result.")
    if len(record.entries) > MAX_RESULTS:
        raise RefusedError(413, f"The report contains more than {MAX_RESULTS} results.")
    if not record.started_ns <= record.ended_ns <= now_ns + _HOUR_NS:
        raise RefusedError(400, "The report ends before it starts, or in the future.")
    if record.ended_ns < now_ns - 7 * _DAY_NS:
        raise RefusedError(400, "The report is older than 7 days.")
    if any(entry.started_ns > now_ns + _HOUR_NS or not entry.node for entry in record.entries):
        raise RefusedError(400, "A result is from the future, or has no node.")


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
    recent = (ReportRow.reporter == sender.name, ReportRow.received_ns > now_ns - _HOUR_NS)
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
        AuditRow.actor == reporter, AuditRow.event == "withdraw", AuditRow.at_ns > now_ns - _HOUR_NS
    )
    if (session.scalar(recent) or 0) >= _MAX_WITHDRAWALS_PER_HOUR:
        raise RefusedError(429, f"More than {_MAX_WITHDRAWALS_PER_HOUR} withdrawals within an hour.")
    deleted = session.scalars(delete(ReportRow).where(ReportRow.reporter == reporter).returning(ReportRow.id))
    return len(deleted.all())


def delete_old(session: Session, settings: Settings, *, now_ns: int | None = None) -> None:
    """Delete reports, closed cases and audit lines that are older than ``keep_days``."""
    oldest = (time.time_ns() if now_ns is None else now_ns) - int(settings.keep_days * _DAY_NS)
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
