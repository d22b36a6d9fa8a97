"""The context of a job: its variables, directories and runtime on the host, and its server's workspace."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from pydantic import Field

from ..edf import Edf, Mount
from ..image_verdict import SECURITY_VARIABLES
from ..model import Frozen, GipfelError, OneLine, printable
from ..runs import make_private
from ..runtime import Runtime
from ..scheduler.machine import SLURM_VARIABLES, scheduler_of
from .messages import SOCKET, PathRef

_SSH_HOOK = "com.hooks.ssh."
_SCHEDULER_PREFIXES = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SINFO_")
# Variables of the server or of the job: its tokens, directories and GPUs.
_JOB_PREFIXES = (
    "JUPYTERHUB_",
    "JPY_",
    "GIPFEL_",
    "JUPYTER_RUNTIME_DIR",
    "CUDA_VISIBLE_DEVICES",
)
#: Variables that a new job gets although their names begin with one of these prefixes, because they hold for
#: all jobs of a user: Slurm's configuration, the site's policy on images, where runs and vettings are stored
#: and tracked, how often nodes fail, and the directories of storage classes.
_EXCEPTIONS = (
    *SLURM_VARIABLES,
    *SECURITY_VARIABLES,
    "GIPFEL_RUNS",
    "GIPFEL_TRACK_TO",
    "GIPFEL_TRACK_TOKEN_FILE",
    "GIPFEL_VETTING_HISTORY",
    "GIPFEL_NODE_FAILURE_S",
    "GIPFEL_STORAGE",
    "GIPFEL_STORAGE_FAST",
    "GIPFEL_STORAGE_SHARED",
    "GIPFEL_STORAGE_KEEP",
    "GIPFEL_STORAGE_QUOTA",
)
# Mounting one of these directories into a container would hide the image's own.
_SYSTEM_DIRECTORIES = frozenset(
    Path("/", name)
    for name in ("", "bin", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "tmp", "usr")
)


class Workspace(Frozen):
    """The working directory of a job's server, and mounts and variables for it and the server's state."""

    directory: str
    """Working directory of the server, and root of the file browser."""
    mounts: tuple[Mount, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)


def workspace_on_host(edf: Edf | None, home: str) -> Workspace:
    """Return the workspace of a server without a container: the EDF's workdir, else the home directory."""
    return Workspace(directory=(edf.workdir if edf else "") or home)


def workspace_in_container(edf: Edf, home: str) -> Workspace:
    """Return the workspace of a server in a container: a directory that outlives the container.

    It is the EDF's workdir if that is in a writable mount, else ``~/gipfel``. If the EDF does not mount the
    home directory, JupyterLab's settings and the user's kernels are kept in ``~/.gipfel/server``, so that
    they outlive the container as well.
    """
    mounts: list[Mount] = []
    environment: dict[str, str] = {}
    directory = edf.workdir
    if not directory or not _mounted(edf, directory, writable=True):
        directory = _create(Path(home) / "gipfel")
        mounts.append(Mount(source=directory, destination=directory))
    if not _mounted(edf, home, writable=True):
        state = _create(Path(home) / ".gipfel" / "server")
        mounts.append(Mount(source=state, destination=state))
        environment = {
            "JUPYTER_CONFIG_DIR": f"{state}/config",
            "JUPYTER_DATA_DIR": f"{state}/data",
            "IPYTHONDIR": f"{state}/ipython",
            "XDG_CACHE_HOME": f"{state}/cache",
        }
    return Workspace(directory=directory, mounts=tuple(mounts), environment=environment)


def _mounted(edf: Edf, path: str, *, writable: bool) -> bool:
    destination = PurePosixPath(path)
    for mount in reversed(edf.mounts):
        if destination.is_relative_to(mount.destination) and "sqsh" not in mount.flags:
            return not (writable and ("ro" in mount.flags or not os.access(mount.source, os.W_OK)))
    return False


def _create(path: Path) -> str:
    make_private(path)
    return str(path)


