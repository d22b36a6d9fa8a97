"""One writer at a time, also on other nodes, as far as the file system can say so."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gipfel_cluster.model import GipfelError

_LIMIT_S = 10.0
_PAUSE_S = 0.02
# Lustre mounted without flock, and some network file systems.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}


@contextmanager
def locked(path: Path, *, limit_s: float = _LIMIT_S) -> Iterator[None]:
    """Hold the lock of a file; where the file system knows no locks, go on without one.

    Raises
    ------
    GipfelError
        Somebody holds it for longer than ``limit_s`` seconds.
    OSError
        The file can't be made.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _wait(handle, path, time.monotonic() + limit_s)
        yield
    finally:
        os.close(handle)


def _wait(handle: int, path: Path, end: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise GipfelError(
                    f"{path} is locked by another process.", "Try again when the other vetting run has ended."
                ) from None
            time.sleep(_PAUSE_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return
        else:
            return
