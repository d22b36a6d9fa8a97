"""Run a job on its node: prepare, start and record its container, and write how it ended."""

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
from ..edf import Edf, Mount
from ..egress.start import gated_invocation, with_gates
from ..engines import ContainerRequest, Engine, Invocation, load_usable_edf, usable_engine
from ..engines.srun import ContainerEngine
from ..environment import PROTECTED_VARIABLES
from ..hooks import engine_invocation
from ..image_digest import DIGESTS, BackgroundDigest
from ..model import PYTHON, GipfelError, report_line
from ..process.fork import ForkedProgram, PreloadedProgram, allow_forks
from ..process.locks import LOCKS_DIRECTORY, wait_for_lock_holders
from ..process.tree import adopt_orphans, end_descendants, signal_all
from ..runs import RunFolder, ScratchFolder, runs_root, user_cache
from ..runtime import Runtime
from ..scheduler.machine import scheduler_of
from . import JOB_VARIABLE, JobSpec
from .broker import broker_process
from .notices import JobNotices
from .record import BackgroundVerdict, describe_run, job_id_of, now
from .recording import Recording, close_run, track_runs
from .staging import stage_before_start, stage_request

_END_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
#: Seconds that a job waits at its end for the verdict on its image; only a very short job needs them.
_VERDICT_S = 5.0

#: Why a notebook server can't run behind a gate, through which nobody can connect to it.
_UNREACHABLE = (
    "A notebook server can't run behind a gate, because the hub must reach it; its launches, notebooks and "
    "kernels can."
)


