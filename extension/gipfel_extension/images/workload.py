"""Builds as workloads, for ``gipfel ps``, ``logs``, ``stop`` and ``rerun``."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from gipfel_cluster.model import GipfelError
from gipfel_cluster.process.tree import Process, continue_in_child, kill_tree
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.workloads.directory import (
    COMMAND,
    MAX_BYTES,
    SPEC,
    STOP,
    WorkloadState,
    hold_supervisor_lock,
    new_directory,
    parent_directory,
    read_state,
    start_detached,
    workload_id,
    write_state,
)
from gipfel_cluster.workloads.kinds import DirectoryKind, Report, Workload

from ..data.pack import work_directory
from ..telemetry.files import open_log, read_regular
from .build import BuildContext, BuildSpec, BuiltImage, build, check_build
from .podman import Stopped

DIRECTORY = "builds"
LOG = "build.log"
_START_S = 20.0
_REFRESH_S = 10.0


def new_build(spec: BuildSpec, environment: Mapping[str, str]) -> Path:
    """Write the directory of a build that is about to start, and return it.

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


def run_build(folder: Path, environment: Mapping[str, str], report: Callable[[str], None]) -> BuiltImage:
    """Run a build in a child of this process, which exits with its status; write its state and log.

    Whichever of the two is killed, the other one ends what podman has started, and says so in the state.

    Raises
    ------
    GipfelError
        It failed, or was stopped.
    KeyboardInterrupt
        It was interrupted; its state says so.
    """
    spec = _read_spec(folder)
    continue_in_child(lambda name: _report_killed(folder, spec, name, report))
    now = time.time_ns()
    state = WorkloadState(
        phase="running",
        name=Path(spec.target).stem,
        title=f"image {Path(spec.target).name}",
        nodes=(os.uname().nodename.partition(".")[0],),
        job_id=environment.get("SLURM_JOB_ID", ""),
        supervisor=Process.of(os.getpid()),
        created_ns=now,
        started_ns=now,
    )
    with hold_supervisor_lock(folder), _interrupted_by_sigterm():
        state = write_state(folder, state)
        try:
            built = _build(folder, spec, environment, report, state)
        except BaseException as error:
            # What podman has started and lost is a child of this process by now.
            kill_tree(os.getpid())
            write_state(folder, _ended(state, error))
            if isinstance(error, Stopped):
                raise GipfelError("The build was stopped; nothing of it was kept.") from None
            raise
        reason = f"{built.image.name}, {built.packages} packages"
        update = {"phase": "ended", "outcome": "completed", "exit_status": 0, "reason": reason}
        write_state(folder, state.model_copy(update={**update, "ended_ns": time.time_ns()}))
        return built


def _report_killed(folder: Path, spec: BuildSpec, name: str, report: Callable[[str], None]) -> None:
    """Write the end of a build whose process was killed, and remove what it had written beside its target."""
    error = GipfelError(f"The build's process was ended by {name}.", f"See {folder / LOG}.")
    with suppress(OSError, GipfelError), hold_supervisor_lock(folder):
        write_state(folder, _ended(read_state(folder, WorkloadState, "build"), error))
    with suppress(OSError, GipfelError), work_directory(Path(spec.target)):
        pass
    report(str(error))


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
            # A state that is not written for long counts as lost.
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
    """Raise KeyboardInterrupt on SIGTERM, as a scheduler sends it, so that nothing half made stays."""

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

    def rerun(
        self,
        workload: Workload,
        environment: Mapping[str, str],
        *,
        directory: Path,  # noqa: ARG002 - its paths are absolute
        report: Report,
        kill_holders: bool = False,  # noqa: ARG002 - a build uses no GPUs
    ) -> Workload:
        """Start the same build again on this node, in the background; it replaces its image."""
        spec = _read_spec(Path(workload.folder)).model_copy(update={"replace": True})
        folder = new_build(spec, environment)
        start_build(folder, environment)
        report(f"{spec.target} is replaced when the build has succeeded.")
        return self._workload(folder)
