"""Read files that other processes may have written, such as those of a run folder.

A named pipe in place of a file would block a reader for ever, and a file can have any length.
``gipfel_extension.telemetry.files`` has the same functions for programs that run without this package.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from .model import GipfelError


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file.

    Raises
    ------
    OSError
        It can't be opened, is a pipe, a device, a directory or a link, or is longer than `max_bytes`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > max_bytes else file.read(max_bytes + 1)
    if max(size, len(content)) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes", str(path))
    return content


def read_tail(path: Path, max_bytes: int) -> bytes:
    """Return the last bytes of a file, at most `max_bytes`.

    Raises
    ------
    OSError
        It can't be opened, or is a pipe, a device, a directory or a link.
    """
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
        return file.read(max_bytes)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading.

    Raises
    ------
    OSError
        It can't be opened, or is a pipe, a device, a directory or a link.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(path, flags)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_secret(path: Path, max_bytes: int = 64 << 10) -> bytes:
    """Return the content of a file with a secret, which its owner alone may read (0600).

    Raises
    ------
    GipfelError
        It can't be read, is larger than `max_bytes`, or other users may read it.
    """
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(max_bytes + 1)
    except OSError as error:
        fix = f"Write the secret into this file, then: chmod 600 {path}"
        raise GipfelError(f"The secret {path} can't be read: {error.strerror or error}.", fix) from error
    if stat.S_IMODE(mode) & 0o077:
        raise GipfelError(f"Other users may read the secret {path}.", f"Run: chmod 600 {path}")
    if len(content) > max_bytes:
        limit = max_bytes >> 10
        raise GipfelError(
            f"The secret {path} is larger than {limit} KiB.", "Keep only the secret in this file."
        )
    return content
