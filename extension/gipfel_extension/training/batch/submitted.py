"""Submitted batch notebooks: their workload directories and state.

`BatchKind` makes them workloads for ``gipfel ps``, ``logs``, ``stop`` and ``rerun``. They have no supervisor:
a reader of the state queries the scheduler, and writes the state of a job that has ended.

`BatchRequest` has the values of the dialog in which a batch notebook is submitted, also of an earlier job.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import make_private, write_atomically
from gipfel_cluster.scheduler import JobStatus, Scheduler
from gipfel_cluster.scheduler.machine import run_sync
from gipfel_cluster.workloads.directory import (
    COMMAND,
    MAX_BYTES,
    SPEC,
    WorkloadState,
    read_state,
    write_state,
)
from gipfel_cluster.workloads.kinds import Report, Workload
from gipfel_cluster.workloads.logs import LogFiles
from gipfel_cluster.workloads.quota import check_limits
from gipfel_cluster.workloads.submission import submission_context

from ...telemetry.files import read_regular
from ..papermill.progress import Progress, read_progress
from . import JobOptions, NotebookJob, NotebookOptions, NotebookTask, plan_notebook_job, scheduler_of
from .dry_run import dry_run_lines

_KEPT_S = 14 * 24 * 3600.0
_MAX_JOBS = 200
# Largest assumed difference in seconds between the clocks of nodes.
_SKEW_S = 60.0


class SubmittedNotebook(Frozen):
    """Content of ``spec.json``: a submitted job; ``time`` is seconds since 1970.

    ``options`` and ``directory`` are the input of its planning, for a rerun.
    """

    job_id: str = Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z_.-]{0,63}$")
    scheduler: str
    notebook: Path
    time: float
    tasks: tuple[NotebookTask, ...] = Field(max_length=10_000)
    options: NotebookOptions
    directory: Path


class BatchRequest(JobOptions):
    """Values of the dialog: paths relative to the server's root, and texts as typed (empty: the default)."""

    path: str = Field(min_length=1, max_length=4096)
    output: str = Field(min_length=1, max_length=4096)
    parameters: dict[str, str] = Field(default_factory=dict, max_length=1000)
    grid: dict[str, str] = Field(default_factory=dict, max_length=100)


class TaskView(Frozen):
    """Current state of one run of the notebook; ``exit_status`` is None until it has ended."""

    task: NotebookTask
    status: JobStatus
    progress: Progress | None = None
    exit_status: int | None = None

    @property
    def job_state(self) -> str:
        """Return the state of the job as Slurm names it."""
        if self.exit_status:
            return self.status.state if self.status.state not in {"", "COMPLETED"} else "FAILED"
        return self.status.state or ("COMPLETED" if self.exit_status == 0 else "UNKNOWN")


async def submit_notebook(
    job: NotebookJob,
    scheduler: Scheduler,
    environment: Mapping[str, str],
    report: Report = lambda _line: None,
) -> str:
    """Submit a planned job, write its workload directory, and return its ID.

    Parameters
    ----------
    report
        Called with what the job starts with; see `check_limits`.

    Raises
    ------
    GipfelError
        The job exceeds a limit, or the scheduler refused it.
    """
    if standing := await check_limits(scheduler, job.request, environment):
        report(standing)
    job_id = await scheduler.submit(job.request)
    submission = SubmittedNotebook(
        job_id=job_id,
        scheduler=job.scheduler,
        notebook=job.notebook,
        time=time.time(),
        tasks=tuple(job.tasks(job_id)),
        options=job.options,
        directory=job.directory,
    )
    state = WorkloadState(
        phase="queued",
        name=job.notebook.stem,
        title=f"{job.notebook.name} -> {job.output.name}",
        job_id=job_id,
        scheduler=job.scheduler,
        created_ns=time.time_ns(),
    )
    # The job has been submitted, so a failure to write its directory is ignored.
    with contextlib.suppress(OSError):
        folder = submitted_folder(environment) / f"{job.scheduler}-{job_id}"
        make_private(folder)
        write_atomically(folder / COMMAND, "\n".join(dry_run_lines(job)) + "\n")
        write_atomically(folder / SPEC, submission.model_dump_json(indent=1) + "\n")
        write_state(folder, state)
    return job_id


def submitted_folder(environment: Mapping[str, str]) -> Path:
    """Return the parent of the workload directories; it is also accessible in the container of a job."""
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / "server" / "submitted"


