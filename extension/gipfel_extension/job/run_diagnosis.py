"""Verdicts on a run folder: from its logged steps and metrics, its samples, and dumps of its launch."""

from dataclasses import replace
from pathlib import Path

from gipfel_cluster.model import GipfelError

from ..diagnosis import Diagnosis, diagnose
from ..diagnosis.roles import read_roles
from ..diagnosis.steps import metrics_of_run, steps_of_metrics
from ..diagnosis.verdict import Verdict, cannot_tell
from ..telemetry.imports import open_recording
from ..telemetry.ranks import gpu_uuids_by_rank
from ..telemetry.sample import SampleTable, SourceError
from ..training.flight_recorder import FlightReport, has_dumps, report_of
from .run_roles import launch_folder, recorded_ranks, roles_of_run
from .run_storage import storage_report

#: Longest time in seconds for reading a launch's dumps.
_DUMPS_S = 20.0


def diagnose_run(
    run: Path, *, roles_file: Path | None = None, layout: str = "", launch: str | None = None
) -> Diagnosis:
    """Return the diagnosis of a run; its notes begin with problems of its roles.

    Parameters
    ----------
    roles_file
        File with roles, to use instead of those of the run.
    layout, launch
        See `run_roles.roles_of_run`.

    Raises
    ------
    SourceError
        `run` is not a run folder, its steps can't be read, or the roles don't fit.
    """
    metrics, damaged = metrics_of_run(run)
    steps = steps_of_metrics(metrics)
    if steps is None and not (run / "telemetry").is_dir():
        raise SourceError(f"{run} is not a run folder.", "`gipfel runs` lists yours.")
    seen = () if steps is None else tuple(int(rank) for rank in steps.ranks)
    found = roles_of_run(run, layout, launch, seen=seen)
    roles, problems = found.roles, tuple(str(each) for each in found.problems)
    if roles_file:
        roles = read_roles(roles_file)
        roles.check(found.present if steps is None else seen)
        roles = roles.with_places(found.locations)
    gpus = gpu_uuids_by_rank(found.locations)
    started = [each.time_ns for each in recorded_ranks(run, found.reports.launch or None) if each.time_ns]
    begin_ns = min(started, default=None)
    verdicts = diagnose(
        steps, roles, samples=lambda: samples_of_run(run), gpus=gpus, begin_ns=begin_ns, metrics=metrics
    )
    storage = storage_report(run)
    of_storage = () if storage is None else storage.verdicts
    return replace(
        verdicts,
        verdicts=(*verdicts.verdicts, *of_storage),
        notes=(*problems, *damaged, *verdicts.notes),
    )


def verdicts_of_arrivals(report: FlightReport) -> tuple[Verdict, ...]:
    """Return one verdict on the ranks that call collectives late; empty if there are none."""
    if not report.stragglers:
        return ()
    ranks = tuple(sorted(each.location.rank for each in report.stragglers))
    first = report.stragglers[0]
    own = "" if len(ranks) == 1 else f"Rank {first.location.rank} "
    evidence = f"{own}calls {first.evidence}, by corrected clocks."
    text = evidence[0].upper() + evidence[1:]
    return (Verdict("slow_rank", text, ranks, unit=first.unit or None, confidence=0.999),)


def diagnose_dumps(run: Path, *, roles_file: Path | None = None) -> tuple[Verdict, ...]:
    """Return verdicts on late ranks from the dumps of a run's newest launch; empty if it has no dumps."""
    launch = launch_folder(run, None)
    if launch is None or not has_dumps(launch / "flight_recorder"):
        return ()
    roles = read_roles(roles_file) if roles_file else roles_of_run(run).roles
    try:
        report = report_of(launch, limit_s=_DUMPS_S, roles=roles)
    except GipfelError as error:
        return (cannot_tell(str(error)),)
    if report.late_reason:
        return (cannot_tell(f"whether a rank calls collectives late is not known: {report.late_reason}."),)
    return verdicts_of_arrivals(report)


def samples_of_run(run: Path) -> SampleTable | None:
    """Return the recorded samples of a run; None if there are none or they can't be read."""
    try:
        return open_recording(run).table
    except SourceError:
        return None
