"""Builds as workloads, for ``gipfel ps``, ``logs``, ``stop`` and ``rerun``."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.model import PYTHON, GipfelError, first_problem
from gipfel_cluster.process.tree import Process, continue_in_child, kill_tree
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.scheduler import JobRequest
from gipfel_cluster.scheduler.machine import run_sync
from gipfel_cluster.workloads.directory import (
    COMMAND,
    MAX_BYTES,
    SPEC,
    STOP,
    WorkloadState,
    hold_supervisor_lock,
    is_supervised,
    new_directory,
    parent_directory,
    read_state,
    refresh_queued_state,
    refresh_state,
    start_detached,
    workload_id,
    write_state,
)
from gipfel_cluster.workloads.kinds import DirectoryKind, Report, Workload
from gipfel_cluster.workloads.logs import LogFiles
from gipfel_cluster.workloads.quota import check_limits
from gipfel_cluster.workloads.submission import SubmissionContext, chosen_scheduler, submission_context

from ..data.pack import work_directory
from ..telemetry.files import open_log, read_regular
from .build import BuildContext, BuildJob, BuildSpec, BuiltImage, build, check_build
from .podman import Stopped, remove_abandoned, store_directory

DIRECTORY = "builds"
LOG = "build.log"
#: File with the result of a build, as `BuiltImage.to_json` returns it.
BUILT = "built.json"
_REFRESH_S = 10.0
#: Nanoseconds after the end of a killed or stopped build during which listing it also removes its leftovers.
_CLEAN_UP_NS = 3600 * 10**9


def new_build(spec: BuildSpec, environment: Mapping[str, str]) -> Path:
    """Create the directory of a build that is about to start, and return its path.

    Raises
    ------
    GipfelError
        The build can't start, or the directory can't be written.
    """
    check_build(spec)
    folder = new_directory(parent_directory(DIRECTORY, environment))
    target = Path(spec.target)
    write_atomically(folder / SPEC, spec.model_dump_json(indent=1) + "\n")
    write_atomically(folder / COMMAND, f"gipfel image build {spec.containerfile} -o {spec.target}\n")
    state = WorkloadState(
        phase="queued", name=target.stem, title=f"image {target.name}", created_ns=time.time_ns()
    )
    write_state(folder, state)
    return folder


def submit_build(folder: Path, environment: Mapping[str, str]) -> str:
    """Submit the job for a build whose directory exists, and return the job's ID.

    Raises
    ------
    GipfelError
        An option can't be used, or the scheduler refuses the job.
    """
    spec = _read_spec(folder)
    # A job that starts at once waits for this lock, so that its ID is recorded before it runs.
    with hold_supervisor_lock(folder):
        state = read_state(folder, WorkloadState, "build")
        try:
            context = submission_context(environment)
            scheduler = chosen_scheduler(spec.job.scheduler if spec.job else "", context)
            request = _job_request(spec, folder, scheduler, context)
            submitter = context.scheduler(scheduler)
            run_sync(check_limits(submitter, request, environment))
            job_id = run_sync(submitter.submit(request))
        except GipfelError as error:
            write_state(folder, _ended(state, error))
            raise
        write_state(folder, state.model_copy(update={"job_id": job_id, "scheduler": scheduler}))
    return job_id


def _job_request(spec: BuildSpec, folder: Path, scheduler: str, context: SubmissionContext) -> JobRequest:
    wanted = spec.job or BuildJob()
    if context.in_container:
        raise GipfelError(
            "A build of its own job is submitted from the host: a container has other paths.",
            "Run this in a terminal of the host, or build in this job without these options.",
        )
    runtime = context.runtime("", scheduler)
    try:
        job = JobSpec(
            kind="build",
            command=(PYTHON, "-I", "-m", "gipfel_extension.cli", "image", "build", "--continue", str(folder)),
            cluster=context.default_setting("cluster") or scheduler,
            runtime=runtime.root,
            options={"build": str(folder), "target": spec.target, "containerfile": spec.containerfile},
            directory=str(Path(spec.target).parent),
        )
        return JobRequest(
            name=f"gipfel-image-{Path(spec.target).stem}"[:128],
            script=batch_script(runtime.python),
            directory=job.directory,
            output=str(folder / "job.log"),
            cpus_per_task=wanted.cpus,
            requeue=False,
            environment={**context.environment(), JOB_VARIABLE: job.model_dump_json()},
            **wanted.model_dump(exclude={"scheduler", "cpus"}),
        )
    except ValidationError as error:
        field, message = first_problem(error)
        raise GipfelError(
            f"The build's {field or 'options'} can't be used: {message}.", "Correct it."
        ) from None


def run_build(folder: Path, environment: Mapping[str, str], report: Callable[[str], None]) -> BuiltImage:
    """Run a build in a child process, write its state and log, and return the result.

    If either process is killed, the other one ends the processes that podman started, and records that in the
    state.

    Raises
    ------
    GipfelError
        It failed, or was stopped.
    KeyboardInterrupt
        It was interrupted; its state says so.
    """
    spec = _read_spec(folder)
    if spec.job is not None and store_directory(environment).is_relative_to("/dev/shm"):  # noqa: S108 - compared
        # Layers in a node's memory would outlive the job.
        spec = spec.model_copy(update={"keep_layers": False})
    continue_in_child(lambda name: _report_killed(folder, spec, environment, name, report))
    with hold_supervisor_lock(folder), _interrupted_by_sigterm():
        queued = read_state(folder, WorkloadState, "build")
        state = queued.model_copy(
            update={
                "phase": "running",
                "nodes": (_node(environment),),
                "job_id": queued.job_id or environment.get("SLURM_JOB_ID", ""),
                "run": environment.get("GIPFEL_RUN", ""),
                "supervisor": Process.of(os.getpid()),
                "started_ns": time.time_ns(),
            }
        )
        state = write_state(folder, state)
        try:
            built = _build(folder, spec, environment, report, state)
        except BaseException as error:
            # Orphans of podman's processes are children of this process by now.
            kill_tree(os.getpid())
            write_state(folder, _ended(state, error))
            if isinstance(error, Stopped):
                raise GipfelError("The build was stopped; nothing of it was kept.") from None
            raise
        write_atomically(folder / BUILT, json.dumps(built.to_json()) + "\n")
        reason = f"{built.image.name}, {built.packages} packages"
        update = {"phase": "ended", "outcome": "completed", "exit_status": 0, "reason": reason}
        write_state(folder, state.model_copy(update={**update, "ended_ns": time.time_ns()}))
        return built


def _node(environment: Mapping[str, str]) -> str:
    return environment.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def _report_killed(
    folder: Path, spec: BuildSpec, environment: Mapping[str, str], name: str, report: Callable[[str], None]
) -> None:
    """Record the end of a build whose process was killed, and remove its leftovers."""
    error = GipfelError(f"The build's process was ended by {name}.", f"See {folder / LOG}.")
    with suppress(OSError, GipfelError), hold_supervisor_lock(folder):
        write_state(folder, _ended(read_state(folder, WorkloadState, "build"), error))
    _clean_up(spec, environment)
    report(str(error))


def _clean_up(spec: BuildSpec, environment: Mapping[str, str]) -> None:
    """Remove the leftovers of killed builds beside the target and in this machine's stores."""
    with suppress(OSError, GipfelError), work_directory(Path(spec.target)):
        pass
    remove_abandoned(environment)


