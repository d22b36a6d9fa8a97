"""Takes reports in: who may say what, how much of it, and for how long it is kept."""

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
#: Of one report; a larger one is shortened by its sender.
MOST_RESULTS = 50_000
_MOST_RESULTS_PER_HOUR = 400_000
_MOST_WITHDRAWALS_PER_HOUR = 3
_PIECE = 2000


class Sender(Frozen):
    """Whose report it is, by the hub's word; ``vouched`` by the scope of the token."""

    name: str
    vouched: bool = False


class Refused(GipfelError):  # noqa: N818 - not an error of the program
    """A report that is not taken; ``status`` is HTTP's."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


def check_report(report: SharedReport, settings: Settings, *, now_ns: int) -> None:
    """Refuse what can't be true, before anything is asked or stored.

    Raises
    ------
    Refused
        It is of a cluster that is not taken, empty, too large, of the future, or contradicts itself.
    """
    record = report.record
    if settings.clusters and record.cluster not in settings.clusters:
        raise Refused(403, f"This registry takes no results of the cluster {record.cluster!r}.")
    if not record.cluster or not record.job or not record.entries:
        raise Refused(400, "A report names its cluster, its job and at least one result.")
    if len(record.entries) > MOST_RESULTS:
        raise Refused(413, f"The report holds more than {MOST_RESULTS} results.")
    if not record.started_ns <= record.ended_ns <= now_ns + _HOUR_NS:
        raise Refused(400, "The report ends before it starts, or in the future.")
    if record.ended_ns < now_ns - 7 * _DAY_NS:
        raise Refused(400, "The report is older than 7 days.")
    if any(entry.started_ns > now_ns + _HOUR_NS or not entry.node for entry in record.entries):
        raise Refused(400, "A result is of the future, or of no node.")


def store_report(
    session: Session,
    report: SharedReport,
    sender: Sender,
    settings: Settings,
    *,
    confirmed: bool,
    now_ns: int,
) -> bool:
    """Store it; False where this sender sent the same before.

    Raises
    ------
    Refused
        The sender has sent too much within the last hour.
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
    for start in range(0, len(rows), _PIECE):
        session.execute(insert(ResultRow), rows[start : start + _PIECE])
    return True


def _check_rate(session: Session, sender: Sender, settings: Settings, results: int, now_ns: int) -> None:
    recent = (ReportRow.reporter == sender.name, ReportRow.received_ns > now_ns - _HOUR_NS)
    if (session.scalar(select(func.count()).where(*recent)) or 0) >= settings.reports_per_hour:
        raise Refused(429, f"More than {settings.reports_per_hour} reports within an hour.")
    stored = session.scalar(select(func.count(ResultRow.id)).join(ReportRow).where(*recent)) or 0
    if stored + results > _MOST_RESULTS_PER_HOUR:
        raise Refused(429, f"More than {_MOST_RESULTS_PER_HOUR} results within an hour.")


def withdraw(session: Session, reporter: str, *, now_ns: int) -> int:
    """Delete all that one user sent; returns how many reports that were.

    Raises
    ------
    Refused
        They did so a few times within the last hour: who deletes what counts could send without end.
    """
    lately = select(func.count()).where(
        AuditRow.actor == reporter, AuditRow.event == "withdraw", AuditRow.at_ns > now_ns - _HOUR_NS
    )
    if (session.scalar(lately) or 0) >= _MOST_WITHDRAWALS_PER_HOUR:
        raise Refused(429, f"More than {_MOST_WITHDRAWALS_PER_HOUR} withdrawals within an hour.")
    gone = session.scalars(delete(ReportRow).where(ReportRow.reporter == reporter).returning(ReportRow.id))
    return len(gone.all())


def forget(session: Session, settings: Settings, *, now_ns: int | None = None) -> None:
    """Delete what is older than the site keeps; open cases stay."""
    oldest = (time.time_ns() if now_ns is None else now_ns) - int(settings.keep_days * _DAY_NS)
    session.execute(delete(ReportRow).where(ReportRow.received_ns < oldest))
    session.execute(delete(CaseRow).where(CaseRow.closed_ns < oldest))
    session.execute(delete(AuditRow).where(AuditRow.at_ns < oldest))


def audit(
    session: Session, event: str, words: str, *, actor: str, cluster: str = "", node: str = "", at_ns: int
) -> None:
    """Write down what was done, and by whom; ``actor`` is ``registry`` where nobody was."""
    session.add(
        AuditRow(at_ns=at_ns, actor=actor, event=event, cluster=cluster, node=node, words=words[:1000])
    )


def nodes_of(report: SharedReport) -> Sequence[str]:
    """The nodes that a report has bad or good news of."""
    return sorted({entry.node for entry in report.record.entries})
