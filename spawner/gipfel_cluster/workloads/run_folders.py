"""Run folders of a user: list them with their notes, facts and sizes, and remove those that are not in use.

A directory is a run folder if its name is ``<cluster>-<job id>`` and it contains ``record.json`` or
``telemetry``; a symbolic link never is one. It is in use while this process or a workload runs in it. It is
also in use while its record has no ``ended`` time and either a file was written recently, or the scheduler
does not report that its job has ended (`check_jobs`).

Notes are a name, tags, a text and a pin, which the user can set at any time. They are in ``notes.json``,
apart from ``record.json``, which only the job writes. Facts come from the record and the score: duration,
largest loss, GPU hours, energy, commit. Other versions or other users may have written the files, so a value
of an unexpected type counts as unknown.
"""

import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from ..model import Frozen, GipfelError, OneLine, ReportOSError, one_line
from ..regular_files import read_regular
from ..runs import runs_root, write_atomically
from ..scheduler import Scheduler
from ..scheduler.machine import run_sync
from .directory import STATE, WorkloadState, is_supervised, read_state
from .submission import SCHEDULERS, submission_context

NOTES_FILE = "notes.json"
_MAX_NOTES_BYTES = 64 << 10
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")

Tag = Annotated[str, StringConstraints(pattern=r"^[\w][\w.:/-]{0,39}$")]


class RunNotes(Frozen):
    """Name, tags, pin and note that a user gave a run; all empty by default."""

    display_name: OneLine = Field("", max_length=100)
    note: str = Field("", max_length=4000)
    tags: tuple[Tag, ...] = Field((), max_length=20)
    pinned: bool = False


def read_notes(folder: Path) -> RunNotes:
    """Return the notes of a run folder; empty ones if there are none, or if they can't be read."""
    try:
        return RunNotes.model_validate_json(read_regular(folder / NOTES_FILE, _MAX_NOTES_BYTES))
    except (OSError, ValueError, RecursionError):
        return RunNotes()


def change_notes(folder: Path, changes: Mapping[str, Any]) -> RunNotes:
    """Change some fields of a run's notes, and return the result.

    Parameters
    ----------
    changes
        New values by field of `RunNotes`; ``add_tags`` and ``remove_tags`` change the tags one by one.

    Raises
    ------
    GipfelError
        A value is not valid, or the notes can't be written.
    """
    old = read_notes(folder)
    tags = [*changes.get("tags", old.tags), *changes.get("add_tags", ())]
    kept = [tag for tag in dict.fromkeys(tags) if tag not in changes.get("remove_tags", ())]
    values = {key: value for key, value in changes.items() if key in RunNotes.model_fields}
    if isinstance(values.get("note"), str):
        values["note"] = _CONTROL.sub(" ", values["note"]).strip()
    try:
        notes = RunNotes.model_validate({**old.model_dump(), **values, "tags": kept})
    except ValidationError as error:
        raise GipfelError(_reason(error), "A tag has letters, digits and . : / - _, up to 40.") from error
    with ReportOSError(f"The notes of {folder.name} can't be written", "Ask the owner of the run."):
        write_atomically(folder / NOTES_FILE, json.dumps(notes.model_dump(), indent=2) + "\n")
    return notes


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    return one_line(f"The {str(first['loc'][0]).replace('_', ' ')} is not valid: {first['msg']}.")


_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_LOSSES = 64


class RunSummary(Frozen):
    """Facts about a run; None or empty if unknown.

    ``score`` is from 0 to 100; ``duration_s`` is the time from start to end; ``gpu_hours`` and ``energy_wh``
    (watt hours) are sums over the recorded samples. ``changed_files`` is the number of files with changes
    that were not committed.
    """

    score: float | None = None
    loss: str = ""
    """Name of the largest loss."""
    loss_points: float | None = None
    duration_s: float | None = None
    gpu_hours: float | None = None
    energy_wh: float | None = None
    commit: str = ""
    changed_files: int | None = None


