"""One run at a time for an output, and what killed ones have left beside it taken away."""

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from gipfel_cluster.model import GipfelError

# A run that was told to end may still be saving.
_PATIENCE_S = 5.0
_LOOK_S = 0.2
_HELD = frozenset({errno.EWOULDBLOCK, errno.EACCES})


@contextlib.contextmanager
def claimed(output: Path) -> Iterator[None]:
    """Keep other runs from writing to an output, as long as this process lives at the longest.

    A file system without locks, or a folder that can't be written to, keeps nobody away.

    Raises
    ------
    GipfelError
        Another run writes there.
    """
    target = output.resolve()
    path = target.with_name(f".{target.name}.lock")
    handle = _taken(path)
    if handle is None:
        yield
        return
    try:
        _clear(target)
        yield
    finally:
        # Before it is let go: whoever waits sees that the file that was locked is gone.
        path.unlink(missing_ok=True)
        os.close(handle)


def _taken(path: Path) -> int | None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, handle):
                return handle
            os.close(handle)
        except OSError as error:
            os.close(handle)
            if error.errno not in _HELD:
                return None
            if time.monotonic() > deadline:
                raise GipfelError(
                    "Another run writes to this output.", "End it first, or give another path."
                ) from None
            time.sleep(_LOOK_S)


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except OSError:
        return False


def _clear(target: Path) -> None:
    """Take away what runs that were killed while they saved have left; nobody else saves now."""
    own = re.compile(rf"\.{re.escape(target.name)}\.(?!progress$)(?:[a-z0-9_]{{8}}|progress\.\d+)")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if own.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    Path(entry.path).unlink()
