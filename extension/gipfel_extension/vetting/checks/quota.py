"""Space and files that are left for a user on a file system."""

import time
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext
from ..model import Finding, Scope, Verdict
from ..quantities import Quantity, shown
from .files import file_system_of, fill, folder_of, temporary_file
from .gpus import failed, passed


class Quota(Frozen):
    """Space is free and can be written: a quota shows itself only to who writes.

    Parameters
    ----------
    folder
        Absolute, or beginning with ``$VARIABLE``.
    least_free
        Bytes that the file system must have left.
    least_files
        Files that it must have left, where it counts them.
    write
        Bytes that are written and removed again.
    """

    type: ClassVar[str] = "quota"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 60.0

    folder: Line
    least_free: Annotated[Quantity, Field(ge=0)] = 10e9
    least_files: Annotated[int, Field(ge=0)] = 1000
    write: Annotated[Quantity, Field(ge=4096, le=2**36)] = 2.0**20

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        folder = folder_of(self.folder, context)
        disk = file_system_of(folder)
        free, fix = float(disk.f_bavail * disk.f_frsize), "Remove what is not needed, or ask for more quota."
        if free < self.least_free:
            return [
                failed(
                    f"{folder} has {shown(free, 'B')} left, not {shown(self.least_free, 'B')}.",
                    fix,
                    free,
                    "B",
                )
            ]
        if disk.f_files and disk.f_favail < self.least_files:
            return [failed(f"{folder} has room for {disk.f_favail} more files.", fix, free, "B")]
        with temporary_file(folder) as (descriptor, _):
            try:
                written, _ = fill(descriptor, int(self.write), time.monotonic() + context.time_limit_s * 0.8)
            except OSError as error:
                return [failed(f"{folder} can't be written: {error.strerror}.", fix, free, "B")]
        if written < self.write:
            reason = f"Only {shown(written, 'B')} of {shown(self.write, 'B')} could be written in time."
            return [
                Finding(verdict=Verdict.INCONCLUSIVE, reason=reason, fix="Give it more time, or write less.")
            ]
        return [passed(f"{folder} has {shown(free, 'B')} left.", free, "B")]
