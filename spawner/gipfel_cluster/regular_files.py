"""Read files that other processes may have written, such as all files of a run folder.

A named pipe would block its reader forever, a device or a symbolic link would redirect it, and a sparse file
of any length costs its writer nothing. The functions here refuse pipes, devices and links, and read no more
than their caller's limit. Neither this module nor `messages` imports pydantic: recorders run without it.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from .messages import GipfelError, one_line

_LAST_LINE_BYTES = 64 << 10
_OPEN = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_regular(path: Path, max_bytes: int, *, follow: bool = False) -> bytes:
    """Return the content of a file.

    Raises
    ------
    OSError
        As :func:`open_regular`, or the file is larger than `max_bytes`.
    """
    with open_regular(path, follow=follow) as file:
        # Check the size before reading: a sparse file may have any length.
        content = b"" if os.fstat(file.fileno()).st_size > max_bytes else file.read(max_bytes + 1)
        if len(content) > max_bytes or os.fstat(file.fileno()).st_size > max_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {_size(max_bytes)}", str(path))
    return content


def read_tail(path: Path, max_bytes: int, *, follow: bool = False) -> bytes:
    """Return the last `max_bytes` bytes of a file.

    Raises
    ------
    OSError
        As :func:`open_regular`.
    """
    with open_regular(path, follow=follow) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
        return file.read(max_bytes)


def read_tail_lines(path: Path, max_bytes: int) -> list[str]:
    """Return the lines in the last `max_bytes` bytes of a log; empty if it can't be read."""
    try:
        return read_tail(path, max_bytes).decode(errors="replace").splitlines()
    except OSError:
        return []


def last_line(log: Path) -> str:
    """Return the last non-empty line of a log; empty if the log has none or can't be read."""
    lines = read_tail_lines(log, _LAST_LINE_BYTES)
    return next((one_line(line) for line in reversed(lines) if line.strip()), "")


def modified_ns(path: Path) -> int:
    """Return when a file was last written, in ns since the epoch; 0 where it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open a file for reading; the caller closes it.

    Parameters
    ----------
    follow
        True if the path itself may be a symbolic link, such as a path that the user typed.

    Raises
    ------
    OSError
        The file cannot be opened, or is a pipe, a device, a directory or a symbolic link.
    """
    try:
        handle = os.open(path, os.O_RDONLY | _OPEN | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP and not follow and Path(path).is_symlink():
            # The system's text is "Too many levels of symbolic links".
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from error
        raise
    _check_regular(handle, path)
    return os.fdopen(handle, "rb")


def open_log(path: Path, *, truncate: bool = False) -> int:
    """Return a file descriptor that appends to a log; create the log with mode 0600 if it is missing.

    Raises
    ------
    OSError
        As :func:`open_regular`.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | _OPEN
    handle = os.open(path, flags, 0o600)
    _check_regular(handle, path)
    # Child processes that inherit the descriptor expect blocking writes.
    os.set_blocking(handle, True)
    if truncate:
        os.ftruncate(handle, 0)
    return handle


def read_secret(path: Path, max_bytes: int = 64 << 10) -> bytes:
    """Return the content of a file with a secret, which only its owner may access (0600).

    Raises
    ------
    GipfelError
        It can't be read, is larger than `max_bytes`, or other users own it or may access it.
    """
    try:
        with open_regular(path) as file:
            about = os.fstat(file.fileno())
            content = file.read(max_bytes + 1)
    except OSError as error:
        fix = f"Write the secret into this file, then: chmod 600 {path}"
        raise GipfelError(f"The secret {path} can't be read: {error.strerror or error}.", fix) from error
    if about.st_uid != os.geteuid():
        raise GipfelError(f"The secret {path} belongs to another user.", "Write a file of your own.")
    mode = stat.S_IMODE(about.st_mode)
    if mode & 0o077:
        problem = f"Other users may read the secret {path} or change it (mode {mode:04o})."
        raise GipfelError(problem, f"Run: chmod 600 {path}")
    if len(content) > max_bytes:
        limit = max_bytes >> 10
        raise GipfelError(
            f"The secret {path} is larger than {limit} KiB.", "Keep only the secret in this file."
        )
    return content


def _check_regular(handle: int, path: Path) -> None:
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def _size(count: int) -> str:
    units = (("GiB", 30), ("MiB", 20), ("KiB", 10))
    fitting = (f"{count / (1 << bits):g} {unit}" for unit, bits in units if count >= 1 << bits)
    return next(fitting, f"{count} bytes")
