"""A private folder on the node's local disk, with a path that is short enough for sockets."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "gipfel-"
_LOCK = "lock"
_SETTLED_S = 60.0

# A socket's path may have 107 characters: TMPDIR is often too long, and on a remote file system.
_ROOT = Path("/tmp")  # noqa: S108 - mkdtemp makes a folder that its owner alone can enter


@dataclass(frozen=True)
class ScratchFolder:
    """A folder for its owner alone (0700), which a process holds by a lock for as long as it lives.

    A process that is killed removes nothing: the next one of the same user removes what nobody holds.
    """

    path: Path
    _lock: int

    @classmethod
    def create(cls, root: Path = _ROOT) -> "ScratchFolder":
        """Make a folder, and remove what killed processes of this user left."""
        for abandoned in root.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove_if_abandoned(abandoned)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cls(path, lock)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_if_abandoned(path: Path) -> None:
    about = path.lstat()
    # A folder is not locked yet in the moment after it was made.
    fresh = time.time() - about.st_mtime < _SETTLED_S
    if fresh or not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        return
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