def _build(
    folder: Path,
    spec: BuildSpec,
    environment: Mapping[str, str],
    report: Callable[[str], None],
    state: WorkloadState,
) -> BuiltImage:
    refreshed = time.monotonic()

    def is_stopping() -> bool:
        nonlocal refreshed
        if time.monotonic() - refreshed > _REFRESH_S:
            # Refresh the state, since a build whose state is old counts as lost.
            refreshed = time.monotonic()
            write_state(folder, state)
        return (folder / STOP).exists()

    with os.fdopen(open_log(folder / LOG), "wb", buffering=0) as log:

        def report_step(line: str) -> None:
            log.write(f"gipfel: {line}\n".encode())
            report(line)

        try:
            return build(spec, BuildContext(log, environment, report_step, is_stopping))
        except GipfelError as error:
            fix = error.fix or f"See `gipfel logs build:{workload_id(folder)}`."
            failed = GipfelError(error.problem, fix)
            log.write(f"gipfel: {failed}\n".encode())
            raise failed from error


def _ended(state: WorkloadState, error: BaseException) -> WorkloadState:
    stopped = isinstance(error, Stopped | KeyboardInterrupt)
    reason = "" if stopped else str(error) or type(error).__name__
    update = {
        "phase": "ended",
        "outcome": "stopped" if stopped else "failed",
        "exit_status": 130 if stopped else 1,
        "reason": reason,
        "ended_ns": time.time_ns(),
    }
    return state.model_copy(update=update)


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, which schedulers send, so that partial files are removed."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def start_build(folder: Path, environment: Mapping[str, str]) -> None:
    """Start a build in a process that outlives this one.

    Raises
    ------
    GipfelError
        It did not start.
    """
    argv = (sys.executable, "-m", "gipfel_extension.cli", "image", "build", "--continue", str(folder))
    try:
        start_detached(argv, folder / "supervisor.log", environment, cwd=None)
    except OSError as error:
        raise GipfelError(f"The build can't be started: {error.strerror}.") from error


