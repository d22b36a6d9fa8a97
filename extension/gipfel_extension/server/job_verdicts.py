"""Verdicts on a job for its page: failures of its launch, the diagnosis of its steps, and dumps of a hang."""

import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError, pluralize

from ..diagnosis.phases import RunPhases
from ..diagnosis.verdict import Verdict, named
from ..job.ranks import Job
from ..job.run_diagnosis import diagnose_run, verdicts_of_arrivals
from ..job.run_roles import launch_folder, roles_of_run
from ..telemetry.sample import SourceError
from ..training.flight_recorder import FlightReport, report_of
from .earlier_runs import earlier_runs
from .job import JobQuery, read_content, version_of
from .job_cache import StampedCache, metrics_stamp, ranks_stamp, samples_stamp, stamp_of

#: Sentence for each kind, without a full stop; `who` is replaced by the ranks, or by the unit that they
#: share.
_TITLES = {
    "slow_rank": "{who} {is_are} slower than ranks of the same role",
    "uneven_stage": "Stage {stage} has more work than the others",
    "uneven_samples": "Work differs from sample to sample, no rank is at fault",
    "more_work": "{who} {is_are} given more work than ranks of the same role",
    "host": "The GPU of {who} waits for its process",
    "clock": "The GPU of {who} runs at a lower clock than its peers",
    "link": "Communication takes longer",
    "change": "The pace of the steps changed",
    "own_io": "The job slows its file system, or asks much of it",
    "file_system": "A file system answers slowly, whatever the job does",
    "hang": "The others wait for {who}",
}
_SEVERITY = {"hang": 2, "unknown": 0}
_MOST_FAILED, _MOST_FOLDED = 8, 64
_DUMPS_S = 20.0
#: A diagnosis is repeated at the earliest after this many seconds, and after this many times its duration.
_LEAST_AGE_S, _TIME_FACTOR = 15.0, 10.0


_Made = tuple[list[dict[str, Any]], list[str]]


class JobVerdicts:
    """Verdicts on the jobs that pages show; computed again after their files have changed, but not too often.

    Parameters
    ----------
    clock
        Returns seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache: StampedCache[_Made] = StampedCache(
            8, least_age_s=_LEAST_AGE_S, time_factor=_TIME_FACTOR, clock=clock
        )

    def document(self, folder: Path, query: JobQuery) -> dict[str, Any]:
        """Return the content of a `job_responses.JobVerdicts`, or that it is unchanged; may take seconds."""
        key = (folder, query.layout, query.launch)
        stamp: Hashable = (ranks_stamp(folder), metrics_stamp(folder), samples_stamp(folder), _dumps(folder))
        verdicts, notes = self._cache.get(key, stamp, lambda: _make(folder, query))
        version = version_of(verdicts, notes)
        if version == query.have:
            return {"version": version, "unchanged": True}
        return {"version": version, "verdicts": verdicts, "notes": notes}


def _make(folder: Path, query: JobQuery) -> _Made:
    job = read_content(folder, query).job
    found, notes = _failures(job), []
    for look in (_of_dumps, _of_steps, _of_earlier):
        verdicts, said = look(folder, query, job)
        found += verdicts
        notes += said
    found.sort(key=lambda each: (-each["severity"], each["kind"] == "change", each["since_ms"] or 0))
    return found, notes


def _dumps(folder: Path) -> Hashable:
    launch = launch_folder(folder, None)
    return None if launch is None else (launch.name, stamp_of(launch / "flight_recorder"))


def _failures(job: Job) -> list[dict[str, Any]]:
    failed = [each for each in job.ranks if each.failure]
    return [
        _verdict("failed", f"Rank {each.rank} failed", each.failure, 2, [each.rank], source="record")
        for each in failed[:_MOST_FAILED]
    ]


def _of_steps(folder: Path, query: JobQuery, _: Job) -> tuple[list[dict[str, Any]], list[str]]:
    try:
        found = diagnose_run(folder, layout=query.layout, launch=query.launch)
    except SourceError as error:
        return [], [str(error)]
    verdicts = [_of_diagnosis(each) for each in found.verdicts]
    return [*verdicts, *_of_phases(found.phases)], list(found.notes)


def _of_earlier(folder: Path, _: JobQuery, __: Job) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a verdict if the run is slower or faster than earlier runs of the same script."""
    found = earlier_runs(folder)
    if found.verdict not in ("slower", "faster"):
        return [], []
    title = f"This run is {found.verdict} than earlier runs of the same script, size and image"
    verdict = _verdict("change", title, found.sentence, int(found.verdict == "slower"), [], source="earlier")
    return [verdict | {"confidence": round(found.confidence, 4)}], []


