"""Open files that other processes may have written, such as all files of a run folder.

A pipe under a file's name would keep a reader waiting for ever, a device or a link would lead it elsewhere,
and a sparse file of any length costs its writer nothing: each function here refuses the first three at once,
and reads no more than its caller names.
"""

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

MOST_RECORD_BYTES = 16 << 20
_OPEN = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_regular(path: Path, *, follow: bool = False) -> BinaryIO:
    """Open a file for reading; the caller closes it.

    Parameters
    ----------
    follow
        Whether the path itself may be a link, as one that the user has typed may.

    Raises
    ------
    OSError
        It can't be opened, or is a pipe, a device, a directory or a link.
    """
    handle = os.open(path, os.O_RDONLY | _OPEN | (0 if follow else os.O_NOFOLLOW))
    _check_regular(handle, path)
    return os.fdopen(handle, "rb")


def open_log(path: Path, *, truncate: bool = False) -> int:
    """Return a descriptor that appends to a log, made for its owner alone where it is missing.

    Raises
    ------
    OSError
        As :func:`open_regular`.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | _OPEN
    handle = os.open(path, flags, 0o600)
    _check_regular(handle, path)
    # Children that write to it inherit the flag.
    os.set_blocking(handle, True)
    if truncate:
        os.ftruncate(handle, 0)
    return handle


def read_regular(path: Path, most_bytes: int, *, follow: bool = False) -> bytes:
    """Return the content of a file.

    Raises
    ------
    OSError
        As :func:`open_regular`, or it is longer than `most_bytes`.
    """
    with open_regular(path, follow=follow) as file:
        # Looked at before anything is read: a sparse file has any length at no cost.
        content = b"" if os.fstat(file.fileno()).st_size > most_bytes else file.read(most_bytes + 1)
        if len(content) > most_bytes or os.fstat(file.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {_size(most_bytes)}", str(path))
    return content


def read_tail(path: Path, most_bytes: int, *, follow: bool = False) -> bytes:
    """Return the last bytes of a file, at most so many.

    Raises
    ------
    OSError
        As :func:`open_regular`.
    """
    with open_regular(path, follow=follow) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes)


def read_json(path: Path, most_bytes: int, *, follow: bool = False) -> Any:
    """Return the value of a JSON file.

    Raises
    ------
    OSError
        As :func:`read_regular`.
    ValueError
        It is not JSON, or nested too deeply.
    """
    content = read_regular(path, most_bytes, follow=follow)
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_record_file(run: Path) -> dict[str, Any]:
    """Return a run's ``record.json``; empty where there is none, or none that can be read."""
    with suppress(OSError, ValueError):
        content = read_json(run / "record.json", MOST_RECORD_BYTES)
        if isinstance(content, dict):
            return content
    return {}


def _check_regular(handle: int, path: Path) -> None:
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def _size(count: int) -> str:
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << bits:
            return f"{count / (1 << bits):g} {unit}"
    return f"{count} bytes"
