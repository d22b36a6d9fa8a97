"""How fast a node reads from storage, past its own memory."""

import contextlib
import os
import statistics
import time
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext
from ..model import Finding, Scope, Verdict
from ..quantities import Quantity, shown
from .files import BLOCK, fill, folder_of, temporary_file
from .gpus import failed


class StorageRead(Frozen):
    """Bytes per second of a file that was just written, with its blocks compared.

    Parameters
    ----------
    folder
        Absolute, or beginning with ``$VARIABLE``.
    bytes
        Of the file.
    samples
        Times that it is read; the first is dropped.
    """

    type: ClassVar[str] = "storage_read"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 60.0

    folder: Line
    bytes: Annotated[Quantity, Field(ge=4096, le=2**36)] = 64.0 * 2**20
    samples: Annotated[int, Field(ge=5, le=100)] = 5

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        folder, size = folder_of(self.folder, context), int(self.bytes)
        deadline = time.monotonic() + context.time_limit_s * 0.9
        slow = "Storage is slow now: wait, or give the check more time."
        with temporary_file(folder) as (descriptor, _path):
            written, _ = fill(descriptor, size, deadline)
            rates = []
            for _ in range(self.samples + 1):
                if written < size or time.monotonic() > deadline:
                    return [failed(f"{folder} is too slow for its time limit.", slow)]
                rate, right = _read(descriptor, size)
                if not right:
                    fix = "Don't store anything there, and tell the operators."
                    return [failed(f"{folder} gives back other bytes than were written.", fix)]
                rates.append(rate)
        figure = statistics.median(rates[1:])
        reason = f"{folder} gives {shown(figure, 'B/s')}."
        return [
            Finding(verdict=Verdict.PASS, reason=reason, figure=figure, unit="B/s", samples=tuple(rates[1:]))
        ]


def _read(descriptor: int, size: int) -> tuple[float, bool]:
    """Bytes per second, and whether each block is the one that was written there."""
    # Otherwise the node's own memory answers; some file systems don't take the advice.
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_DONTNEED)
    place, right, start = 0, True, time.monotonic()
    while place < size:
        block = os.pread(descriptor, min(BLOCK, size - place), place)
        if not block:
            return 1.0, False
        if place % BLOCK == 0 and len(block) >= 8:
            right = right and block[:8] == place.to_bytes(8, "little")
        place += len(block)
    return size / max(time.monotonic() - start, 1e-9), right
