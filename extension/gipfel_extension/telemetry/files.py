"""Files of a run folder as anybody may have left them: a pipe would keep a reader waiting for ever."""

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

_MOST_BYTES = 1 << 30
_MOST_RECORD_BYTES = 16 << 20


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a file for reading; the caller closes it.

    Parameters
    ----------
    follow
        Whether the path itself may be a link.

    Raises
    ------
    OSError
        It can't be opened, or is a pipe, a device or a folder.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    handle = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(handle, "rb")


def read_regular(path: Path, most_bytes: int = _MOST_BYTES) -> bytes:
    """The content of a file.

    Raises
    ------
    OSError
        As :func:`open_regular`, or it is longer.
    """
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def read_record_file(run: Path) -> dict[str, Any]:
    """A run's ``record.json``; empty where there is none, or none that can be read."""
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(read_regular(run / "record.json", _MOST_RECORD_BYTES))
        if isinstance(content, dict):
            return content
    return {}
