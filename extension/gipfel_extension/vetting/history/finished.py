"""What happens with a report when its run has ended: it is remembered, and shared if the user agreed."""

import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.scheduler.hostlist import expand_hostlist

from ..model import Owner, Severity, Verdict
from ..report import VettingReport
from .entry import VettingRecord, record_of
from .exclusions import Exclusion, Exclusions
from .share import consents, share_record
from .store import History, history_root

_EXCLUDED_NS = 24 * 3600 * 10**9


def record_of_report(report: VettingReport) -> VettingRecord:
    """What of a report is remembered; one that has not ended counts as cut short at its last result."""
    last = max((each.started_ns for each in report.results), default=report.started_ns)
    return record_of(
        report.results,
        cluster=report.cluster or "local",
        job=report.job,
        protocol=report.protocol,
        digest=report.digest,
        started_ns=report.started_ns,
        ended_ns=max(report.started_ns, report.ended_ns or last),
        complete=report.complete,
        vetted=report.good_nodes,
    )


def keep_report(report: VettingReport, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Remember a report, and share it with the user's consent; what a person should know of that, as notes.

    Nothing here fails a vetting.
    """
    if not report.results:
        return ()
    record = record_of_report(report)
    notes = []
    try:
        history = History(history_root(environment), record.cluster)
        history.remember(record)
        _exclude(Exclusions(history.folder), report)
    except GipfelError as error:
        notes.append(str(error))
    if consents(environment):
        notes.append(share_record(record, versions=_versions(), environment=environment).words)
    return tuple(notes)


def _exclude(exclusions: Exclusions, report: VettingReport) -> None:
    """Exclude for a day what failed by itself, check by check, and lift what passed now."""
    accused = set(expand_hostlist(report.exclude)) if report.exclude else set()
    decided = [each for each in report.results if each.node and each.severity is Severity.ERROR]
    failed = {
        (each.node, each.check): each
        for each in decided
        if each.verdict is Verdict.FAIL and each.owner is Owner.NODE
    }
    now = time.time_ns()
    held = {(each.node, each.check) for each in exclusions.read(now_ns=now)[0]}
    passed = {(each.node, each.check) for each in decided if each.verdict is Verdict.PASS} - failed.keys()
    for node, check in sorted(held & passed):
        exclusions.lift(node, check, now_ns=now)
    added = [
        Exclusion(
            node=node,
            check=check,
            reason=one_line(each.reason)[:500] or "It failed.",
            since_ns=now,
            until_ns=now + _EXCLUDED_NS,
        )
        for (node, check), each in failed.items()
        if node in accused
    ]
    if added:
        exclusions.add(added, now_ns=now)


def _versions() -> dict[str, str]:
    try:
        return {"gipfel": version("gipfel")}
    except PackageNotFoundError:
        return {}
