"""Run folders of a user: listed with their sizes, and removed when nothing runs in them.

A directory is a run folder if its name is ``<cluster>-<job id>`` and it holds ``record.json`` or
``telemetry``; links never are. It is in use while this process or a workload runs in it, or while its record
has no end and either something was written into it recently, or its scheduler does not say that its job has
ended (`check_jobs`).
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model import Frozen, GipfelError
from ..regular_files import read_regular
from ..runs import runs_root
from ..scheduler import Scheduler
from ..scheduler.command import run_sync
from .directory import STATE, WorkloadState, is_supervised, read_state
from .submission import SCHEDULERS, submission_context

_MOST_BYTES = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._]*(?:-[A-Za-z0-9._]+)+")
#: A run without an end whose files are older has lost its writer: a recorder writes every few seconds. Where
#: no scheduler can be asked, it may also be stopped by hand.
_QUIET_S, _QUIET_WITHOUT_JOB_S = 3600.0, 24 * 3600.0


class Run(Frozen):
    """A run folder; times are ISO 8601, ``bytes`` what its files take on disk.

    ``in_use`` is why it must not be removed; empty if it may be.
    """

    name: str
    folder: str
    kind: str = ""
    job_id: str = ""
    started: str = ""
    ended: str = ""
    exit_status: int | None = None
    score: float | None = None
    bytes: int = 0
    changed: float = 0.0
    in_use: str = ""


def list_runs(environment: Mapping[str, str]) -> Iterator[Run]:
    """Yield the user's runs, the one that changed last at the end."""
    root = runs_root(dict(environment))
    try:
        folders = [each for each in root.iterdir() if is_run_folder(each)]
    except OSError:
        return
    yield from sorted((_run(each, environment) for each in folders), key=lambda each: each.changed)


def find_run(word: str, environment: Mapping[str, str]) -> Run:
    """Return the run of a name.

    Raises
    ------
    GipfelError
        There is none.
    """
    folder = runs_root(dict(environment)) / word
    if not word or "/" in word or not is_run_folder(folder):
        raise GipfelError(f"There is no run {word[:80]!r}.", "See `gipfel runs list`.")
    return _run(folder, environment)


def check_jobs(runs: Sequence[Run], environment: Mapping[str, str]) -> list[Run]:
    """Return the runs; those whose job still runs or waits are in use.

    So are those without an end if Slurm does not report that their job has ended. A job that was requeued
    has an end in its record.
    """
    asked = [each.job_id for each in runs if each.job_id]
    running, unsure = set(), set()
    for name, scheduler in (_schedulers(environment) if asked else {}).items():
        for job_id, status in run_sync(scheduler.query(asked)).items():
            if status.answer == "running":
                running.add(job_id)
            elif status.answer == "unknown" and name == "slurm":
                unsure.add(job_id)
    return [each.model_copy(update={"in_use": _job(each, running, unsure)}) for each in runs]


def _job(run: Run, running: set[str], unsure: set[str]) -> str:
    if run.in_use:
        return run.in_use
    if run.job_id in running:
        return f"its job {run.job_id} runs or waits"
    if run.job_id in unsure and not run.ended:
        return "its scheduler does not report whether its job has ended"
    return ""


def remove_run(run: Run, environment: Mapping[str, str]) -> None:
    """Remove a run folder.

    Raises
    ------
    GipfelError
        It is not a run folder, is in use, or can't be removed.
    """
    folder = runs_root(dict(environment)) / Path(run.folder).name
    if not is_run_folder(folder):
        raise GipfelError(f"{folder} is not a run folder.", "Remove it yourself if you don't need it.")
    reason = _in_use(folder, _record(folder), _newest(_files(folder)), environment)
    if reason:
        raise GipfelError(f"The run {folder.name} is in use: {reason}.", "Stop it first; see `gipfel ps`.")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise GipfelError(
            f"{folder} can't be removed whole: {error.strerror}.", "Check its owner."
        ) from error


def is_run_folder(folder: Path) -> bool:
    """Return whether a directory is a run folder; a link is not."""
    if folder.is_symlink() or not _NAME.fullmatch(folder.name):
        return False
    return (folder / "record.json").is_file() or (folder / "telemetry").is_dir()


def _run(folder: Path, environment: Mapping[str, str]) -> Run:
    record, files = _record(folder), tuple(_files(folder))
    newest = _newest(files)
    score = _read(folder / "score.json").get("score")
    status = record.get("exit_status")
    return Run(
        name=folder.name,
        folder=str(folder),
        kind=_text(record.get("kind")),
        job_id=_text(record.get("job_id")),
        started=_text(record.get("started")),
        ended=_text(record.get("ended")),
        exit_status=status if isinstance(status, int) else None,
        score=float(score) if isinstance(score, int | float) else None,
        bytes=_size(files),
        changed=newest,
        in_use=_in_use(folder, record, newest, environment),
    )


def _in_use(folder: Path, record: Mapping[str, Any], newest: float, environment: Mapping[str, str]) -> str:
    own = environment.get("GIPFEL_RUN")
    if own and Path(own).resolve() == folder.resolve():
        return "this process runs in it"
    running = _running_workload(folder)
    if running:
        return running
    quiet = _QUIET_S if record.get("job_id") else _QUIET_WITHOUT_JOB_S
    if record.get("ended") or time.time() - newest > quiet:
        return ""
    return f"its record has no end, and it was written within the last {quiet / 3600:.0f} h"


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
    """Return the schedulers that may run a job of this user here."""
    here = submission_context(environment)
    default = here.default("scheduler")
    names = [default] if here.inside else dict.fromkeys((default, "local"))
    return {name: here.scheduler(name) for name in names if name in SCHEDULERS}


def _record(folder: Path) -> dict[str, Any]:
    return _read(folder / "record.json")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _text(value: object) -> str:
    return value[:200] if isinstance(value, str) else ""


def _size(files: Iterable[os.stat_result]) -> int:
    """Return the bytes on disk of all files; links count as themselves."""
    return sum(about.st_blocks * 512 for about in files)


def _newest(files: Iterable[os.stat_result]) -> float:
    """Return when the newest file was written, in seconds since 1970."""
    return max((about.st_mtime for about in files), default=0.0)


def _files(folder: Path) -> Iterator[os.stat_result]:
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                yield Path(place, name).lstat()
            except OSError:
                continue