def _of_phases(found: RunPhases | None) -> list[dict[str, Any]]:
    """Return one informational verdict for each kind of interruption of the steps."""
    if found is None:
        return []
    pace = found.sentences()[0]
    return [
        _verdict(each.kind, each.sentence(found.total_s).rstrip("."), pace, 0, [], source="phases")
        | {"since_ms": each.times_ns[0] // 1_000_000}
        for each in found.phases
    ]


def _of_diagnosis(verdict: Verdict) -> dict[str, Any]:
    ranks, evidence = list(verdict.ranks), verdict.evidence
    # People know a GPU by its rank, so leave out its UUID.
    unit = "" if ranks and (verdict.unit or "").startswith("gpu ") else verdict.unit or ""
    several = len(ranks) > 1 and not unit
    if verdict.kind == "unknown":
        title, evidence = evidence.rstrip("."), ""
    else:
        who = unit or (named(verdict.ranks) if ranks else "a rank")
        text = _TITLES[verdict.kind].format(who=who, stage=verdict.stage, is_are="are" if several else "is")
        title = text[0].upper() + text[1:]
    severity = _SEVERITY.get(verdict.kind, 1)
    found = _verdict(verdict.kind, title, evidence, severity, ranks, source="steps")
    return found | {
        "stage": verdict.stage,
        "unit": verdict.unit or "",
        "since_ms": verdict.since // 1_000_000 if verdict.since else None,
        "confidence": round(verdict.confidence, 4),
    }


def _of_dumps(folder: Path, query: JobQuery, job: Job) -> tuple[list[dict[str, Any]], list[str]]:
    launch = launch_folder(folder, job.launch or None)
    if launch is None or not (launch / "flight_recorder").is_dir():
        return [], []
    try:
        roles = roles_of_run(folder, query.layout, query.launch).roles
        report = report_of(launch, limit_s=_DUMPS_S, roles=roles)
    except GipfelError as error:
        return [], [str(error)]
    return _of_report(report, launch), []


def _of_report(report: FlightReport, launch: Path) -> list[dict[str, Any]]:
    try:
        since = (launch / "flight_recorder").stat().st_mtime_ns // 1_000_000
    except OSError:
        since = None
    found = []
    if report.faulty_ranks:
        ranks = [each.rank for each in report.faulty_ranks[:_MOST_FOLDED]]
        waiting = (
            f" {pluralize(len(report.waiting), 'rank')} {'waits' if len(report.waiting) == 1 else 'wait'}."
            if report.waiting
            else ""
        )
        evidence = "; ".join(each.why for each in report.faulty_ranks[:3]) + "." + waiting
        title = f"The others wait for {named(tuple(ranks))}"
        found.append(_verdict("hang", title, evidence, 2, ranks, source="flight_recorder"))
    elif report.verdict == "unknown":
        title = f"Cannot tell who hangs, because {report.reason}".rstrip(".")
        found.append(_verdict("unknown", title, "", 1, [], source="flight_recorder"))
    for mismatch in report.mismatches[:_MOST_FAILED]:
        ranks = [rank for side in mismatch.sides[1:] for rank in side.ranks][:_MOST_FOLDED]
        title = f"Ranks made different calls in {mismatch.group}"
        found.append(_verdict("hang", title, mismatch.line, 2, ranks, source="flight_recorder"))
    found += [_of_diagnosis(each) | {"source": "flight_recorder"} for each in verdicts_of_arrivals(report)]
    return [each | {"since_ms": since} for each in found]


def _verdict(
    kind: str, title: str, evidence: str, severity: int, ranks: list[int], *, source: str
) -> dict[str, Any]:
    return {
        "kind": kind,
        "title": title,
        "evidence": evidence,
        "severity": severity,
        "ranks": ranks,
        "stage": None,
        "unit": "",
        "since_ms": None,
        "confidence": 1.0,
        "source": source,
    }
