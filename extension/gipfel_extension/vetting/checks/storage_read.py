"""How fast a node reads from storage, past its own memory."""

import contextlib
import os
import time
from pathlib import Path
from typing import ClassVar

from ..model import Finding
from .files import BLOCK, fill, temporary_file
from .gpus import failed
from .storage import SLOW, StorageCheck


class StorageRead(StorageCheck):
    """Bytes per second of a file that was just written, its blocks compared; each sample reads it once."""

    type: ClassVar[str] = "storage_read"
    verb: ClassVar[str] = "gives"

    def measure(self, folder: Path, size: int, deadline: float) -> list[float] | Finding:
        """Write one file, and read it again and again."""
        rates = []
        with temporary_file(folder) as (descriptor, _path):
            written, _ = fill(descriptor, size, deadline)
            for _ in range(self.samples + 1):
                if written < size or time.monotonic() > deadline:
                    return failed(f"{folder} is too slow for its time limit.", SLOW)
                rate, right = _read(descriptor, size)
                if not right:
                    fix = "Don't store anything there, and tell the operators."
                    return failed(f"{folder} gives back other bytes than were written.", fix)
                rates.append(rate)
        return rates


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
