"""Where a job's server works and keeps its state, inside and outside the container."""

import os
from pathlib import Path, PurePosixPath

from pydantic import Field

from ..edf import Edf, Mount
from ..model import Frozen
from ..runs import make_private


class Place(Frozen):
    """Folders and variables that a server needs beside its environment."""

    directory: str
    """Where the server starts and the file browser is rooted."""
    mounts: tuple[Mount, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)


def place_on_host(edf: Edf | None, home: str) -> Place:
    """The place of a server without a container: the EDF's working folder, else the home folder."""
    return Place(directory=(edf.workdir if edf else "") or home)


def place_in_container(edf: Edf, home: str) -> Place:
    """The place of a server in a container: a folder that outlives it.

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
    return Place(directory=directory, mounts=tuple(mounts), environment=environment)


def _mounted(edf: Edf, path: str, *, writable: bool) -> bool:
    wanted = PurePosixPath(path)
    for mount in reversed(edf.mounts):
        if wanted.is_relative_to(mount.destination) and "sqsh" not in mount.flags:
            return not (writable and ("ro" in mount.flags or not os.access(mount.source, os.W_OK)))
    return False


def _made(path: Path) -> str:
    make_private(path)
    return str(path)
