"""Waiting for a job: what is told while it is queued and runs, and its exit status."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.runs import RunFolder, runs_root
from gipfel_cluster.scheduler import JobStatus, Scheduler
from gipfel_cluster.scheduler.processes import Process

from .notebook_file import cells_done, written
from .notebook_job import NotebookJob
from .standpoint import local_folder

_FIRST_S = 0.5
_LONGEST_S = 5.0
_LOG_LINES = 15
_LOG_BYTES = 64 << 10
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


async def wait_for_job(
    scheduler: Scheduler,
    job_id: str,
    job: NotebookJob,
    *,
    environment: Mapping[str, str],
    tell: Callable[[str], None],
) -> int:
    """Wait until a job has ended and return its exit status.

    A scheduler that does not answer is asked again, less and less often up to every 5 s: what limits this
    wait is the job's own time limit.

    Parameters
    ----------
    tell
        Is told one line whenever something changes, and the end of the log when the job failed.
    """
    said, pause, before = "", _FIRST_S, written(job.output)
    while True:
        status = (await scheduler.query([job_id])).get(job_id, JobStatus(answer="unknown"))
        if status.answer == "ended":
            break
        done = ""
        if status.state == "RUNNING" and written(job.output) != before:  # Not what an earlier job wrote.
            done = await asyncio.to_thread(cells_done, job.output)
        line = f"job {job_id} {_words(status, done)}"
        pause = _FIRST_S if line != said else min(pause * 1.5, _LONGEST_S)
        if line != said:
            tell(line)
            said = line
        await asyncio.sleep(pause)
    code = _exit_status(status, job, job_id, environment)
    if code == 0:
        tell(f"job {job_id} has run the notebook: {job.output}")
        return 0
    why = f" ({status.reason})" if status.reason else ""
    tell(f"job {job_id} ended: {status.state or 'unknown'}{why}, exit status {code}; the end of {job.log}:")
    for each in last_lines(job.log):
        tell(f"  {each}")
    return code


def last_lines(log: Path) -> list[str]:
    """The last lines of a log, without colours and control characters; empty where it can't be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [one_line(line) for line in _COLOURS.sub("", text).splitlines()]
    return [line for line in lines if line][-_LOG_LINES:]


def how_to_leave(job_id: str, job: NotebookJob, environment: Mapping[str, str]) -> str:
    """Where to look for a job that goes on, and how to end it, in one line."""
    if job.inside:
        end = f", end it with `scancel {job_id}` on the host" if job.scheduler == "slurm" else ""
        return f"job {job_id} goes on: look with `tail -f {job.log}`{end}"
    if job.scheduler == "slurm":
        look, end = f"`squeue -j {job_id}`", f"`scancel {job_id}`"
        return f"job {job_id} goes on: look with {look}, end it with {end}; its log is {job.log}"
    end = ""
    with contextlib.suppress(OSError, ValueError, GipfelError):
        keeper = Process.model_validate_json((local_folder(environment) / job_id / "keeper.json").read_text())
        end = f", end it with `kill {keeper.pid}`"
    return f"job {job_id} goes on: look with `tail -f {job.log}`{end}"


def _words(status: JobStatus, done: str) -> str:
    if status.answer == "unknown":
        return f"is not known at the moment: {status.reason or 'the scheduler gives no state'}"
    if status.state != "RUNNING":
        parts = (status.reason, f"expected {status.expected_start}" if status.expected_start else "")
        return f"is {status.state}" + "".join(f", {part}" for part in parts if part)
    where = f" on {', '.join(status.nodes)}" if status.nodes else ""
    return f"is RUNNING{where}" + (f", {done}" if done else "")


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
