"""``gipfel/batch``: notebooks as batch jobs, with the functions of ``gipfel submit``."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gipfel_cluster.edf.lookup import list_edfs
from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import runs_root
from gipfel_cluster.scheduler import slurm_presence
from gipfel_cluster.workloads.submission import SubmissionContext, submission_context

from ..telemetry.files import edf_name, read_object
from ..training.batch import JobOptions, NotebookOptions, plan_notebook_job, scheduler_of
from ..training.batch.submitted import (
    BatchRequest,
    SubmittedNotebook,
    TaskView,
    list_submitted,
    query_tasks,
    reachable_schedulers,
    request_of,
    started_at,
    submit_notebook,
)
from ..training.papermill.notebook_file import read_notebook
from ..training.papermill.parameters import has_parameters_cell, known_parameters
from ..training.results.result import MAX_BYTES
from .base import GipfelRouteHandler, below_root, root_directory, route


class BatchFormRouteHandler(GipfelRouteHandler):
    """``GET``: content of the dialog for a notebook."""

    @route
    async def get(self) -> None:
        """Send the parameters of the notebook ``path``, and the available schedulers and EDFs."""
        path = below_root(self, self.get_query_argument("path"))
        form = await asyncio.to_thread(_form, path)
        self.finish(form | {"edf": await self._edf()})

    async def _edf(self) -> str:
        """Return the name of this server's EDF, which is the default for the job."""
        try:
            run, _ = await self.telemetry.ensure_started()
            about = await asyncio.to_thread(run.describe)
        except GipfelError:
            return ""
        return edf_name(about)


class BatchJobsRouteHandler(GipfelRouteHandler):
    """``GET, POST``: batch notebooks of the user."""

    @route
    async def get(self) -> None:
        """Send the batch notebooks of the last two weeks with their current state, the newest first."""
        self.finish({"jobs": await batch_jobs(root_directory(self))})

    @route
    async def post(self) -> None:
        """Submit the notebook and send its job ID."""
        request = self.body_as(BatchRequest)
        notebook, output = below_root(self, request.path), below_root(self, request.output)
        options = NotebookOptions(
            notebook=notebook,
            output=output,
            parameters=tuple(request.parameters.items()),
            grid=tuple(f"{name}={values}" for name, values in request.grid.items()),
            **request.model_dump(include=set(JobOptions.model_fields)),
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
        """Cancel the job."""
        submissions = await asyncio.to_thread(list_submitted, os.environ)
        found = next((each for each in submissions if each.job_id == job_id), None)
        if found is None:
            raise GipfelError(f"You have no batch notebook with the job ID {job_id}.", "Reload the list.")
        schedulers = await asyncio.to_thread(reachable_schedulers, [found], os.environ)
        if found.scheduler not in schedulers:
            raise GipfelError(
                f"The scheduler {found.scheduler} can't be reached from this server.",
                "Cancel the job on a machine that reaches it.",
            )
        await schedulers[found.scheduler].cancel(job_id)
        self.finish({"job_id": job_id})


async def batch_jobs(root: Path) -> list[dict[str, Any]]:
    """Return the user's batch notebooks for a server with this root directory, the newest first."""
    submissions = await asyncio.to_thread(list_submitted, os.environ)
    schedulers = await asyncio.to_thread(reachable_schedulers, submissions, os.environ)
    views = await query_tasks(submissions, schedulers)
    return [_job(each, views[each.job_id], root) for each in submissions]


def _form(path: Path) -> dict[str, Any]:
    notebook = read_notebook(path)
    context = submission_context(os.environ)
    known = known_parameters(notebook) if has_parameters_cell(notebook) else ()
    return {
        "parameters": [each.model_dump() for each in known or ()],
        "any_parameter": known is None,
        "scheduler": context.default_setting("scheduler"),
        "schedulers": _available_schedulers(context, os.environ),
        "edfs": list(list_edfs(environment=os.environ)),
        "output": f"{path.stem}-run.ipynb",
    }


def _available_schedulers(context: SubmissionContext, environment: Mapping[str, str]) -> list[str]:
    """Return the schedulers that this server can submit jobs to, the default first.

    In a container, this is only the scheduler of its job. In a Slurm job the local scheduler is not offered,
    because its processes would end with the job.
    """
    default = context.default_setting("scheduler")
    if context.in_container or (default == "slurm" and "GIPFEL_RUN" in environment):
        return [default]
    found = ["local", *(["slurm"] if slurm_presence(environment).configured else [])]
    return sorted({default, *found}, key=lambda name: name != default)


def _job(submission: SubmittedNotebook, views: list[TaskView], root: Path) -> dict[str, Any]:
    default = submission_context(os.environ).default_setting("cluster")
    cluster = submission.options.cluster or default or submission.scheduler
    return {
        "job_id": submission.job_id,
        "scheduler": submission.scheduler,
        "notebook": submission.notebook.name,
        "time": submission.time,
        "tasks": [_task(view, root, cluster) for view in views[:100]],
        "more": max(0, len(views) - 100),
        "request": request_of(submission, root),
    }


def _task(view: TaskView, root: Path, cluster: str) -> dict[str, Any]:
    task, progress = view.task, view.progress
    below_root = task.output.is_relative_to(root)
    ended = view.status.answer == "ended"
    score_file = runs_root(dict(os.environ)) / f"{cluster}-{task.job_id}" / "score.json"
    score = read_object(score_file, MAX_BYTES).get("score") if ended else None
    return {
        "job_id": task.job_id,
        "state": view.job_state,
        "ended": ended,
        "reason": view.status.reason,
        "node": view.status.nodes[0] if view.status.nodes else "",
        "values": task.values,
        "cells": progress.cells if progress else 0,
        "done": progress.done if progress else 0,
        "started": started_at(progress),
        "seconds": progress.elapsed if progress and ended else None,
        "score": score if isinstance(score, int | float) else None,
        "problem": progress.problem if progress else "",
        "output": task.output.relative_to(root).as_posix() if below_root and task.output.exists() else None,
    }
