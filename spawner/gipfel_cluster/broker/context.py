"""The job around a process: its variables, folders and runtime on the host, and its server's workspace."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from pydantic import Field

from ..edf import Edf, Mount
from ..model import Frozen, GipfelError, Line
from ..runs import make_private
from ..runtime import Runtime
from ..scheduler.machine import SLURM_VARIABLES, scheduler_of
from .messages import SOCKET, PathRef

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


class Workspace(Frozen):
    """Where a job's server works and keeps its state, with the mounts and variables for it."""

    directory: str
    """Where the server starts and the file browser is rooted."""
    mounts: tuple[Mount, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)


def workspace_on_host(edf: Edf | None, home: str) -> Workspace:
    """Return a server's workspace without a container: the EDF's working folder, else the home folder."""
    return Workspace(directory=(edf.workdir if edf else "") or home)


def workspace_in_container(edf: Edf, home: str) -> Workspace:
    """Return a server's workspace in a container: a folder that outlives it.

    That is the EDF's working folder where a writable mount holds it, else ``~/gipfel``. Where the EDF mounts
    no home folder, the lab's settings and user kernels are kept in ``~/.gipfel/server``, so that they outlive
    the container too.
    """
    mounts: list[Mount] = []
    environment: dict[str, str] = {}
    directory = edf.workdir
    if not directory or not _mounted(edf, directory, writable=True):
        directory = _made(Path(home) / "gipfel")
        mounts.append(Mount(source=directory, destination=directory))
    if not _mounted(edf, home, writable=True):
        state = _made(Path(home) / ".gipfel" / "server")
        mounts.append(Mount(source=state, destination=state))
        environment = {
            "JUPYTER_CONFIG_DIR": f"{state}/config",
            "JUPYTER_DATA_DIR": f"{state}/data",
            "IPYTHONDIR": f"{state}/ipython",
            "XDG_CACHE_HOME": f"{state}/cache",
        }
    return Workspace(directory=directory, mounts=tuple(mounts), environment=environment)


def _mounted(edf: Edf, path: str, *, writable: bool) -> bool:
    wanted = PurePosixPath(path)
    for mount in reversed(edf.mounts):
        if wanted.is_relative_to(mount.destination) and "sqsh" not in mount.flags:
            return not (writable and ("ro" in mount.flags or not os.access(mount.source, os.W_OK)))
    return False


def _made(path: Path) -> str:
    make_private(path)
    return str(path)


class JobContext(Frozen):
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

    @property
    def socket(self) -> Path:
        """Return the path on which the broker listens."""
        return Path(self.sockets, SOCKET)

    @property
    def scheduler(self) -> str:
        """Return the name of the scheduler that runs the job: ``slurm`` or ``local``."""
        return scheduler_of(self.host)

    def located(self, ref: PathRef) -> Path | None:
        """Return the host's path of what a process of the job sees; None where the host lacks it.

        The job's mounts are tried, the last first, then the path itself: a site's engine may mount more than
        the EDF says. The same device and inode make sure that it is the same file.
        """
        for candidate in (*self._sources(Path(ref.path)), Path(ref.path)):
            try:
                about = candidate.stat()
            except OSError:
                continue
            if (about.st_dev, about.st_ino) == (ref.device, ref.inode):
                return candidate
        return None

    def runtime_for_images(self) -> Runtime:
        """Return the job's runtime where an image can use it, else the user's.

        Raises
        ------
        GipfelError
            No runtime is found.
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
    """Return whether a path is a built runtime, as a folder or as one file."""
    return (path / "runtime.json").is_file() or (path.suffix == ".sqsh" and path.is_file())


def find_runtime(given: str, environment: Mapping[str, str]) -> Runtime | None:
    """Find a user's runtime: the given one, ``$GIPFEL_RUNTIME``, what runs this, ``~/.gipfel/runtime``.

    Raises
    ------
    GipfelError
        The given runtime can't be used.
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
    """Return whether a folder, mounted at its own path, would hide the image's own."""
    return path in _SYSTEM


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a user's variables for a further job: no token, nothing of the job they come from."""
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
    """Return a process's variables as text that fits into JSON."""
    return {
        name: os.fsencode(value).decode(errors="replace") if not _is_text(value) else value
        for name, value in environment.items()
    }
