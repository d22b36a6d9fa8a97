"""The memory file system where data loaders and NCCL put what processes share."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext
from ..model import Finding, Scope
from ..quantities import Quantity, shown
from .files import file_system_of, fill, temporary_file
from .gpus import failed, passed


class SharedMemory(Frozen):
    """There is space, and it can really be written: a limit on memory may stop what the file system promises.

    Parameters
    ----------
    least_free
        Bytes that must be free.
    write
        Bytes that are written and removed again.
    """

    type: ClassVar[str] = "shared_memory"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 30.0

    folder: Line = "/dev/shm"  # noqa: S108 - it is the subject
    least_free: Annotated[Quantity, Field(ge=0)] = 2.0**30
    write: Annotated[Quantity, Field(ge=4096, le=2**36)] = 64.0 * 2**20

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        folder = Path(self.folder)
        disk = file_system_of(folder)
        free = float(disk.f_bavail * disk.f_frsize)
        fix = "Remove what earlier jobs left there, or take another node; a container may need a larger one."
        if free < self.least_free:
            return [
                failed(
                    f"{folder} has {shown(free, 'B')} free, not {shown(self.least_free, 'B')}.",
                    fix,
                    free,
                    "B",
                )
            ]
        size = int(self.write)
        with temporary_file(folder) as (descriptor, _):
            try:
                written, _ = fill(descriptor, size, time.monotonic() + context.time_limit_s * 0.8)
            except OSError as error:
                reason = f"{folder} takes less than {shown(size, 'B')}: {error.strerror}."
                return [failed(reason, fix, free, "B")]
        if written < size:
            return [failed(f"{folder} took {shown(written, 'B')} only until the time limit.", fix, free, "B")]
        return [
            passed(f"{folder} has {shown(free, 'B')} free; {shown(written, 'B')} were written.", free, "B")
        ]