def summary_of(record: Mapping[str, Any], score: Mapping[str, Any]) -> RunSummary:
    """Return the facts from the content of ``record.json`` and ``score.json``."""
    energy, git = _mapping(score.get("energy")), _mapping(record.get("git"))
    losses = list(_mapping(score.get("losses")).items())[:_MAX_LOSSES]
    points = {one_line(str(name))[:40]: _number(value) or 0.0 for name, value in losses}
    loss = max(points, key=lambda name: points[name], default="")
    lost = points.get(loss, 0.0)
    commit, changed = git.get("commit"), git.get("changed_files")
    return RunSummary(
        score=_number(score.get("score")),
        loss=loss if lost > 0 else "",
        loss_points=lost if lost > 0 else None,
        duration_s=_duration(record.get("started"), record.get("ended")),
        gpu_hours=_number(energy.get("gpu_hours")),
        energy_wh=_number(energy.get("total_wh")),
        commit=commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else "",
        changed_files=changed if isinstance(changed, int) else None,
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _duration(started: object, ended: object) -> float | None:
    try:
        seconds = (datetime.fromisoformat(str(ended)) - datetime.fromisoformat(str(started))).total_seconds()
    except (ValueError, TypeError):
        return None
    return seconds if seconds >= 0 else None


_MAX_RECORD_BYTES = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._]*(?:-[A-Za-z0-9._]+)+")
#: A recorder writes every few seconds: if no file is newer than this, the run was killed. The limit is longer
#: for a run without a job, because its process may be suspended.
_STALE_S, _STALE_WITHOUT_JOB_S = 3600.0, 24 * 3600.0


class Run(RunNotes, RunSummary):
    """A run folder with its notes and summary; times are ISO 8601, ``bytes`` is its size on disk.

    ``modified`` is the time of the newest file in seconds since 1970; ``in_use_reason`` says why the run
    folder must not be removed, empty if it may be.
    """

    name: str
    folder: str
    kind: str = ""
    job_id: str = ""
    started: str = ""
    ended: str = ""
    exit_status: int | None = None
    bytes: int = 0
    modified: float = 0.0
    in_use_reason: str = ""


def list_runs(environment: Mapping[str, str]) -> Iterator[Run]:
    """Yield the user's runs; the most recently modified one is the last."""
    folders = run_folders(runs_root(dict(environment)))
    yield from sorted((_run(each, environment) for each in folders), key=lambda each: each.modified)


def find_run(name: str, environment: Mapping[str, str]) -> Run:
    """Return the run whose folder has this name, else the only one that its user gave this name.

    Raises
    ------
    GipfelError
        No run has this name, or several have it.
    """
    return _run(find_folder(name, runs_root(dict(environment))), environment)


def typed_run(text: str, environment: Mapping[str, str]) -> Run:
    """Return the run that a user typed: a path with a ``/`` to its folder, wherever that is, else its name.

    Raises
    ------
    GipfelError
        The path is not a run folder, or as for `find_run`.
    """
    if "/" not in text:
        return find_run(text, environment)
    folder = Path(text).expanduser().resolve()
    if not is_run_folder(folder):
        raise GipfelError(f"{text[:200]!r} is not a run folder.", "See `gipfel runs list`.")
    return _run(folder, environment)


def find_folder(name: str, root: Path) -> Path:
    """Return the run folder with this name, else the only one to which its user gave it; see `find_run`."""
    if name and "/" not in name and is_run_folder(root / name):
        return root / name
    named = named_folders(name, root)
    if len(named) > 1:
        names = ", ".join(each.name for each in named[:5])
        raise GipfelError(f"Several runs have the name {name[:80]!r}.", f"Give one of {names}.")
    if not named:
        raise GipfelError(f"There is no run {name[:80]!r}.", "See `gipfel runs list`.")
    return named[0]


def named_folders(name: str, root: Path) -> list[Path]:
    """Return the run folders to which their user gave this name, sorted."""
    return sorted(each for each in run_folders(root) if name and read_notes(each).display_name == name)


def run_folders(root: Path) -> list[Path]:
    """Return the run folders in a directory; none if it can't be read."""
    try:
        return [each for each in root.iterdir() if is_run_folder(each)]
    except OSError:
        return []


def check_jobs(runs: Sequence[Run], environment: Mapping[str, str]) -> list[Run]:
    """Return the runs, with ``in_use_reason`` set for those whose job is running or pending.

    It is also set if the record has no ``ended`` time and Slurm does not report that the job has ended. The
    scheduler is queried for all jobs, since the record of a requeued job has an ``ended`` time although the
    job is pending.
    """
    job_ids = [each.job_id for each in runs if each.job_id]
    running, unknown = set(), set()
    for name, scheduler in (_schedulers(environment) if job_ids else {}).items():
        for job_id, status in run_sync(scheduler.query(job_ids)).items():
            if status.answer == "running":
                running.add(job_id)
            elif status.answer == "unknown" and name == "slurm":
                unknown.add(job_id)
    return [each.model_copy(update={"in_use_reason": _job_in_use(each, running, unknown)}) for each in runs]


