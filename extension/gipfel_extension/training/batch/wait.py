"""Waiting for a batch job: reports while it is queued and running, and its exit status."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.process.tree import Process
from gipfel_cluster.runs import RunFolder, runs_root
from gipfel_cluster.scheduler import JobStatus, Scheduler
from gipfel_cluster.workloads.submission import local_jobs_directory

from ...telemetry.files import read_regular, read_tail
from ..papermill.progress import progress_file, read_progress
from . import NotebookJob, NotebookTask
from .submitted import TaskView, status_line

_FIRST_S = 0.5
_MAX_S = 5.0
_LOG_LINES = 15
_LOG_BYTES = 64 << 10
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class OnStatus(Protocol):
    """Callback with the state of all runs, after each query."""

    def __call__(self, views: Sequence[TaskView]) -> None:
        """Handle the state of all runs."""


async def wait_for_job(
    scheduler: Scheduler,
    job_id: str,
    job: NotebookJob,
    *,
    environment: Mapping[str, str],
    report: Callable[[str], None],
    on_status: OnStatus | None = None,
) -> int:
    """Wait until every run of a job has ended and return the highest of their exit statuses.

    There is no time limit besides that of the job. Queries are repeated with increasing pauses of at most
    5 s, also while the scheduler does not respond.

    Parameters
    ----------
    report
        Called with one line for each change (unless `on_status` is given), and with the end of the log of
        each failed run.
    on_status
        Called with the state of all runs after each query.
    """
    watch = _JobWatch(scheduler, job_id, job, environment)
    previous: dict[str, str] = {}
    pause = _FIRST_S
    while True:
        views = await watch.query()
        lines = {view.task.job_id: status_line(view) for view in views}
        changed = {each for each, line in lines.items() if previous.get(each) != line}
        previous = lines
        if on_status is not None:
            on_status(views)
        else:
            for view in views:
                # The end of a run is reported below, with details.
                if view.exit_status is None and view.task.job_id in changed:
                    report(lines[view.task.job_id])
        if all(view.exit_status is not None for view in views):
            break
        pause = _FIRST_S if changed else min(pause * 1.5, 1.0 if on_status else _MAX_S)
        await asyncio.sleep(pause)
    for view in views:
        _report_end(view, report)
    return max(view.exit_status or 0 for view in views)


class _JobWatch:
    """State of a job's runs; only runs that have not ended are queried."""

    def __init__(
        self, scheduler: Scheduler, job_id: str, job: NotebookJob, environment: Mapping[str, str]
    ) -> None:
        self._scheduler = scheduler
        self._job = job
        self._environment = environment
        self._tasks = list(job.tasks(job_id))
        # Detects progress files that an earlier job has written.
        self._before = {task.job_id: _written(progress_file(task.output)) for task in self._tasks}
        self._ended: dict[str, TaskView] = {}

    async def query(self) -> list[TaskView]:
        """Return the current state of every run."""
        unfinished = [task.job_id for task in self._tasks if task.job_id not in self._ended]
        found = await self._scheduler.query(unfinished) if unfinished else {}
        views = []
        for task in self._tasks:
            view = self._ended.get(task.job_id)
            if view is None:
                status = found.get(task.job_id, JobStatus(answer="unknown"))
                view = await asyncio.to_thread(self._view, task, status)
                if view.exit_status is not None:
                    self._ended[task.job_id] = view
            views.append(view)
        return views

    def _view(self, task: NotebookTask, status: JobStatus) -> TaskView:
        fresh = _written(progress_file(task.output)) != self._before[task.job_id]
        progress = read_progress(task.output) if fresh else None
        code = None
        if status.answer == "ended":
            code = _exit_status(status, self._job, task.job_id, self._environment)
        return TaskView(task=task, status=status, progress=progress, exit_status=code)


def _report_end(view: TaskView, report: Callable[[str], None]) -> None:
    if view.exit_status == 0:
        report(f"job {view.task.job_id} has run the notebook: {view.task.output}")
        return
    why = f" ({view.status.reason})" if view.status.reason else ""
    report(
        f"job {view.task.job_id} ended: {view.job_state}{why}, exit status {view.exit_status}; "
        f"end of the log {view.task.log}:"
    )
    for each in log_tail(view.task.log):
        report(f"  {each}")


def log_tail(log: Path) -> list[str]:
    """Return the last lines of a log, without colours and control characters; empty if unreadable."""
    try:
        text = read_tail(log, _LOG_BYTES).decode(errors="replace")
    except OSError:
        return []
    lines = [one_line(line) for line in _COLOURS.sub("", text).splitlines()]
    return [line for line in lines if line][-_LOG_LINES:]


def follow_hint(job_id: str, job: NotebookJob, environment: Mapping[str, str]) -> str:
    """Return one line on how to follow and cancel a job that keeps running."""
    if job.in_container:
        end = f", cancel it with `scancel {job_id}` on the host" if job.scheduler == "slurm" else ""
        return f"job {job_id} keeps running: follow it with `tail -f {job.log}`{end}"
    if job.scheduler == "slurm":
        show, end = f"`squeue -j {job_id}`", f"`scancel {job_id}`"
        return f"job {job_id} keeps running: show it with {show}, cancel it with {end}; its log is {job.log}"
    end = ""
    with contextlib.suppress(OSError, ValueError, GipfelError):
        supervisor = Process.model_validate_json(
            read_regular(local_jobs_directory(environment) / job_id / "supervisor.json", _LOG_BYTES)
        )
        end = f", cancel it with `kill {supervisor.pid}`"
    return f"job {job_id} keeps running: follow it with `tail -f {job.log}`{end}"


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _exit_status(status: JobStatus, job: NotebookJob, job_id: str, environment: Mapping[str, str]) -> int:
    if status.exit_code or (status.exit_code == 0 and status.state == "COMPLETED"):
        return status.exit_code
    run = RunFolder(runs_root(dict(environment)) / f"{job.spec.cluster}-{job_id}")
    try:
        recorded = run.read_record().get("exit_status")
    except GipfelError:
        return 1
    forgotten = not status.state
    return recorded if isinstance(recorded, int) and (recorded or forgotten) else 1