def list_submitted(environment: Mapping[str, str]) -> list[SubmittedNotebook]:
    """Return the jobs of the last two weeks, the newest first, at most 200; remove older directories."""
    return [submission for _, submission in _submitted(environment)]


def _submitted(environment: Mapping[str, str]) -> list[tuple[Path, SubmittedNotebook]]:
    found = []
    with contextlib.suppress(OSError), os.scandir(submitted_folder(environment)) as entries:
        for entry in entries:
            folder = Path(entry.path)
            with contextlib.suppress(OSError, ValidationError):
                submission = SubmittedNotebook.model_validate_json(read_regular(folder / SPEC, MAX_BYTES))
                if time.time() - submission.time > _KEPT_S:
                    shutil.rmtree(folder)
                else:
                    found.append((folder, submission))
    return sorted(found, key=lambda each: -each[1].time)[:_MAX_JOBS]


def request_of(submission: SubmittedNotebook, root: Path) -> dict[str, Any] | None:
    """Return the values of the dialog with which the job is submitted again; None if it can't show them."""
    options, given = submission.options, submission.directory
    others = (options.parameters_raw, options.parameters_yaml, options.parameters_file)
    notebook, output = given / options.notebook, given / options.output
    if any(others) or not (notebook.is_relative_to(root) and output.is_relative_to(root)):
        return None
    axes = (axis.partition("=") for axis in options.grid)
    try:
        request = BatchRequest(
            path=notebook.relative_to(root).as_posix(),
            output=output.relative_to(root).as_posix(),
            parameters=dict(options.parameters),
            grid={name: values for name, _, values in axes},
            **options.model_dump(include=set(JobOptions.model_fields)) | {"scheduler": submission.scheduler},
        )
    except ValidationError:
        return None
    return request.model_dump()


async def query_tasks(
    submissions: list[SubmittedNotebook], schedulers: Mapping[str, Scheduler]
) -> dict[str, list[TaskView]]:
    """Return the state of the tasks of these jobs, by job ID; with one query to each scheduler."""
    found: dict[str, JobStatus] = {}
    for name, scheduler in schedulers.items():
        own = (submission.tasks for submission in submissions if submission.scheduler == name)
        if job_ids := [task.job_id for tasks in own for task in tasks]:
            found |= await scheduler.query(job_ids)
    unreachable = JobStatus(answer="unknown", reason="Its scheduler can't be reached.")
    return {
        submission.job_id: [
            TaskView(
                task=task,
                status=found.get(task.job_id, unreachable),
                progress=_progress_of(submission, task),
            )
            for task in submission.tasks
        ]
        for submission in submissions
    }


class BatchKind:
    """Batch notebooks as workloads; a grid is one workload with a log for each point."""

    name = "batch"

    def list(self, environment: Mapping[str, str]) -> Iterable[Workload]:
        """Return the user's batch notebooks of the last two weeks, the newest last."""
        return self._workloads(_submitted(environment)[::-1], environment)

    def find(self, word: str, environment: Mapping[str, str]) -> Workload | None:
        """Return the batch notebook with this job ID or directory; None if there is none."""
        named = [each for each in _submitted(environment) if word in {each[1].job_id, str(each[0])}]
        return next(iter(self._workloads(named[:1], environment)), None)

    def _workloads(
        self, known: Sequence[tuple[Path, SubmittedNotebook]], environment: Mapping[str, str]
    ) -> Iterable[Workload]:
        """Yield the workloads of these jobs; query the scheduler once for those that have not ended."""
        states = {folder: state for folder, _ in known if (state := _state_of(folder)) is not None}
        running = [
            submission for folder, submission in known if folder in states and not states[folder].ended
        ]
        views = run_sync(query_tasks(running, reachable_schedulers(running, environment))) if running else {}
        for folder, submission in known:
            if folder in states:
                state = states[folder]
                state = state if state.ended else _updated(folder, state, views[submission.job_id])
                yield Workload.of(self.name, folder, state, submission.job_id)

    def logs(self, workload: Workload) -> LogFiles:
        """Return the logs of its tasks."""
        return LogFiles({number: task.log for number, task in enumerate(_read_submission(workload).tasks)})

    def stop(self, workload: Workload, environment: Mapping[str, str]) -> None:
        """Cancel its job.

        Raises
        ------
        GipfelError
            Its scheduler can't be reached.
        """
        submission = _read_submission(workload)
        scheduler = submission_context(environment).scheduler(submission.scheduler)
        run_sync(scheduler.cancel(submission.job_id))

    def rerun(
        self,
        workload: Workload,
        environment: Mapping[str, str],
        *,
        directory: Path,  # noqa: ARG002 - the directory of the first submission is used
        report: Report,
        kill_holders: bool = False,  # noqa: ARG002 - a new job has its own GPUs
    ) -> Workload:
        """Submit the same notebook with the same options as another job.

        Raises
        ------
        GipfelError
            The job has not ended, or can't be submitted again.
        """
        submission = _read_submission(workload)
        if not workload.ended:
            raise GipfelError(
                f"The batch notebook {workload.id} has not ended.",
                f"Stop it with `gipfel stop {workload.id}`.",
            )
        job = plan_notebook_job(submission.options, environment=environment, directory=submission.directory)
        for line in job.notes:
            report(line)
        job_id = run_sync(submit_notebook(job, scheduler_of(job, environment), environment, report))
        folder = submitted_folder(environment) / f"{job.scheduler}-{job_id}"
        return Workload.of(self.name, folder, read_state(folder, WorkloadState), job_id)


