"""Paths that a run needs: mounted, of the right kind, writable."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext, Missing
from ..model import Finding, Scope
from .files import folder_of, temporary_file
from .gpus import failed, passed

Access = Literal["read", "write"]


class Mounts(Frozen):
    """Each path is there and can be read or written.

    Parameters
    ----------
    paths
        Absolute path, or one that begins with ``$VARIABLE``, to "read" or "write".
    kinds
        Path to the type of its file system, such as lustre or nfs4: notices a path that is mounted away.
    """

    type: ClassVar[str] = "mounts"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 30.0

    paths: Mapping[Line, Access] = Field(min_length=1)
    kinds: Mapping[Line, Line] = Field(default_factory=dict)

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        for name, access in self.paths.items():
            path = folder_of(name, context)
            if wrong := _wrong(path, access):
                fix = "See whether it is mounted on this node and into the container, and who may use it."
                return [failed(wrong, fix)]
        for name, kind in self.kinds.items():
            path = folder_of(name, context)
            found = file_system(path, context.host.text("/proc/self/mountinfo"))
            if found != kind:
                fix = "Take another node, or mount it: something else lies over this path."
                return [
                    failed(f"{path} is on {found or 'no file system that is listed'}, not on {kind}.", fix)
                ]
        return [passed(f"{len(self.paths)} path(s) are as they must be.")]


def _wrong(path: Path, access: Access) -> str:
    try:
        path.stat()
        if access == "read":
            # Looking into it notices a mount whose server is gone, as stat may not.
            if path.is_dir():
                with os.scandir(path) as entries:
                    next(entries, None)
            else:
                with path.open("rb") as file:
                    file.read(1)
            return ""
        if not path.is_dir():
            return "" if os.access(path, os.W_OK) else f"{path} can't be written."
        with temporary_file(path) as (descriptor, _):
            os.write(descriptor, b"gipfel")
    except Missing as error:
        return error.problem
    except OSError as error:
        return f"{path} can't be used: {error.strerror}."
    return ""


def file_system(path: Path, mountinfo: str) -> str:
    """The type of the file system of a path, by ``/proc/self/mountinfo``; empty where none is listed."""
    real = Path(os.path.realpath(path))
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        parts = fields.split()
        if len(parts) < 5 or not rest:
            continue
        place = Path(parts[4].replace("\\040", " ").replace("\\011", "\t"))
        # A later mount lies over an earlier one at the same place.
        if (real == place or place in real.parents) and len(place.parts) >= best:
            best, kind = len(place.parts), rest.split()[0]
    return kind
