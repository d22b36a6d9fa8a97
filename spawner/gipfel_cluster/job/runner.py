"""Run a job on its node: everything that happens on the host around the container."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ..broker.context import JobContext, Workspace, host_variables, workspace_in_container, workspace_on_host
from ..edf import Edf, EdfError, Mount, check_local, load_edf
from ..engines import ContainerRequest, Invocation, engine_for, engine_pulls
from ..engines.srun import ContainerEngine
from ..environment import BINDING
from ..hooks import engine_invocation
from ..model import PYTHON, GipfelError
from ..process.fork import ForkedProgram, LoadingProgram, allow_forks
from ..process.liveness import LOCKS_FOLDER, adopt_orphans, signal_all, wait_for_holders
from ..process.tree import end_descendants
from ..runs import RunFolder, ScratchFolder, runs_root
from ..runtime import Runtime
from ..scheduler.machine import scheduler_of
from .broker import broker_beside
from .record import BackgroundDigest, cache_folder, describe_run, job_id_of, now
from .recording import Recording, close_run
from .spec import JOB_VARIABLE, JobSpec

_ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


class JobRunner:
    """Runs one `JobSpec` on this node and returns its exit status."""

    def __init__(self, spec: JobSpec, environment: Mapping[str, str]) -> None:
        self.spec = spec
        self.environment = dict(environment)
        if "SLURM_JOB_ID" in self.environment:
            # Slurm leaves it unset in a job without GPUs, which every CUDA program reads as "all of them".
            self.environment.setdefault("CUDA_VISIBLE_DEVICES", "")
        self.home = self.environment.get("HOME") or str(Path.home())
        self.job_id = job_id_of(self.environment) or str(os.getpid())
        self.node = self.environment.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
        self._child: subprocess.Popen[bytes] | ForkedProgram | None = None
        self._received: int | None = None
        self._notified: set[int] = set()
        self._recorded = False

    def run(self) -> int:
        """Run the job to its end.

        Raises
        ------
        GipfelError
            The EDF, the runtime, the engine or the run folder can't be used; nothing was started.
        """
        adopt_orphans()
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        run = RunFolder.create(runs_root(self.environment), self.spec.cluster, self.job_id)
        edf = self._edf()
        runtime = Runtime.load(self.spec.runtime) if self.spec.runtime else Runtime.here()
        scratch = ScratchFolder.create()
        try:
            return self._run_in(run, edf, runtime, scratch.path)
        finally:
            scratch.remove()
            if self._recorded:
                # Last: it takes the longest, and a later request for the score can do it as well.
                close_run(run.path, self.environment)

    def _edf(self) -> Edf | None:
        if not self.spec.edf:
            return None
        directory = Path(self.spec.directory or self.home)
        edf = load_edf(self.spec.edf, environment=self.environment, directory=directory)
        found = check_local(edf, pulls=engine_pulls(self.spec.engine))
        errors = tuple(each for each in found if each.severity == "error")
        if errors:
            raise EdfError(errors)
        return edf

    def _run_in(self, run: RunFolder, edf: Edf | None, runtime: Runtime, scratch: Path) -> int:
        for part in ("s", "j", "c", LOCKS_FOLDER):  # sockets, Jupyter's runtime files, the container's own
            (scratch / part).mkdir(mode=0o700)
        on_host = self.spec.kind == "launch"
        contained = edf is not None and bool(edf.image) and not on_host
        if not contained and Path(sys.prefix) != Path(runtime.root):
            # Without a container nothing has to be mounted: the environment that runs this job serves, with
            # whatever else is installed in it. A runtime that is one file starts in containers only.
            runtime = Runtime.here()
        workspace = (
            workspace_in_container(edf, self.home) if edf and contained else workspace_on_host(edf, self.home)
        )
        directory = self.spec.directory or workspace.directory
        # The first word alone: the others may be a user's.
        command = list(self.spec.command)
        command[0] = runtime.python if command[0] == PYTHON else command[0]
        loading = LoadingProgram.of(command) if on_host else None
        record = describe_run(self.spec, edf, command, self.environment, node=self.node, runtime=runtime)
        run.write_record(record)
        print(f"gipfel: the record of this run is {run.path}", file=sys.stderr, flush=True)  # noqa: T201
        container_edf = Edf(name="", path=None) if edf is None or on_host else edf
        engine = engine_for(container_edf, self.spec.engine)
        missing = engine.missing()
        if missing:
            raise GipfelError(missing, "Install it on the node, or choose an EDF without an image.")
        offered = self._offered(run, scratch, workspace, engine.name)
        request = ContainerRequest(
            edf=container_edf,
            command=tuple(command),
            mounts=(*workspace.mounts, *self._own_mounts(run, scratch, runtime, directory, workspace)),
            environment=offered,
            binding=BINDING,
            workdir=directory,
            scratch=str(scratch / "c"),
            step=self._step(),
        )
        invocation = engine_invocation(request, engine, python=sys.executable, runtime=runtime)
        record["notes"] = list(invocation.notes)
        run.write_record(record)
        context = job_context(
            self.spec,
            request,
            workspace=workspace,
            runtime=runtime,
            scratch=scratch,
            environment=self.environment,
        )
        start = self._start(engine.name) if contained else directory
        return self._run_recorded(run, record, context, invocation, start=start, loading=loading)

    def _run_recorded(
        self,
        run: RunFolder,
        record: dict[str, Any],
        context: JobContext,
        invocation: Invocation,
        *,
        start: str,
        loading: LoadingProgram | None,
    ) -> int:
        """Run the command beside its recorders and its broker, and write how it ended."""
        recording = Recording(self.spec, run, Path(context.sockets), self.node, self.environment)
        self._recorded = True
        digest = BackgroundDigest(
            record["image"], cache_folder(self.environment), lambda: run.write_record(record)
        )
        status = 1
        try:
            with broker_beside(context):
                status = self._wait(invocation.argv, dict(invocation.environment), start, loading)
                if self._received in _ENDING:
                    with contextlib.suppress(OSError):  # it is written once more
                        self._write_end(run, record, status)
                # A launch outlives the server that it was started from, and so the job does.
                wait_for_holders(Path(context.scratch, LOCKS_FOLDER), self._pass_on_end)
            return status
        finally:
            digest.stop()
            try:
                # First: a mass cancellation may kill this process before the rest is done.
                self._write_end(run, record, status)
            finally:
                end_descendants(keep=recording.processes())
                recording.stop()

    def _write_end(self, run: RunFolder, record: dict[str, Any], status: int) -> None:
        record.update(ended=now(), exit_status=status)
        run.write_record(record)

    def _offered(self, run: RunFolder, scratch: Path, workspace: Workspace, engine: str) -> dict[str, str]:
        offered = {key: value for key, value in self.environment.items() if key != JOB_VARIABLE}
        offered |= workspace.environment
        offered |= {
            "GIPFEL_RUN": str(run.path),
            "GIPFEL_SOCKETS": str(scratch / "s"),
            "GIPFEL_JOB_ID": self.job_id,
            "GIPFEL_CLUSTER": self.spec.cluster,
            # Jobs that are submitted from this one go where it runs: `sbatch` on PATH alone is not a cluster.
            "GIPFEL_SCHEDULER": scheduler_of(self.environment),
            "GIPFEL_NODE": self.node,
            "GIPFEL_ENGINE": engine,
            "JUPYTER_RUNTIME_DIR": str(scratch / "j"),
            # A kernel of the same name in the home folder, of another Python, would hide the runtime's.
            "JUPYTER_PREFER_ENV_PATH": "1",
        }
        offered.setdefault("JUPYTERHUB_ROOT_DIR", workspace.directory)
        return offered

    def _start(self, engine: str) -> str:
        """Return where an engine itself starts, which is where an EDF's relative paths are resolved."""
        return (self.spec.directory or self.home) if engine == ContainerEngine.name else "/"

    def _step(self) -> tuple[str, ...]:
        """Return the options of an engine that starts by srun: one task here, beside others."""
        here = self.environment.get("SLURMD_NODENAME")
        return ("--nodes=1", "--ntasks=1", "--overlap", *([f"--nodelist={here}"] if here else []))

    def _own_mounts(
        self, run: RunFolder, scratch: Path, runtime: Runtime, directory: str, workspace: Workspace
    ) -> tuple[Mount, ...]:
        wanted = [str(run.path), str(scratch), *self.spec.folders]
        if directory != workspace.directory:
            wanted.append(directory)
        return (*(Mount(source=path, destination=path) for path in dict.fromkeys(wanted)), runtime.mount)

    def _wait(
        self,
        argv: tuple[str, ...],
        environment: dict[str, str],
        directory: str,
        loading: LoadingProgram | None,
    ) -> int:
        if not Path(directory).is_dir():
            raise GipfelError(
                f"The working folder {directory} is not on {self.node}.", "Check workdir in the EDF."
            )
        self._child = loading.begin(argv, environment, directory) if loading else None
        if self._child is None:
            self._child = subprocess.Popen(argv, env=environment, cwd=directory, start_new_session=True)
        if self._received is not None:
            self._forward(self._received, None)
        status = self._child.wait()
        return 128 - status if status < 0 else status

    def _pass_on_end(self, holders: tuple[int, ...]) -> None:
        """Signal each process that keeps the job, once, that it shall end."""
        if self._received in _ENDING:
            signal_all(tuple(each for each in holders if each not in self._notified), self._received)
            self._notified.update(holders)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._received = number
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)


