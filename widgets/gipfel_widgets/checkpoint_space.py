"""Detection of a checkpoint that won't fit: an event in the run folder before it is written."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from gipfel_extension.telemetry.events import Event, append_event

_GIB = 1 << 30


class SpaceWatch:
    """Compares the free space of a directory with the size of its last checkpoint.

    The next one is written before an older one is deleted, so it needs as much again. Quotas that the file
    system does not report as its size are not seen.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._run = environment.get("GIPFEL_RUN", "")
        self._node = environment.get("GIPFEL_NODE") or os.uname().nodename.partition(".")[0]
        self._reported = False

    def check(self, checkpoint: Path) -> bool:
        """Report once, until it fits again, that another checkpoint like this won't fit.

        Returns
        -------
        bool
            Whether it fits; True if that is unknown.
        """
        try:
            needed = sum(each.stat().st_size for each in checkpoint.iterdir())
            about = os.statvfs(self._directory)
        except OSError:
            return True
        free = about.f_bavail * about.f_frsize
        fits = free >= needed
        if not fits and not self._reported:
            self._report(
                f"{self._directory} has {free / _GIB:.1f} GiB free, and a checkpoint needs "
                f"{needed / _GIB:.1f} GiB. Delete old ones, or keep fewer."
            )
        self._reported = not fits
        return fits

    def _report(self, message: str) -> None:
        sys.stderr.write(f"gipfel: {message}\n")
        if self._run:
            event = Event(time.time_ns(), self._node, "checkpoint_space", "", message)
            append_event(Path(self._run) / "telemetry", event, "checkpoints")
