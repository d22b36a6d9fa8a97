"""Start of launches, and access to launches that were started: all state of a launch is in its directory."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.scheduler.machine import run_sync
from gipfel_cluster.workloads.directory import is_supervised, refresh_queued_state
from gipfel_cluster.workloads.logs import Cursor, LogPage, read_logs
from gipfel_cluster.workloads.submission import SubmissionContext, start_supervisor, submission_context

from ..telemetry.files import read_json, read_regular
from .launches.attempt import PROBE_FILE, PROGRAM_FILE
from .launches.logs import Progress, launch_logs, read_progress
from .launches.planning import plan_launch, shown_command, started_command
from .preflight import CheckOutcome, run_preflight
from .record import (
    COMMAND,
    EXIT,
    MAX_BYTES,
    PLAN,
    SPEC,
    STOP,
    LaunchState,
    RankRecord,
    known_folders,
    new_folder,
    read_rank_records,
    read_state,
    refresh_state,
    write_state,
)
from .record.spec import LaunchPlan, LaunchSpec

__all__ = ["DryRun", "Launch", "find_running_duplicate", "launch"]

_PROGRAMS = {
    PROGRAM_FILE: "rank_program.py",
    "run.py": "run_program.py",
    "torchrun.py": "torchrun_program.py",
    **{
        name: name
        for name in (
            "gipfel_rank_files.py",
            "step_hooks.py",
            "rank_requests.py",
            "rank_looks.py",
            "rank_writes.py",
        )
    },
    PROBE_FILE: "probe_program.py",
}
#: Seconds of the first and the longest pause while `Launch.wait` polls the state.
_FIRST_S, _MAX_S = 0.2, 2.0
#: Seconds without an update of the state after which a launch without a live supervisor counts as silent.
_SILENT_S = 90.0
#: Seconds between two queries of the scheduler in `Launch.wait`.
_QUERY_S = 30.0
_OUTCOMES = TypeAdapter(tuple[CheckOutcome, ...])


class DryRun(Frozen):
    """Result of a dry run: the exact command, and the outcomes of the pre-flight checks."""

    command: str
    preflight: tuple[CheckOutcome, ...] = ()
    folder: str = ""


class Launch:
    """A launch, identified by its directory; it may be queued, running on any node, or ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path | str) -> "Launch":
        """Return the launch in a directory.

        Raises
        ------
        GipfelError
            The directory does not hold a launch.
        """
        found = cls(Path(folder))
        read_state(found.folder)
        return found

    @property
    def state(self) -> LaunchState:
        """Return the last written state; ``lost`` if the supervisor was killed."""
        return refresh_state(self.folder)

    @property
    def spec(self) -> LaunchSpec:
        """Return the spec as it was requested."""
        return LaunchSpec.model_validate_json(read_regular(self.folder / SPEC, MAX_BYTES))

    @property
    def resumed_spec(self) -> LaunchSpec:
        """Return the spec for a rerun: with resolved paths, and with ``resume`` if the ranks have started."""
        plan = LaunchPlan.load(self.folder)
        paths = {
            "directory": plan.directory,
            "target": plan.target,
            "checkpoint": plan.checkpoint,
            "python": plan.python,
        }
        if plan.spec.kind == "cell":
            paths["target"] = ""
        resumes = plan.spec.resume or self.state.started_ns is not None
        return plan.spec.model_copy(update={**paths, "resume": resumes})

    @property
    def command(self) -> str:
        """Return the exact command."""
        return read_regular(self.folder / COMMAND, MAX_BYTES).decode(errors="replace")

    @property
    def started_command(self) -> str:
        """Return the exact command of the last start, with nodes and port; empty before the first start."""
        try:
            return started_command(LaunchPlan.load(self.folder), self.folder)
        except GipfelError:
            return ""

    @property
    def preflight(self) -> tuple[CheckOutcome, ...]:
        """Return the outcomes of the pre-flight checks."""
        try:
            return _OUTCOMES.validate_python(read_json(self.folder / "preflight.json", MAX_BYTES))
        except (OSError, ValueError):
            # The file may be from another version; the rest of the launch can still be shown.
            return ()

    @property
    def held_back(self) -> bool:
        """Return whether a pre-flight check failed, so that the same launch can start later."""
        state = self.state
        never = state.ended and state.outcome == "failed" and state.started_ns is None
        return never and any(each.verdict == "fail" for each in self.preflight)

    @property
    def ranks(self) -> dict[int, RankRecord]:
        """Return node, process and GPU of each rank."""
        return read_rank_records(self.folder)

    @property
    def silent(self) -> bool:
        """Return whether a running launch has not updated its state recently, because it may be dead."""
        state = self.state
        outdated = time.time_ns() - state.updated_ns > _SILENT_S * 1e9
        return state.phase == "running" and outdated and not is_supervised(self.folder)

    def settle(self) -> LaunchState:
        """Return the state; query the scheduler if the launch is queued."""
        state = self.state
        if state.phase != "queued":
            return state
        with contextlib.suppress(GipfelError, OSError):
            plan = LaunchPlan.load(self.folder)
            scheduler = submission_context(os.environ).scheduler(plan.scheduler) if plan.request else None
            return refresh_queued_state(self.folder, state, scheduler)
        return state

    def logs(self, since: Cursor | None = None, *, ranks: tuple[int, ...] = ()) -> LogPage:
        """Return the output of the ranks since a cursor, ordered by time; see `read_logs`."""
        return read_logs(launch_logs(self.folder), since, ranks=ranks)

    @property
    def progress(self) -> Progress:
        """Return the progress from the last metrics that the program has logged."""
        return read_progress(self.folder, self.state)

    def stop(self) -> None:
        """Stop the ranks; cancel the job of a queued launch."""
        state = self.state
        if state.ended:
            return
        (self.folder / STOP).touch(mode=0o600)
        if state.phase == "queued" and state.job_id:
            plan = LaunchPlan.load(self.folder)
            run_sync(submission_context(os.environ).scheduler(plan.scheduler).cancel(state.job_id))
        if state.phase in {"queued", "preflight"}:
            ended = {
                "phase": "ended",
                "outcome": "stopped",
                "exit_status": 143,
                "reason": "The launch was stopped.",
            }
            write_state(self.folder, state.model_copy(update={**ended, "ended_ns": time.time_ns()}))

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end and return the exit status; None if `timeout` seconds have passed before."""
        end = None if timeout is None else time.monotonic() + timeout
        pause, last_query = _FIRST_S, time.monotonic()
        while True:
            state = self.state
            if time.monotonic() - last_query > _QUERY_S:
                last_query = time.monotonic()
                state = self.settle()
            if state.ended:
                return 1 if state.exit_status is None else state.exit_status
            if end is not None and time.monotonic() > end:
                return None
            time.sleep(pause)
            pause = min(pause * 1.2, _MAX_S)


def launch(
    spec: LaunchSpec,
    environment: Mapping[str, str] | None = None,
    *,
    directory: Path | None = None,
    dry_run: bool = False,
    on_outcome: Callable[[CheckOutcome], None] | None = None,
    on_planned: Callable[["Launch"], None] | None = None,
    kill_holders: bool = False,
    held_folder: Path | None = None,
) -> Launch | DryRun:
    """Check, plan and start a launch; it keeps running when this process ends.

    Parameters
    ----------
    environment
        Environment variables of this process, which describe its job.
    directory
        Base of relative paths.
    dry_run
        Run the pre-flight checks and return the exact command, but start nothing.
    on_outcome
        Called with each outcome of the pre-flight checks.
    on_planned
        Called with the launch before the checks; its directory has the exact command.
    kill_holders
        Terminate processes of this user in this job that hold its GPUs, after reporting them to `on_outcome`.
    held_folder
        Directory of a launch that a failed check held back, to start it now; by default a new directory.

    Raises
    ------
    GipfelError
        The spec can't be carried out, or a pre-flight check failed.
    """
    environment = dict(os.environ) if environment is None else dict(environment)
    if kill_holders and not spec.preflight:
        raise GipfelError(
            "--kill-holders needs the pre-flight checks, which find the processes on the GPUs.",
            "Leave --no-preflight out.",
        )
    context = submission_context(environment)
    folder = held_folder or new_folder(environment)
    (folder / EXIT).unlink(missing_ok=True)
    try:
        plan = plan_launch(spec, folder, context, environment, directory or Path.cwd())
        _write_files(folder, plan)
        state = LaunchState(
            phase="preflight",
            number=int(folder.name),
            name=plan.spec.name,
            title=plan.spec.title,
            in_job=plan.request is None,
            ranks=plan.spec.ranks,
            scheduler=plan.scheduler,
            created_ns=time.time_ns(),
        )
        state = write_state(folder, state)
        if on_planned is not None:
            on_planned(Launch(folder))
        killing = kill_holders and not dry_run
        outcomes = (
            run_preflight(plan, environment, context, on_outcome, kill_holders=killing)
            if spec.preflight
            else ()
        )
        write_atomically(folder / "preflight.json", json.dumps([each.model_dump() for each in outcomes]))
        if dry_run:
            return DryRun(command=Launch(folder).command, preflight=outcomes)
        _raise_failures(outcomes, folder)
        _start_supervisor(plan, state, folder, environment, context)
    except BaseException as error:
        _mark_failed(folder, error)
        raise
    finally:
        if dry_run:
            shutil.rmtree(folder, ignore_errors=True)
    return Launch(folder)


def find_running_duplicate(
    spec: LaunchSpec, environment: Mapping[str, str], directory: Path
) -> Launch | None:
    """Return the newest queued or running launch of the same spec and directory; None if there is none.

    A launch whose supervisor has not updated its state recently does not count.
    """
    started = str((directory / Path(spec.directory or ".").expanduser()).resolve())
    for folder in reversed(known_folders(environment, all_runs=True)):
        with contextlib.suppress(GipfelError, OSError, ValueError):
            launch = Launch(folder)
            # The process that runs a pre-flight may have ended; a queued launch does not depend on one.
            if launch.state.phase in {"preflight", "ended"} or launch.silent:
                continue
            plan = LaunchPlan.load(folder)
            if plan.directory == started and _as_requested(plan.spec) == _as_requested(spec):
                return launch
    return None


def _as_requested(spec: LaunchSpec) -> LaunchSpec:
    """Return the spec with resolved and check-only fields reset, for comparison."""
    return spec.model_copy(update={"in_job": None, "preflight": True, "resume": False, "python": ""})


def _raise_failures(outcomes: tuple[CheckOutcome, ...], folder: Path) -> None:
    """Raise a failed outcome; if other processes hold the GPUs, add how to start the launch later."""
    for outcome in outcomes:
        if outcome.verdict == "fail":
            later = f" To start this launch later: `gipfel rerun {folder.name}`." if outcome.holders else ""
            raise GipfelError(outcome.message, outcome.fix + later)


def _write_files(folder: Path, plan: LaunchPlan) -> None:
    write_atomically(folder / SPEC, plan.spec.model_dump_json(indent=1) + "\n")
    write_atomically(folder / PLAN, plan.model_dump_json(indent=1) + "\n")
    write_atomically(folder / COMMAND, shown_command(plan))
    for name, source in _PROGRAMS.items():
        shutil.copyfile(Path(__file__).with_name(source), folder / name)
    for name in ("flight_recorder", "steps", "ranks", "errors"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)


def _start_supervisor(
    plan: LaunchPlan,
    state: LaunchState,
    folder: Path,
    environment: Mapping[str, str],
    context: SubmissionContext,
) -> None:
    if plan.request is not None:
        variables = {**context.environment(), **plan.request.environment}
        request = plan.request.model_copy(update={"environment": variables})
        queued = write_state(folder, state.model_copy(update={"phase": "queued", "reason": "submitting"}))
        job_id = run_sync(context.scheduler(plan.scheduler).submit(request))
        # The job may have started, and its supervisor may have written its state.
        current = read_state(folder)
        if current.phase == "queued":
            write_state(folder, queued.model_copy(update={"job_id": job_id, "reason": ""}))
        return
    write_state(folder, state.model_copy(update={"phase": "queued", "reason": "its supervisor starts"}))
    start_supervisor(folder, "launch", environment)


def _mark_failed(folder: Path, error: BaseException) -> None:
    """Write the error into the state; remove the directory if it has no state."""
    try:
        state = read_state(folder)
    except GipfelError:
        shutil.rmtree(folder, ignore_errors=True)
        return
    if not state.ended:
        ended: dict[str, Any] = {"phase": "ended", "outcome": "failed", "exit_status": 1}
        reason = (
            str(error)
            if isinstance(error, GipfelError)
            else f"The start was interrupted: {type(error).__name__}."
        )
        write_state(folder, state.model_copy(update={**ended, "reason": reason, "ended_ns": time.time_ns()}))
