"""How fast a node writes to storage, until it is really there."""

import statistics
import time
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext
from ..model import Finding, Scope, Verdict
from ..quantities import Quantity, shown
from .files import fill, folder_of, temporary_file
from .gpus import failed


class StorageWrite(Frozen):
    """Bytes per second with fsync, as a checkpoint needs them.

    Parameters
    ----------
    folder
        Absolute, or beginning with ``$VARIABLE``.
    bytes
        Of each file.
    samples
        Files, one after the other; the first is dropped.
    """

    type: ClassVar[str] = "storage_write"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 60.0

    folder: Line
    bytes: Annotated[Quantity, Field(ge=4096, le=2**36)] = 64.0 * 2**20
    samples: Annotated[int, Field(ge=5, le=100)] = 5

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        folder, size = folder_of(self.folder, context), int(self.bytes)
        deadline = time.monotonic() + context.time_limit_s * 0.9
        rates = []
        for _ in range(self.samples + 1):
            with temporary_file(folder) as (descriptor, _path):
                written, seconds = fill(descriptor, size, deadline)
            if written < size:
                fix = "Storage is slow now: wait, or give the check more time."
                return [failed(f"{folder} took {shown(written, 'B')} only until the time limit.", fix)]
            rates.append(written / seconds)
        figure = statistics.median(rates[1:])
        reason = f"{folder} takes {shown(figure, 'B/s')}."
        return [
            Finding(verdict=Verdict.PASS, reason=reason, figure=figure, unit="B/s", samples=tuple(rates[1:]))
        ]
