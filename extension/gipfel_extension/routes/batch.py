"""``gipfel/batch``: a notebook as a batch job, by the functions that ``gipfel submit`` calls."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_server.utils import ApiPath, to_os_path
from pydantic import Field

from gipfel_cluster.edf.lookup import list_edfs
from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.scheduler import Scheduler, slurm_presence
from gipfel_cluster.workloads.submission import SubmissionContext, submission_context

from ..training.batch.job import NotebookOptions, plan_notebook_job, scheduler_of
from ..training.batch.submitted import Submitted, TaskView, list_submitted, query_tasks, submit_notebook
from ..training.papermill.notebook_file import read_notebook
from ..training.papermill.parameters import has_parameters_cell, known_parameters
from .base import GipfelRouteHandler, route


class BatchRequest(Frozen):
    """Values of the dialog; paths are the server's, values text as typed (empty: the default)."""

    path: str = Field(min_length=1, max_length=4096)
    output: str = Field(min_length=1, max_length=4096)
    parameters: dict[str, str] = Field(default_factory=dict, max_length=1000)
    grid: dict[str, str] = Field(default_factory=dict, max_length=100)
    scheduler: str = Field("", max_length=32)
    edf: str = Field("", max_length=4096)
    nodes: int = Field(1, ge=1, le=65536)
    gpus_per_node: int = Field(0, ge=0, le=1024)
    time: str = Field("", max_length=20)
    partition: str = Field("", max_length=128)
    account: str = Field("", max_length=128)
    resume: bool = False


class BatchFormRouteHandler(GipfelRouteHandler):
    """``GET``: the dialog's content for a notebook."""

    @route
    async def get(self) -> None:
        """Answer the parameters of the notebook ``path``, and what there is to choose."""
        path = _file_of(self, self.get_query_argument("path"))
        form = await asyncio.to_thread(_form, path)
        self.finish(form | {"edf": await self._edf()})

    async def _edf(self) -> str:
        """Return the environment that this server runs in, which a job most likely needs too."""
        try:
            run, _ = await self.telemetry.started()
            about = await asyncio.to_thread(run.describe)
        except GipfelError:
            return ""
        edf = about.get("edf")
        return str(edf.get("name", "")) if isinstance(edf, dict) else ""


class BatchJobsRouteHandler(GipfelRouteHandler):
    """``GET, POST``: batch notebooks of the user."""

    @route
    async def get(self) -> None:
        """Answer those of the last two weeks, the newest first, as they are now."""
        notes = await asyncio.to_thread(list_submitted, os.environ)
        schedulers = await asyncio.to_thread(_schedulers, notes)
        views = await query_tasks(notes, schedulers)
        self.finish({"jobs": [_job(self, note, views[note.job_id]) for note in notes]})

    @route
    async def post(self) -> None:
        """Submit the notebook and answer its job's number."""
        asked = self.body_as(BatchRequest)
        notebook, output = _file_of(self, asked.path), _file_of(self, asked.output)
        options = NotebookOptions(
            notebook=notebook,
            output=output,
            parameters=tuple(asked.parameters.items()),
            grid=tuple(f"{name}={values}" for name, values in asked.grid.items()),
            **asked.model_dump(
                include={
                    "scheduler",
                    "edf",
                    "nodes",
                    "gpus_per_node",
                    "time",
                    "partition",
                    "account",
                    "resume",
                }
            ),
        )
        job = await asyncio.to_thread(
            plan_notebook_job, options, environment=os.environ, directory=notebook.parent
        )
        scheduler = await asyncio.to_thread(scheduler_of, job, os.environ)
        job_id = await submit_notebook(job, scheduler, os.environ)
        self.set_status(201)
        self.finish({"job_id": job_id, "scheduler": job.scheduler, "tasks": max(1, job.request.array)})


class BatchJobRouteHandler(GipfelRouteHandler):
    """``DELETE``: one batch notebook."""

    @route
    async def delete(self, job_id: str) -> None:
        """Cancel it."""
        notes = await asyncio.to_thread(list_submitted, os.environ)
        note = next((each for each in notes if each.job_id == job_id), None)
        if note is None:
            raise GipfelError(f"No batch notebook of yours has the number {job_id}.", "Reload the list.")
        schedulers = await asyncio.to_thread(_schedulers, [note])
        if note.scheduler not in schedulers:
            raise GipfelError(f"The scheduler {note.scheduler} is not reached from here.", "Cancel it there.")
        await schedulers[note.scheduler].cancel(job_id)
        self.finish({"job_id": job_id})


def _form(path: Path) -> dict[str, Any]:
    node = read_notebook(path)
    here = submission_context(os.environ)
    known = known_parameters(node) if has_parameters_cell(node) else ()
    return {
        "parameters": [each.model_dump() for each in known or ()],
        "open": known is None,
        "scheduler": here.default("scheduler"),
        "schedulers": _offered(here, os.environ),
        "edfs": _edfs(os.environ),
        "output": f"{path.stem}-run.ipynb",
    }


def _edfs(environment: Mapping[str, str]) -> list[str]:
    try:
        return list(list_edfs(environment=environment))
    except (OSError, GipfelError):
        return []


def _offered(here: SubmissionContext, environment: Mapping[str, str]) -> list[str]:
    """Return where a job can be submitted from here, the default first.

    From inside a container only the job's own scheduler is reached. In a job of Slurm, "this machine" would
    be its node, where nothing outlives the job.
    """
    default = here.default("scheduler")
    if here.inside or (default == "slurm" and "GIPFEL_RUN" in environment):
        return [default]
    found = ["local", *(["slurm"] if slurm_presence(environment).configured else [])]
    return sorted({default, *found}, key=lambda name: name != default)


def _schedulers(notes: list[Submitted]) -> dict[str, Scheduler]:
    """Return the schedulers that these jobs run on and that are reachable from here."""
    here = submission_context(os.environ)
    found: dict[str, Scheduler] = {}
    for name in {note.scheduler for note in notes}:
        try:
            found[name] = here.scheduler(name)
        except GipfelError:
            continue
    return found


def _file_of(handler: GipfelRouteHandler, path: str) -> Path:
    """Return the file of one of the server's paths.

    Raises
    ------
    GipfelError
        It is not below the server's root folder.
    """
    contents: Any = handler.contents_manager
    root = Path(getattr(contents, "root_dir", ".")).resolve()
    if "\0" in path or ".." in Path(path).parts:
        raise GipfelError("This path is not below the server's folder.", "Give a file of the file browser.")
    return Path(to_os_path(ApiPath(path), str(root)))


def _job(handler: GipfelRouteHandler, note: Submitted, views: list[TaskView]) -> dict[str, Any]:
    contents: Any = handler.contents_manager
    root = Path(getattr(contents, "root_dir", ".")).resolve()
    return {
        "job_id": note.job_id,
        "scheduler": note.scheduler,
        "notebook": note.notebook.name,
        "time": note.time,
        "tasks": [_task(view, root) for view in views[:100]],
        "more": max(0, len(views) - 100),
    }


def _task(view: TaskView, root: Path) -> dict[str, Any]:
    task, progress = view.task, view.progress
    inside = task.output.is_relative_to(root)
    ended = view.status.answer == "ended"
    return {
        "job_id": task.job_id,
        "state": view.word,
        "ended": ended,
        "reason": view.status.reason,
        "node": view.status.nodes[0] if view.status.nodes else "",
        "values": task.values,
        "cells": progress.cells if progress else 0,
        "done": progress.done if progress else 0,
        "problem": progress.problem if progress else "",
        "output": task.output.relative_to(root).as_posix() if inside and task.output.exists() else None,
    }