def _job_in_use(run: Run, running: set[str], unknown: set[str]) -> str:
    if run.in_use_reason:
        return run.in_use_reason
    if run.job_id in running:
        return f"its job {run.job_id} is running or pending"
    if run.job_id in unknown and not run.ended:
        return "its scheduler does not report whether its job has ended"
    return ""


def remove_run(run: Run, environment: Mapping[str, str]) -> None:
    """Remove a run folder.

    Raises
    ------
    GipfelError
        The directory is not a run folder, is in use, or can't be removed.
    """
    folder = runs_root(dict(environment)) / Path(run.folder).name
    if not is_run_folder(folder):
        raise GipfelError(f"{folder} is not a run folder.", "Remove it yourself if you don't need it.")
    reason = _in_use(folder, read_document(folder / "record.json"), _newest(_files(folder)), environment)
    if reason:
        raise GipfelError(f"The run {folder.name} is in use: {reason}.", "Stop it first; see `gipfel ps`.")
    with ReportOSError(f"{folder} can't be removed completely", "Check the owner of its files."):
        shutil.rmtree(folder)


def is_run_folder(folder: Path) -> bool:
    """Return whether a directory is a run folder; a symbolic link is not."""
    try:
        if folder.is_symlink() or not _NAME.fullmatch(folder.name):
            return False
        return (folder / "record.json").is_file() or (folder / "telemetry").is_dir()
    except OSError:
        # A directory without access for this user: these methods raise PermissionError before Python 3.14.
        return False


def _run(folder: Path, environment: Mapping[str, str]) -> Run:
    record, files = read_document(folder / "record.json"), tuple(_files(folder))
    newest = _newest(files)
    summary = summary_of(record, read_document(folder / "score.json"))
    status = record.get("exit_status")
    return Run(
        name=folder.name,
        folder=str(folder),
        kind=_text(record.get("kind")),
        job_id=_text(record.get("job_id")),
        started=_text(record.get("started")),
        ended=_text(record.get("ended")),
        exit_status=status if isinstance(status, int) else None,
        bytes=sum(status.st_blocks * 512 for status in files),
        modified=newest,
        in_use_reason=_in_use(folder, record, newest, environment),
        **summary.model_dump(),
        **read_notes(folder).model_dump(),
    )


def _in_use(folder: Path, record: Mapping[str, Any], newest: float, environment: Mapping[str, str]) -> str:
    current = environment.get("GIPFEL_RUN")
    if current and Path(current).resolve() == folder.resolve():
        return "this process runs in it"
    if running := _running_workload(folder):
        return running
    limit_s = _STALE_S if record.get("job_id") else _STALE_WITHOUT_JOB_S
    if record.get("ended") or time.time() - newest > limit_s:
        return ""
    return f"its record has no `ended` time, and a file was written within the last {limit_s / 3600:.0f} h"


def _running_workload(folder: Path) -> str:
    for path in folder.glob(f"*/*/{STATE}"):
        try:
            state = read_state(path.parent, WorkloadState)
        except GipfelError:
            continue
        name = f"{path.parent.parent.name}/{path.parent.name}"
        if is_supervised(path.parent) or (state.phase == "queued" and state.job_id):
            return f"{name} is {state.phase}"
    return ""


def _schedulers(environment: Mapping[str, str]) -> dict[str, Scheduler]:
    """Return the schedulers that may know this user's jobs, by name."""
    context = submission_context(environment)
    default = context.default_setting("scheduler")
    names = [default] if context.in_container else dict.fromkeys((default, "local"))
    return {name: context.scheduler(name) for name in names if name in SCHEDULERS}


def read_document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a run; empty if it can't be read or holds none."""
    try:
        content = json.loads(read_regular(path, _MAX_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _text(value: object) -> str:
    return value[:200] if isinstance(value, str) else ""


def _newest(files: Iterable[os.stat_result]) -> float:
    """Return when the newest file was written, in seconds since 1970."""
    return max((status.st_mtime for status in files), default=0.0)


def _files(folder: Path) -> Iterator[os.stat_result]:
    """Yield the status of each file; links are not followed."""
    for directory, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                yield Path(directory, name).lstat()
