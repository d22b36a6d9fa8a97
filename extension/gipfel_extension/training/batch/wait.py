"""Waiting for a batch job: reports while it is queued and running, the table of its runs, its exit status."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.process.tree import Process
from gipfel_cluster.regular_files import modified_ns, read_regular, read_tail_lines
from gipfel_cluster.runs import RunFolder, runs_root
from gipfel_cluster.scheduler import JobStatus, Scheduler
from gipfel_cluster.workloads.submission import local_jobs_directory

from ..papermill.progress import Progress, progress_file, read_progress
from . import NotebookJob, NotebookTask
from .submitted import TaskView, started_at

WIDTH = 80
_MAX_ROWS = 16
_ORDER = {"FAILED": 0, "RUNNING": 1, "COMPLETING": 1, "CONFIGURING": 1}
_FIRST_S = 0.5
_MAX_S = 5.0
_LOG_LINES = 15
_LOG_BYTES = 64 << 10
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


#: Callback with the state of all runs, after each query.
OnStatus = Callable[[Sequence[TaskView]], None]


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
    running = list(job.tasks(job_id))
    # Detects progress files that an earlier job has written.
    before = {task.job_id: modified_ns(progress_file(task.output)) for task in running}
    known: dict[str, TaskView] = {}
    previous: dict[str, str] = {}
    pause = _FIRST_S
    while running:
        found = await scheduler.query([task.job_id for task in running])
        for task in running:
            status = found.get(task.job_id, JobStatus(answer="unknown"))
            known[task.job_id] = await asyncio.to_thread(
                _view, task, status, job, environment, before[task.job_id]
            )
        running = [task for task in running if known[task.job_id].exit_status is None]
        lines = {job_id: status_line(view) for job_id, view in known.items()}
        changed = {each for each, line in lines.items() if previous.get(each) != line}
        previous = lines
        if on_status is not None:
            on_status(tuple(known.values()))
        else:
            for task in running:
                # The end of a run is reported below, with details.
                if task.job_id in changed:
                    report(lines[task.job_id])
        if running:
            pause = _FIRST_S if changed else min(pause * 1.5, 1.0 if on_status else _MAX_S)
            await asyncio.sleep(pause)
    for view in known.values():
        _report_end(view, report)
    return max(view.exit_status or 0 for view in known.values())


def _view(
    task: NotebookTask, status: JobStatus, job: NotebookJob, environment: Mapping[str, str], before_ns: int
) -> TaskView:
    """Return the state of a run; `before_ns` is the time of a progress file of an earlier job."""
    fresh = modified_ns(progress_file(task.output)) != before_ns
    progress = read_progress(task.output) if fresh else None
    code = _exit_status(status, job, task.job_id, environment) if status.answer == "ended" else None
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
    lines = [one_line(_COLOURS.sub("", line)) for line in read_tail_lines(log, _LOG_BYTES)]
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


def status_line(view: TaskView) -> str:
    """Return the state of one run as a log line."""
    status, job = view.status, f"job {view.task.job_id}"
    if view.exit_status is not None:
        done = f", {view.progress}" if view.progress and view.exit_status else ""
        return f"{job} ended: {view.job_state}, exit status {view.exit_status}{done}"
    if status.answer == "unknown":
        return f"{job} is not known at the moment: {status.reason or 'the scheduler gives no state'}"
    if status.state != "RUNNING":
        parts = (status.reason, f"expected {status.expected_start}" if status.expected_start else "")
        return f"{job} is {status.state}" + "".join(f", {part}" for part in parts if part)
    where = f" on {', '.join(status.nodes)}" if status.nodes else ""
    return f"{job} is RUNNING{where}" + (f", {view.progress}" if view.progress else "")


def status_table(job_id: str, views: Sequence[TaskView], *, now_s: float) -> list[str]:
    """Return a table of the runs, at most `WIDTH` wide; of many runs, failed and running ones are shown.

    Parameters
    ----------
    now_s
        Current time in seconds since 1970.
    """
    counts = Counter(view.job_state for view in views)
    heading = f"job {job_id}  " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    named = any(view.task.values for view in views)
    lines = [
        heading,
        f"{'TASK':<6}{'STATE':<11}{'NODE':<14}{'CELLS':<9}{'TIME':<9}{'VALUES' if named else 'CELL'}",
    ]
    shown = sorted(views, key=lambda view: _ORDER.get(view.job_state, 2))[:_MAX_ROWS]
    lines += [_row(view, now_s) for view in sorted(shown, key=lambda view: _number(view.task.job_id))]
    if len(views) > len(shown):
        lines.append(f"and {len(views) - len(shown)} more")
    return [line[:WIDTH].rstrip() for line in lines]


def _row(view: TaskView, now_s: float) -> str:
    progress = view.progress
    cells = f"{progress.done}/{progress.cells}" if progress else ""
    node = view.status.nodes[0] if view.status.nodes else ""
    more = f"+{len(view.status.nodes) - 1}" if len(view.status.nodes) > 1 else ""
    values = " ".join(f"{name}={one_line(text)}" for name, text in view.task.values.items())
    details = values or (f"[{progress.current}] {progress.line}" if progress and progress.current else "")
    if view.exit_status and progress and progress.problem:
        details = progress.problem
    elif view.exit_status is None and view.job_state != "RUNNING" and view.status.reason:
        details = f"{details} ({view.status.reason})".strip()
    number = view.task.job_id.rpartition("_")[2] if "_" in view.task.job_id else "-"
    columns = (
        f"{number:<6}{view.job_state:<11}{(node[:12] + more)[:13]:<14}{cells:<9}{_time(progress, now_s):<9}"
    )
    return columns + details


def _time(progress: Progress | None, now_s: float) -> str:
    if progress is None:
        return ""
    seconds = progress.elapsed
    if progress.state == "running":
        started = started_at(progress)
        if started is None:
            return ""
        seconds = now_s - started
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _number(job_id: str) -> int:
    digits = job_id.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else 0
