"""How fast a node writes to storage, until it is really there."""

from pathlib import Path
from typing import ClassVar

from ..model import Finding
from ..quantities import shown
from .files import fill, temporary_file
from .gpus import failed
from .storage import SLOW, StorageCheck


class StorageWrite(StorageCheck):
    """Bytes per second with fsync, as a checkpoint needs them; each sample is a file of its own."""

    type: ClassVar[str] = "storage_write"
    verb: ClassVar[str] = "takes"

    def measure(self, folder: Path, size: int, deadline: float) -> list[float] | Finding:
        """Write file after file."""
        rates = []
        for _ in range(self.samples + 1):
            with temporary_file(folder) as (descriptor, _path):
                written, seconds = fill(descriptor, size, deadline)
            if written < size:
                return failed(f"{folder} took {shown(written, 'B')} only until the time limit.", SLOW)
            rates.append(written / seconds)
        return rates
