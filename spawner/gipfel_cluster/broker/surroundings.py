"""What a broker knows of the job that it stands beside."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from ..edf import Mount
from ..engines.protocol import ContainerRequest
from ..job.place import Place
from ..job.record import scheduler_of
from ..job.spec import JOB_VARIABLE, JobSpec
from ..model import Frozen, GipfelError, Line
from ..runtime import Runtime
from ..scheduler.slurm_presence import SLURM_VARIABLES
from .messages import SOCKET, Spot

_SCHEDULERS_OWN = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SINFO_")
# What belongs to the server or the job itself: its tokens, its folders, its GPUs.
_NOT_PASSED_ON = (
    "JUPYTERHUB_",
    "JPY_",
    "GIPFEL_",
    "JUPYTER_RUNTIME_DIR",
    "CUDA_VISIBLE_DEVICES",
)
_PASSED_ON = (*SLURM_VARIABLES, "GIPFEL_RUNS")
# Mounted into a container they would hide the image's own.
_SYSTEM = frozenset(
    Path("/", name)
    for name in ("", "bin", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "tmp", "usr")
)


class Surroundings(Frozen):
    """A job, as its broker needs it.

    ``host`` are the job's variables on its node, ``offered`` those that its containers are offered on top;
    ``folders`` are shown in every container at the same path; ``mounts`` are those of the job's own
    container, in their order.
    """

    sockets: Line
    scratch: Line
    home: Line
    cluster: Line = "local"
    engine: Line = ""
    #: The job's own EDF, as its file; empty for none.
    edf: Line = ""
    runtime: Runtime
    host: dict[str, str]
    offered: dict[str, str] = Field(default_factory=dict)
    binding: tuple[str, ...] = ()
    folders: tuple[Line, ...] = ()
    mounts: tuple[Mount, ...] = ()
    #: The runtime that was asked for, which a job without a container may not use itself.
    wanted_runtime: Line = ""
    step: tuple[str, ...] = ()

    @classmethod
    def of_job(
        cls,
        spec: JobSpec,
        request: ContainerRequest,
        *,
        place: Place,
        runtime: Runtime,
        scratch: Path,
        environment: Mapping[str, str],
    ) -> "Surroundings":
        """Describe a job on its node, from its container, its folder on local disk, its variables."""
        host = host_variables({name: value for name, value in environment.items() if name != JOB_VARIABLE})
        offered = host_variables(request.environment)
        return cls(
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
                if name not in place.environment and host.get(name) != value
            },
            binding=request.binding,
            folders=(offered["GIPFEL_RUN"], str(scratch), *spec.folders),
            mounts=(*request.edf.mounts, *request.mounts),
            wanted_runtime=spec.runtime,
            step=request.step,
        )

    @property
    def socket(self) -> Path:
        """Where the broker listens."""
        return Path(self.sockets, SOCKET)

    @property
    def scheduler(self) -> str:
        """The name of the scheduler that runs the job: ``slurm`` or ``local``."""
        return scheduler_of(self.host)

    def located(self, spot: Spot) -> Path | None:
        """Where the host has what a process of the job sees; None where it doesn't.

        The job's mounts are tried, the last first, then the path itself: a site's engine may mount more than
        the EDF says. The same device and inode make sure that it is the same file.
        """
        for candidate in (*self._sources(Path(spot.path)), Path(spot.path)):
            try:
                about = candidate.stat()
            except OSError:
                continue
            if (about.st_dev, about.st_ino) == (spot.device, spot.inode):
                return candidate
        return None

    def runtime_for_images(self) -> Runtime:
        """The job's runtime where an image can use it, else the user's.

        Raises
        ------
        GipfelError
            There is none.
        """
        if is_built(Path(self.runtime.root)):
            return self.runtime
        found = find_runtime(self.wanted_runtime, self.host)
        if found is None:
            usual = Path(self.home) / ".gipfel" / "runtime"
            raise GipfelError(
                "There is no runtime to mount into the image.",
                f"Build one with `gipfel runtime build {usual}`, or set GIPFEL_RUNTIME.",
            )
        return found

    def _sources(self, path: Path) -> tuple[Path, ...]:
        return tuple(
            Path(mount.source) / path.relative_to(mount.destination)
            for mount in reversed(self.mounts)
            if path.is_relative_to(mount.destination) and "sqsh" not in mount.flags
        )


def is_built(path: Path) -> bool:
    """Whether a path is a built runtime, as a folder or as one file."""
    return (path / "runtime.json").is_file() or (path.suffix == ".sqsh" and path.is_file())


def find_runtime(given: str, environment: Mapping[str, str]) -> Runtime | None:
    """Find a user's runtime: the given one, ``$GIPFEL_RUNTIME``, what runs this, ``~/.gipfel/runtime``.

    Raises
    ------
    GipfelError
        The one that was given can't be used.
    """
    given = given or environment.get("GIPFEL_RUNTIME", "")
    if given:
        return Runtime.load(Path(given).expanduser())
    usual = Path(environment.get("HOME") or Path.home()) / ".gipfel" / "runtime"
    tree = Path(__file__).parents[3]
    built = (tree / "build" / "runtime",) if (tree / "pyproject.toml").is_file() else ()
    for folder in (Path(sys.prefix), usual, usual.with_suffix(".sqsh"), *built):
        if is_built(folder):
            return Runtime.load(folder)
    return None


def hides_an_image(path: Path) -> bool:
    """Whether a folder, mounted at its own path, would hide the image's own."""
    return path in _SYSTEM


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a user that a further job gets: no token, nothing of the job they come from."""
    return {
        name: value
        for name, value in environment.items()
        if name in _PASSED_ON
        or (
            name.isidentifier()
            and name.isascii()
            and _is_text(value)
            and not name.startswith((*_SCHEDULERS_OWN, *_NOT_PASSED_ON))
        )
    }


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # Bytes that are no UTF-8.
        return False
    return True


def host_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """A process's variables as they can be handed over as JSON."""
    return {
        name: os.fsencode(value).decode(errors="replace") if not _is_text(value) else value
        for name, value in environment.items()
    }