class JobContext(Frozen):
    """A job as its broker needs it.

    ``sockets`` is the job's directory of Unix sockets, ``scratch`` its private directory on local disk.
    ``engine`` is its container engine and ``runtime`` the runtime that it uses. ``srun_options`` are for
    engines that start a container with srun. ``host_environment`` has the job's variables on its node, and
    ``container_environment`` those that containers get in addition. ``protected`` are names of variables that
    containers can't change. ``folders`` are mounted into every container at the same path; ``mounts`` are the
    mounts of the job's own container, in their order.
    """

    sockets: OneLine
    scratch: OneLine
    home: OneLine
    cluster: OneLine = "local"
    engine: OneLine = ""
    #: Path of the job's EDF; empty for none.
    edf: OneLine = ""
    runtime: Runtime
    host_environment: dict[str, str]
    container_environment: dict[str, str] = Field(default_factory=dict)
    protected: tuple[str, ...] = ()
    folders: tuple[OneLine, ...] = ()
    mounts: tuple[Mount, ...] = ()
    #: Path of the runtime that the user requested. A job without a container does not use it itself;
    #: containers that it starts later do.
    requested_runtime: OneLine = ""
    srun_options: tuple[str, ...] = ()

    @property
    def socket(self) -> Path:
        """Return the path of the broker's socket."""
        return Path(self.sockets, SOCKET)

    @property
    def scheduler(self) -> str:
        """Return the name of the job's scheduler: ``slurm`` or ``local``."""
        return scheduler_of(self.host_environment)

    def host_path(self, ref: PathRef) -> Path | None:
        """Return the host's path of a file of a process in the job; None if the host does not see it.

        Candidates are the paths below the job's mounts, the last mount first, then the path itself, because
        a site's engine may have further mounts. Equal device and inode prove that it is the same file.
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
        """Return the runtime of the job's containers; raises as `runtime_for_images` does."""
        return runtime_for_images(self.runtime, self.requested_runtime, self.host_environment)

    def _sources(self, path: Path) -> tuple[Path, ...]:
        return tuple(
            Path(mount.source) / path.relative_to(mount.destination)
            for mount in reversed(self.mounts)
            if path.is_relative_to(mount.destination) and "sqsh" not in mount.flags
        )


def is_built_runtime(path: Path) -> bool:
    """Return whether a path is a built runtime, a directory or a .sqsh file."""
    return (path / "runtime.json").is_file() or (path.suffix == ".sqsh" and path.is_file())


def find_runtime(path: str, environment: Mapping[str, str]) -> Runtime | None:
    """Return the runtime at `path`, else at ``$GIPFEL_RUNTIME``, else the first that is found, or None.

    It is looked for where this process runs, at ``~/.gipfel/runtime`` and ``~/.gipfel/runtime.sqsh``, and in
    the source tree.

    Raises
    ------
    GipfelError
        The runtime at `path` or ``$GIPFEL_RUNTIME`` can't be used.
    """
    path = path or environment.get("GIPFEL_RUNTIME", "")
    if path:
        return Runtime.load(Path(path).expanduser())
    default = Path(environment.get("HOME") or Path.home()) / ".gipfel" / "runtime"
    tree = Path(__file__).parents[3]
    built = (tree / "build" / "runtime",) if (tree / "pyproject.toml").is_file() else ()
    candidates = (Path(sys.prefix), default, default.with_suffix(".sqsh"), *built)
    found = next(filter(is_built_runtime, candidates), None)
    return Runtime.load(found) if found else None


def runtime_for_images(runtime: Runtime, requested: str, environment: Mapping[str, str]) -> Runtime:
    """Return a job's runtime if containers can use it, else the user's (see `find_runtime`).

    Raises
    ------
    GipfelError
        No runtime is found.
    """
    if is_built_runtime(Path(runtime.root)):
        return runtime
    found = find_runtime(requested, environment)
    if found is None:
        raise GipfelError(
            "There is no runtime to mount into the image.",
            "Build one with `gipfel runtime build ~/.gipfel/runtime`, or set GIPFEL_RUNTIME.",
        )
    return found


def without_ssh(edf: Edf) -> Edf:
    """Return an EDF without its ssh hook: only the job's own container runs an ssh server."""
    annotations = {name: value for name, value in edf.annotations.items() if not name.startswith(_SSH_HOOK)}
    return edf.model_copy(update={"annotations": annotations})


def is_system_directory(path: Path) -> bool:
    """Return whether mounting a directory at its own path would hide a system directory of the image."""
    return path in _SYSTEM_DIRECTORIES


def variables_for_new_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a user's variables for a new job, without tokens and without those of the current job."""
    return {
        name: value
        for name, value in environment.items()
        if name in _EXCEPTIONS
        or (
            name.isidentifier()
            and name.isascii()
            # Without bytes that are not UTF-8.
            and value == printable(value)
            and not name.startswith((*_SCHEDULER_PREFIXES, *_JOB_PREFIXES))
        )
    }


def host_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a process's variables, with bytes that are not UTF-8 replaced, since JSON can't hold them."""
    return {
        name: os.fsencode(value).decode(errors="replace") if value != printable(value) else value
        for name, value in environment.items()
    }