def started_at(progress: Progress | None) -> float | None:
    """Return the start of a run in seconds since 1970; None if it is not known."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return datetime.fromisoformat(progress.started).timestamp() if progress else None
    return None


def _progress_of(submission: SubmittedNotebook, task: NotebookTask) -> Progress | None:
    """Return the progress of this submission; None if the file is from an earlier run."""
    progress = read_progress(task.output)
    started = started_at(progress)
    return progress if started is not None and started >= submission.time - _SKEW_S else None


def _read_submission(workload: Workload) -> SubmittedNotebook:
    try:
        return SubmittedNotebook.model_validate_json(read_regular(Path(workload.folder) / SPEC, MAX_BYTES))
    except (OSError, ValidationError) as error:
        raise GipfelError(
            f"The spec in {workload.folder} can't be read by this version of Gipfel.",
            "Use the version that wrote it, or remove the directory.",
        ) from error


def _state_of(folder: Path) -> WorkloadState | None:
    try:
        return read_state(folder, WorkloadState)
    except GipfelError:
        return None


def reachable_schedulers(
    submissions: Sequence[SubmittedNotebook], environment: Mapping[str, str]
) -> dict[str, Scheduler]:
    """Return the schedulers of these jobs that can be reached."""
    context = submission_context(environment)
    found: dict[str, Scheduler] = {}
    for name in {submission.scheduler for submission in submissions}:
        with contextlib.suppress(GipfelError):
            found[name] = context.scheduler(name)
    return found


def _updated(folder: Path, state: WorkloadState, views: Sequence[TaskView]) -> WorkloadState:
    """Return the state according to the scheduler; write it once all tasks have ended."""
    nodes = tuple(dict.fromkeys(node for view in views for node in view.status.nodes))
    ended = [view for view in views if view.status.answer == "ended"]
    if len(ended) < len(views):
        began = ended or any(view.status.state == "RUNNING" for view in views)
        reason = next((view.status.reason for view in views if view.status.reason), "")
        return state.model_copy(
            update={"phase": "running" if began else "queued", "nodes": nodes, "reason": reason}
        )
    status = max(map(_exit_status, views), default=1)
    stopped = any(view.status.state.startswith("CANCELLED") for view in views)
    outcome = "completed" if status == 0 else "stopped" if stopped else "failed"
    problem = next((view.progress.problem for view in views if view.progress and view.progress.problem), "")
    found = state.model_copy(
        update={
            "phase": "ended",
            "outcome": outcome,
            "exit_status": status,
            "reason": problem,
            "nodes": nodes,
            "ended_ns": time.time_ns(),
        }
    )
    with contextlib.suppress(OSError):
        return write_state(folder, found)
    return found


def _exit_status(view: TaskView) -> int:
    """Return the exit status of a task; if the scheduler no longer has it, derive it from the progress."""
    status = view.status
    if status.exit_code is not None and (status.exit_code or status.state == "COMPLETED"):
        return status.exit_code
    finished = view.progress is not None and view.progress.state == "completed"
    return 0 if finished and status.state in {"", "COMPLETED"} else 1