def job_context(
    spec: JobSpec,
    request: ContainerRequest,
    *,
    workspace: Workspace,
    runtime: Runtime,
    scratch: Path,
    environment: Mapping[str, str],
) -> JobContext:
    """Describe a job on its node, from its container, its folder on local disk and its variables."""
    host = host_variables({name: value for name, value in environment.items() if name != JOB_VARIABLE})
    offered = host_variables(request.environment)
    return JobContext(
        sockets=offered["GIPFEL_SOCKETS"],
        scratch=str(scratch),
        home=environment.get("HOME") or str(Path.home()),
        cluster=spec.cluster,
        engine=spec.engine,
        edf=request.edf.path or "",
        runtime=runtime,
        host=host,
        offered={
            name: value
            for name, value in offered.items()
            if name not in workspace.environment and host.get(name) != value
        },
        binding=request.binding,
        folders=(offered["GIPFEL_RUN"], str(scratch), *spec.folders),
        mounts=(*request.edf.mounts, *request.mounts),
        wanted_runtime=spec.runtime,
        step=request.step,
    )


def main() -> int:
    """Run the job of ``$GIPFEL_JOB``; print what a person must know as one line on stderr."""
    allow_forks()
    try:
        return JobRunner(_given(os.environ.pop(JOB_VARIABLE, "")), os.environ).run()
    except GipfelError as error:
        problem = str(error)
    except OSError as error:
        # A full disk, a quota, a file system that went away: not a fault of this program, so no traceback.
        where = f": {error.filename}" if error.filename else ""
        problem = f"The job can't continue on its node: {error.strerror or error}{where}."
    with contextlib.suppress(OSError):  # the log may be on the disk that is full
        print(f"gipfel: {problem}", file=sys.stderr, flush=True)  # noqa: T201
    return 1


def _given(content: str) -> JobSpec:
    if not content:
        raise GipfelError(
            f"{JOB_VARIABLE} is not set: there is no job to run.", "The hub and gipfel submit start jobs."
        )
    try:
        return JobSpec.model_validate_json(content)
    except ValueError as error:
        raise GipfelError(
            f"{JOB_VARIABLE} does not hold a job of this version of Gipfel.",
            "Are the hub's and the nodes' Gipfel the same?",
        ) from error
