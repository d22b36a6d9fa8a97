"""The host side of a job: everything that happens on its node around the container."""

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

from ..broker.beside import broker_beside
from ..broker.surroundings import Surroundings
from ..edf import Edf, EdfError, Mount, check_here, load_edf
from ..engines import ContainerRequest, engine_for, engine_invocation, engine_pulls
from ..engines.ce import ContainerEngine
from ..environment import BINDING
from ..forking import ForkedProgram, allow_forks
from ..model import GipfelError
from ..runs import RunFolder, runs_root
from ..runtime import Runtime
from ..scratch import ScratchFolder
from . import kept
from .closing import close_run
from .image_digest import BackgroundDigest, cache_folder
from .loading import LoadingProgram
from .orphans import adopt_orphans, end_descendants
from .place import Place, place_in_container, place_on_host
from .record import describe_run, job_id_of, now, scheduler_of
from .recording import Recording
from .spec import JOB_VARIABLE, PYTHON, JobSpec

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
        self._asked: int | None = None
        self._told: set[int] = set()
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
                # Last: it takes the longest, and whoever asks for the score can do it as well.
                close_run(run.path, self.environment)

    def _edf(self) -> Edf | None:
        if not self.spec.edf:
            return None
        directory = Path(self.spec.directory or self.home)
        edf = load_edf(self.spec.edf, environment=self.environment, directory=directory)
        found = check_here(edf, pulls=engine_pulls(self.spec.engine))
        errors = tuple(each for each in found if each.severity == "error")
        if errors:
            raise EdfError(errors)
        return edf

    def _run_in(self, run: RunFolder, edf: Edf | None, runtime: Runtime, scratch: Path) -> int:
        for part in ("s", "j", "c", kept.FOLDER):  # sockets, Jupyter's runtime files, the container's own
            (scratch / part).mkdir(mode=0o700)
        on_host = self.spec.kind == "launch"
        contained = edf is not None and bool(edf.image) and not on_host
        if not contained and Path(sys.prefix) != Path(runtime.root):
            # Without a container nothing has to be mounted: the environment that runs this job serves, with
            # whatever else is installed in it. A runtime that is one file starts in containers only.
            runtime = Runtime.here()
        place = place_in_container(edf, self.home) if edf and contained else place_on_host(edf, self.home)
        directory = self.spec.directory or place.directory
        # The first word alone: the others may be a user's.
        command = list(self.spec.command)
        command[0] = runtime.python if command[0] == PYTHON else command[0]
        loading = LoadingProgram.of(command) if on_host else None
        record = describe_run(self.spec, edf, command, self.environment, node=self.node, runtime=runtime)
        run.write_record(record)
        print(f"gipfel: the record of this run is {run.path}", file=sys.stderr, flush=True)  # noqa: T201
        worn = Edf(name="", path=None) if edf is None or on_host else edf
        engine = engine_for(worn, self.spec.engine)
        missing = engine.missing()
        if missing:
            raise GipfelError(missing, "Install it on the node, or choose an EDF without an image.")
        offered = self._offered(run, scratch, place, engine.name)
        request = ContainerRequest(
            edf=worn,
            command=tuple(command),
            mounts=(*place.mounts, *self._own_mounts(run, scratch, runtime, directory, place)),
            environment=offered,
            binding=BINDING,
            workdir=directory,
            scratch=str(scratch / "c"),
            step=self._step(),
        )
        invocation = engine_invocation(request, engine, python=sys.executable, runtime=runtime)
        record["notes"] = list(invocation.notes)
        run.write_record(record)
        recording = Recording(self.spec, run, scratch / "s", self.node, self.environment)
        self._recorded = True
        digest = BackgroundDigest(
            record["image"], cache_folder(self.environment), lambda: run.write_record(record)
        )
        status = 1
        try:
            around = Surroundings.of_job(
                self.spec,
                request,
                place=place,
                runtime=runtime,
                scratch=scratch,
                environment=self.environment,
            )
            with broker_beside(around):
                start = self._start(engine.name) if contained else directory
                status = self._wait(invocation.argv, dict(invocation.environment), start, loading)
                if self._asked in _ENDING:
                    with contextlib.suppress(OSError):  # it is written once more
                        self._write_end(run, record, status)
                # A launch outlives the server that it was started from, and so the job does.
                kept.wait_for_holders(scratch / kept.FOLDER, self._pass_on_end)
            return status
        finally:
            digest.stop()
            try:
                # First: whoever ends many jobs at once may kill this one before the rest is done.
                self._write_end(run, record, status)
            finally:
                end_descendants(keep=recording.processes())
                recording.stop()

    def _write_end(self, run: RunFolder, record: dict[str, Any], status: int) -> None:
        record.update(ended=now(), exit_status=status)
        run.write_record(record)

    def _offered(self, run: RunFolder, scratch: Path, place: Place, engine: str) -> dict[str, str]:
        offered = {key: value for key, value in self.environment.items() if key != JOB_VARIABLE}
        offered |= place.environment
        offered |= {
            "GIPFEL_RUN": str(run.path),
            "GIPFEL_SOCKETS": str(scratch / "s"),
            "GIPFEL_JOB_ID": self.job_id,
            "GIPFEL_CLUSTER": self.spec.cluster,
            # Jobs that are submitted from this one go where it runs: a program `sbatch` alone is no cluster.
            "GIPFEL_SCHEDULER": scheduler_of(self.environment),
            "GIPFEL_NODE": self.node,
            "GIPFEL_ENGINE": engine,
            "JUPYTER_RUNTIME_DIR": str(scratch / "j"),
            # A kernel of the same name in the home folder, of another Python, would hide the runtime's.
            "JUPYTER_PREFER_ENV_PATH": "1",
        }
        offered.setdefault("JUPYTERHUB_ROOT_DIR", place.directory)
        return offered

    def _start(self, engine: str) -> str:
        """Where an engine itself starts: the Container Engine takes an EDF's relative paths from there."""
        return (self.spec.directory or self.home) if engine == ContainerEngine.name else "/"

    def _step(self) -> tuple[str, ...]:
        """Where an engine that starts by srun starts: one task here, and others may start beside it."""
        here = self.environment.get("SLURMD_NODENAME")
        return ("--nodes=1", "--ntasks=1", "--overlap", *([f"--nodelist={here}"] if here else []))

    def _own_mounts(
        self, run: RunFolder, scratch: Path, runtime: Runtime, directory: str, place: Place
    ) -> tuple[Mount, ...]:
        wanted = [str(run.path), str(scratch), *self.spec.folders]
        if directory != place.directory:
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
        if self._asked is not None:
            self._forward(self._asked, None)
        status = self._child.wait()
        return 128 - status if status < 0 else status

    def _pass_on_end(self, holders: tuple[int, ...]) -> None:
        """Tell those that keep the job that it shall end, once each."""
        if self._asked in _ENDING:
            kept.signal_all(tuple(each for each in holders if each not in self._told), self._asked)
            self._told.update(holders)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._asked = number
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)


def main() -> int:
    """Run the job of ``$GIPFEL_JOB``; what a person must know is one line on stderr."""
    allow_forks()
    try:
        return JobRunner(_given(os.environ.pop(JOB_VARIABLE, "")), os.environ).run()
    except GipfelError as error:
        problem = str(error)
    except OSError as error:
        # A full disk, a quota, a file system that went away: nothing of ours, and a stack helps nobody.
        where = f": {error.filename}" if error.filename else ""
        problem = f"The job can't go on on its node: {error.strerror or error}{where}."
    with contextlib.suppress(OSError):  # the log may be on the disk that is full
        print(f"gipfel: {problem}", file=sys.stderr, flush=True)  # noqa: T201
    return 1


def _given(content: str) -> JobSpec:
    if not content:
        raise GipfelError(
            f"There is no job: {JOB_VARIABLE} is not set.", "The hub and gipfel submit start jobs."
        )
    try:
        return JobSpec.model_validate_json(content)
    except ValueError as error:
        raise GipfelError(
            f"{JOB_VARIABLE} does not hold a job of this version of Gipfel.",
            "Are the hub's and the nodes' Gipfel the same?",
        ) from error
