"""Which batch notebooks a user has submitted: one small file each, so that any server can list them."""

import contextlib
import os
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen
from gipfel_cluster.runs import make_private, write_atomically
from gipfel_cluster.scheduler import JobStatus, Scheduler

from ..telemetry.files import read_regular
from .job_table import TaskView
from .notebook_job import NotebookJob, NotebookTask
from .papermill.progress import Progress, read_progress

_KEPT_S = 14 * 24 * 3600.0
_MOST = 200
_MOST_BYTES = 16 << 20
# A node's clock and this one's may differ.
_SKEW_S = 60.0


class Submitted(Frozen):
    """A job that was submitted, as it is found again; ``time`` is seconds since 1970."""

    job_id: str = Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z_.-]{0,63}$")
    scheduler: str
    notebook: Path
    time: float
    tasks: tuple[NotebookTask, ...] = Field(max_length=10_000)


async def submit_notebook(job: NotebookJob, scheduler: Scheduler, environment: Mapping[str, str]) -> str:
    """Submit a planned job, note it and return its number; what the command and JupyterLab call.

    Raises
    ------
    GipfelError
        The scheduler refused.
    """
    job_id = await scheduler.submit(job.request)
    note = Submitted(
        job_id=job_id,
        scheduler=job.scheduler,
        notebook=job.notebook,
        time=time.time(),
        tasks=tuple(job.tasks(job_id)),
    )
    # A list that can't be kept is no reason against a job that runs.
    with contextlib.suppress(OSError):
        folder = submitted_folder(environment)
        make_private(folder)
        write_atomically(folder / f"{job.scheduler}-{job_id}.json", note.model_dump_json())
    return job_id


def submitted_folder(environment: Mapping[str, str]) -> Path:
    """Where they are noted: a folder that a container of a job has too, whatever it mounts."""
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / "server" / "submitted"


def list_submitted(environment: Mapping[str, str]) -> list[Submitted]:
    """The jobs of the last two weeks, the newest first, at most 200; older notes are taken away."""
    found = []
    with contextlib.suppress(OSError), os.scandir(submitted_folder(environment)) as entries:
        for entry in entries:
            if not entry.name.endswith(".json"):
                continue
            with contextlib.suppress(OSError, ValidationError):
                note = Submitted.model_validate_json(read_regular(Path(entry.path), _MOST_BYTES))
                if time.time() - note.time > _KEPT_S:
                    Path(entry.path).unlink()
                else:
                    found.append(note)
    return sorted(found, key=lambda note: -note.time)[:_MOST]


async def look_at(notes: list[Submitted], schedulers: Mapping[str, Scheduler]) -> dict[str, list[TaskView]]:
    """How the tasks of these jobs are, by the jobs' numbers; one question to each scheduler."""
    views: dict[str, list[TaskView]] = {}
    asked: dict[str, list[str]] = {}
    for note in notes:
        for task in note.tasks:
            asked.setdefault(note.scheduler, []).append(task.job_id)
    found: dict[str, JobStatus] = {}
    for name, job_ids in asked.items():
        if name in schedulers:
            found |= await schedulers[name].query(job_ids)
    for note in notes:
        views[note.job_id] = [
            TaskView(
                task=task,
                status=found.get(
                    task.job_id, JobStatus(answer="unknown", reason="Its scheduler is not here.")
                ),
                progress=_progress_of(note, task),
            )
            for task in note.tasks
        ]
    return views


def _progress_of(note: Submitted, task: NotebookTask) -> Progress | None:
    """The progress of this submission, not of an earlier one into the same output."""
    progress = read_progress(task.output)
    with contextlib.suppress(ValueError):
        if progress and datetime.fromisoformat(progress.started).timestamp() >= note.time - _SKEW_S:
            return progress
    return None
