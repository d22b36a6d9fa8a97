"""Path functions of `os`, by its part in C alone: importing the rest takes as long as making a root.

Paths here are absolute.
"""

import _stat
import posix


def is_folder(path: str) -> bool:
    """Return whether a path leads to a directory."""
    return _stat.S_ISDIR(_mode(path))


def is_file(path: str) -> bool:
    """Return whether a path leads to a plain file."""
    return _stat.S_ISREG(_mode(path))


def exists(path: str) -> bool:
    """Return whether a path leads to anything."""
    return _mode(path) != 0


def real_path(path: str) -> str:
    """Follow the symbolic links of a path; what leads to nothing stays as it is."""
    try:
        file = posix.open(path, posix.O_PATH | posix.O_CLOEXEC)
    except OSError:
        return path
    try:
        return posix.readlink(f"/proc/self/fd/{file}")
    finally:
        posix.close(file)


def make_folder(path: str) -> None:
    """Make a directory of one's own, and those above it, unless they are there.

    Raises
    ------
    OSError
        It can't be made.
    """
    try:
        posix.mkdir(path, 0o700)
    except FileNotFoundError:
        if path == folder_of(path):
            raise
        make_folder(folder_of(path))
        make_folder(path)
    except FileExistsError:
        if not is_folder(path):
            raise


def folder_of(path: str) -> str:
    """Return the path of the directory that a path is in."""
    return path.rpartition("/")[0].rstrip("/") or "/"


def name_of(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def _mode(path: str) -> int:
    try:
        return posix.stat(path).st_mode
    except (OSError, ValueError):
        return 0
