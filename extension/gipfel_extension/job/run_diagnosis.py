"""Diagnosis of a run folder: its steps, roles and samples, for ``gipfel diagnose`` and the job page."""

from dataclasses import replace
from pathlib import Path

from ..diagnosis import Diagnosis, diagnose
from ..diagnosis.roles import read_roles
from ..diagnosis.step_file import steps_of_run
from ..telemetry.imports import open_recording
from ..telemetry.ranks import gpu_uuids_by_rank
from ..telemetry.sample import SampleTable, SourceError
from .run_roles import roles_of_run


def diagnose_run(
    run: Path, *, roles_file: Path | None = None, layout: str = "", launch: str | None = None
) -> Diagnosis:
    """Return the verdicts on a run; its notes begin with what contradicts in its roles.

    Parameters
    ----------
    roles_file
        Table of roles, in place of those of the run.
    layout, launch
        See `run_roles.roles_of_run`.

    Raises
    ------
    SourceError
        It is not a run folder, its steps can't be read, or the roles don't fit.
    """
    steps, damaged = steps_of_run(run)
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
    verdicts = diagnose(steps, roles, samples=lambda: _samples(run), gpus=gpus)
    return replace(verdicts, notes=(*problems, *damaged, *verdicts.notes))


def _samples(run: Path) -> SampleTable | None:
    try:
        return open_recording(run).table
    except SourceError:
        return None