class JobRunner:
    """Runs one `JobSpec` on this node and returns its exit status."""

    def __init__(self, spec: JobSpec, environment: Mapping[str, str]) -> None:
        self.spec = spec
        self.environment = dict(environment)
        if "SLURM_JOB_ID" in self.environment:
            # Slurm leaves it unset in a job without GPUs, and then CUDA programs would use all GPUs of the
            # node.
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
        notices = JobNotices(
            self.spec, run, self.job_id, self.environment, lambda: self._received in _END_SIGNALS
        )
        try:
            return self._prepare_and_run(run, notices)
        except (GipfelError, OSError) as error:
            notices.report_error(error)
            raise
        finally:
            notices.finish()

    def _prepare_and_run(self, run: RunFolder, notices: JobNotices) -> int:
        edf = self._edf()
        runtime = Runtime.load(self.spec.runtime) if self.spec.runtime else Runtime.from_current_interpreter()
        try:
            with ScratchFolder.create() as scratch:
                return self._run_in(run, edf, runtime, scratch.path, notices)
        finally:
            if self._recorded:
                # Last, because it takes the longest; a later request computes a missing score.
                close_run(run.path, self.environment)
            track_runs(self.environment)

    def _edf(self) -> Edf | None:
        if not self.spec.edf:
            return None
        directory = Path(self.spec.directory or self.home)
        return load_usable_edf(
            self.spec.edf, self.spec.engine, environment=self.environment, directory=directory
        )

    def _run_in(
        self, run: RunFolder, edf: Edf | None, runtime: Runtime, scratch: Path, notices: JobNotices
    ) -> int:
        for part in ("s", "j", "c", LOCKS_DIRECTORY):  # sockets, Jupyter's runtime files, container's scratch
            (scratch / part).mkdir(mode=0o700)
        on_host = self.spec.kind == "launch"
        contained = edf is not None and bool(edf.image) and not on_host
        if not contained and Path(sys.prefix) != Path(runtime.root):
            # Without a container nothing has to be mounted: use the Python environment that runs this job,
            # with all its packages. A runtime that is one file can be used in containers only.
            runtime = Runtime.from_current_interpreter()
        workspace = (
            workspace_in_container(edf, self.home) if edf and contained else workspace_on_host(edf, self.home)
        )
        directory = self.spec.directory or workspace.directory
        # Only the first word can be the placeholder: the others may be a user's.
        command = list(self.spec.command)
        command[0] = runtime.python if command[0] == PYTHON else command[0]
        preloaded = PreloadedProgram.for_command(command) if on_host else None
        record = describe_run(self.spec, edf, command, self.environment, node=self.node, runtime=runtime)
        run.write_record(record)
        report_line(f"the record of this run is {run.path}")
        container_edf = Edf(name="", path=None) if edf is None or on_host else edf
        engine = usable_engine(container_edf, self.spec.engine)
        request = ContainerRequest(
            edf=container_edf,
            command=tuple(command),
            mounts=(*workspace.mounts, *self._own_mounts(run, scratch, runtime, directory, workspace)),
            environment=self._container_environment(run, scratch, workspace, engine.name),
            protected=PROTECTED_VARIABLES,
            workdir=directory,
            scratch=str(scratch / "c"),
            step=self._srun_options(),
        )
        staged = self._stage(request.edf, run)
        invocation = self._invocation(request, engine, runtime, str(run.path))
        record["notes"] = [*staged, *invocation.notes]
        run.write_record(record)
        context = job_context(
            self.spec,
            request,
            workspace=workspace,
            runtime=runtime,
            scratch=scratch,
            environment=self.environment,
        )
        start = self._engine_directory(engine.name) if contained else directory
        return self._run_recorded(
            run, record, context, invocation, notices, directory=start, preloaded=preloaded
        )

    def _stage(self, edf: Edf, run: RunFolder) -> tuple[str, ...]:
        """Copy data to the job's nodes before the container starts; a launch does so before its ranks."""
        request = None if self.spec.kind == "launch" else stage_request(edf.annotations, self.spec.stage)
        if request is None:
            return ()
        return (
            stage_before_start(request, run.path, self.environment, lambda: self._received in _END_SIGNALS),
        )

    def _invocation(
        self, request: ContainerRequest, engine: Engine, runtime: Runtime, run: str
    ) -> Invocation:
        """Render the request, behind a gate if site, EDF or the job's spec declare one.

        A launch or a service does not run behind a gate itself, but the steps that it starts do; a build
        has no gate.
        """
        if self.spec.kind == "service":
            request = with_gates(request, self.environment)
        if self.spec.kind in {"launch", "service", "build"}:
            return engine_invocation(request, engine, python=sys.executable, runtime=runtime)
        return gated_invocation(
            request,
            engine,
            self.environment,
            self.spec.network,
            runtime=runtime,
            python=sys.executable,
            run=run,
            node=self.node,
            program=f"the {self.spec.kind}",
            unreachable=_UNREACHABLE if self.spec.kind == "server" else "",
        )

    def _run_recorded(
        self,
        run: RunFolder,
        record: dict[str, Any],
        context: JobContext,
        invocation: Invocation,
        notices: JobNotices,
        *,
        directory: str,
        preloaded: PreloadedProgram | None,
    ) -> int:
        """Run the command together with its recorders and its broker, and record how it ended."""
        recording = Recording(self.spec, run, Path(context.sockets), self.node, self.environment)
        self._recorded = True
        digest = BackgroundDigest(
            record["image"], user_cache(DIGESTS, self.environment), lambda: run.write_record(record)
        )
        image = (record["image"] or {}).get("path", "")
        verdict = BackgroundVerdict(image, run.path, self.environment)
        status = 1
        try:
            with broker_process(context):
                notices.start()
                variables = dict(invocation.environment)
                status = self._run_command(invocation.argv, variables, directory, preloaded)
                if self._received in _END_SIGNALS:
                    with contextlib.suppress(OSError):  # it is written again below
                        self._write_end(run, record, status)
                # A launch outlives the server that started it: the job waits until the launch has ended.
                wait_for_lock_holders(Path(context.scratch, LOCKS_DIRECTORY), self._signal_lock_holders)
        except (GipfelError, OSError) as error:
            notices.report_error(error)
            raise
        else:
            return status
        finally:
            digest.stop()
            # A cancelled job has no time to wait for the verdict.
            verdict.finish(0.0 if self._received in _END_SIGNALS else _VERDICT_S)
            try:
                # The record is written first: when many jobs are cancelled, Slurm may kill this process
                # before the rest is done.
                self._write_end(run, record, status)
            finally:
                notices.report_end(status, stopped=self._received in _END_SIGNALS)
                end_descendants(keep=recording.stop_restarting() | notices.pids())
                recording.stop()

    def _write_end(self, run: RunFolder, record: dict[str, Any], status: int) -> None:
        record.update(ended=now(), exit_status=status)
        run.write_record(record)

    def _container_environment(
        self, run: RunFolder, scratch: Path, workspace: Workspace, engine: str
    ) -> dict[str, str]:
        variables = {key: value for key, value in self.environment.items() if key != JOB_VARIABLE}
        variables |= workspace.environment
        variables |= {
            "GIPFEL_RUN": str(run.path),
            "GIPFEL_SOCKETS": str(scratch / "s"),
            "GIPFEL_JOB_ID": self.job_id,
            "GIPFEL_CLUSTER": self.spec.cluster,
            # Jobs that are submitted from this one use its scheduler, even if `sbatch` is on PATH for no
            # reason.
            "GIPFEL_SCHEDULER": scheduler_of(self.environment),
            "GIPFEL_NODE": self.node,
            "GIPFEL_ENGINE": engine,
            "JUPYTER_RUNTIME_DIR": str(scratch / "j"),
            # A kernel spec of the same name in the home directory would hide the runtime's.
            "JUPYTER_PREFER_ENV_PATH": "1",
        }
        variables.setdefault("JUPYTERHUB_ROOT_DIR", workspace.directory)
        return variables

    def _engine_directory(self, engine: str) -> str:
        """Return the working directory of an engine's process.

        The Container Engine resolves relative paths of an EDF there.
        """
        return (self.spec.directory or self.home) if engine == ContainerEngine.name else "/"

    def _srun_options(self) -> tuple[str, ...]:
        """Return options of srun for engines that use it: one task that shares this node's resources."""
        node = self.environment.get("SLURMD_NODENAME")
        return ("--nodes=1", "--ntasks=1", "--overlap", *([f"--nodelist={node}"] if node else []))

    def _own_mounts(
        self, run: RunFolder, scratch: Path, runtime: Runtime, directory: str, workspace: Workspace
    ) -> tuple[Mount, ...]:
        paths = [str(run.path), str(scratch), *self.spec.folders]
        if directory != workspace.directory:
            paths.append(directory)
        return (*(Mount(source=path, destination=path) for path in dict.fromkeys(paths)), runtime.mount)

    def _run_command(
        self,
        argv: tuple[str, ...],
        environment: dict[str, str],
        directory: str,
        preloaded: PreloadedProgram | None,
    ) -> int:
        if not Path(directory).is_dir():
            raise GipfelError(
                f"The working directory {directory} does not exist on {self.node}.",
                "Correct workdir in the EDF.",
            )
        self._child = preloaded.run(argv, environment, directory) if preloaded else None
        if self._child is None:
            self._child = subprocess.Popen(argv, env=environment, cwd=directory, start_new_session=True)
        if self._received is not None:
            self._forward(self._received, None)
        status = self._child.wait()
        return 128 - status if status < 0 else status

    def _signal_lock_holders(self, pids: tuple[int, ...]) -> None:
        """Forward a signal to end, once to each process that keeps the job alive."""
        if self._received in _END_SIGNALS:
            signal_all(tuple(each for each in pids if each not in self._notified), self._received)
            self._notified.update(pids)

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
    """Return the context of a job for its broker."""
    host = host_variables({name: value for name, value in environment.items() if name != JOB_VARIABLE})
    variables = host_variables(request.environment)
    return JobContext(
        sockets=variables["GIPFEL_SOCKETS"],
        scratch=str(scratch),
        home=environment.get("HOME") or str(Path.home()),
        cluster=spec.cluster,
        engine=spec.engine,
        edf=request.edf.path or "",
        runtime=runtime,
        host_environment=host,
        container_environment={
            name: value
            for name, value in variables.items()
            if name not in workspace.environment and host.get(name) != value
        },
        protected=request.protected,
        folders=(variables["GIPFEL_RUN"], str(scratch), *spec.folders),
        mounts=(*request.edf.mounts, *request.mounts),
        requested_runtime=spec.runtime,
        srun_options=request.step,
    )


def main() -> int:
    """Run the job of ``$GIPFEL_JOB``; print an error as one line on stderr."""
    allow_forks()
    try:
        return JobRunner(_parse_job(os.environ.pop(JOB_VARIABLE, "")), os.environ).run()
    except GipfelError as error:
        problem = str(error)
    except OSError as error:
        # A full disk, a quota or a lost file system is not an error of this program: print no traceback.
        where = f": {error.filename}" if error.filename else ""
        problem = f"The job can't continue on its node: {error.strerror or error}{where}."
    report_line(problem)
    return 1


def _parse_job(content: str) -> JobSpec:
    if not content:
        raise GipfelError(
            f"{JOB_VARIABLE} is not set, so there is no job to run.",
            "Start jobs with the hub, `gipfel submit` or `gipfel launch`.",
        )
    try:
        return JobSpec.model_validate_json(content)
    except ValueError as error:
        raise GipfelError(
            f"{JOB_VARIABLE} does not hold a job of this version of Gipfel.",
            "Install the same version of Gipfel on the hub and on the nodes.",
        ) from error