def _read_spec(folder: Path) -> BuildSpec:
    try:
        return BuildSpec.model_validate_json(read_regular(folder / SPEC, MAX_BYTES))
    except (OSError, ValidationError) as error:
        raise GipfelError(f"The build in {folder} can't be read.", "Start it with its options.") from error


class BuildKind(DirectoryKind):
    """Builds of images as workloads."""

    name = "build"
    directory = DIRECTORY

    def logs(self, workload: Workload) -> LogFiles:
        """Return the build's log, and the log of its job or background process if that is not empty."""
        found = sorted(Path(workload.folder).glob("*.log"))
        return LogFiles(dict(enumerate(each for each in found if each.stat().st_size)))

    def stop(self, workload: Workload, environment: Mapping[str, str]) -> None:
        """Ask the build's process to stop, or cancel the job of a build that is still queued."""
        super().stop(workload, environment)
        folder = Path(workload.folder)
        state = read_state(folder, WorkloadState, "build")
        if state.phase == "queued" and state.job_id:
            run_sync(submission_context(environment).scheduler(state.scheduler).cancel(state.job_id))
            if not is_supervised(folder):
                write_state(folder, _ended(state, Stopped()))

    def rerun(
        self,
        workload: Workload,
        environment: Mapping[str, str],
        *,
        directory: Path,  # noqa: ARG002 - its paths are absolute
        report: Report,
        kill_holders: bool = False,  # noqa: ARG002 - a build uses no GPUs
    ) -> Workload:
        """Start the same build again, in the background or in a separate job; it replaces the image."""
        spec = _read_spec(Path(workload.folder)).model_copy(update={"replace": True})
        folder = new_build(spec, environment)
        if spec.job is None:
            start_build(folder, environment)
        else:
            submit_build(folder, environment)
        report(f"{spec.target} is replaced when the build has succeeded.")
        return self._workload(folder)

    def _workload(self, folder: Path) -> Workload:
        before = read_state(folder, WorkloadState, "build")
        state = refresh_state(folder, before)
        if state.phase == "queued" and state.scheduler:
            with suppress(GipfelError):
                scheduler = submission_context(os.environ).scheduler(state.scheduler)
                state = refresh_queued_state(folder, state, scheduler)
        # If Slurm kills a build during its clean-up, its files are in use for a moment longer; a later
        # listing removes them.
        recent = time.time_ns() - (state.ended_ns or 0) < _CLEAN_UP_NS
        if state.outcome in ("lost", "stopped") and recent:
            with suppress(GipfelError):
                _clean_up(_read_spec(folder), os.environ)
        return Workload.of(self.name, folder, state)
