"""Detection of a checkpoint that won't fit: an event in the run folder before or when writing it fails."""

import errno
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gipfel_extension.telemetry.events import report_to_job

_GIB = 1 << 30
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
#: Bytes that are written to learn whether a quota is used up.
_PROBE_BYTES = 1 << 20
_MAX_CAUSES = 10


class SpaceWatch:
    """Compares the free space of a directory with the size of its last checkpoint.

    The next one is written before an older one is deleted, so it needs as much again. A quota that the file
    system does not report as its size is only noticed when a checkpoint could not be written.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = environment
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

    def check_failure(self, error: BaseException) -> None:
        """Report once, until it fits again, that a checkpoint was not written if the space is used up."""
        if self._reported or not (_has_full_error(error) or self._is_full()):
            return
        self._reported = True
        self._report(
            f"{self._directory} or your quota there is full, so a checkpoint was not written. "
            "Delete files there, or keep fewer checkpoints."
        )

    def _is_full(self) -> bool:
        """Return whether a small file can't be written: errors of PyTorch often have no number."""
        try:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                file.write(os.urandom(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return error.errno in _FULL
        return False

    def _report(self, message: str) -> None:
        sys.stderr.write(f"gipfel: {message}\n")
        report_to_job(self._environment, "checkpoint_space", message, "checkpoints")


def _has_full_error(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes says that a disk or quota is full."""
    for _ in range(_MAX_CAUSES):
        if error is None:
            return False
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__ or error.__context__
    return False
