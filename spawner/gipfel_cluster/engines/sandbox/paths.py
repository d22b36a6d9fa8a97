"""Path functions like those in `os`, from `posix` only: importing `os` takes as long as creating a container.

All paths are absolute.
"""

import _stat
import posix


def is_directory(path: str) -> bool:
    """Return whether a path is a directory or a link to one."""
    return _stat.S_ISDIR(_mode(path))


def is_file(path: str) -> bool:
    """Return whether a path is a regular file or a link to one."""
    return _stat.S_ISREG(_mode(path))


def exists(path: str) -> bool:
    """Return whether a path exists."""
    return _mode(path) != 0


def real_path(path: str) -> str:
    """Return a path without symbolic links; unchanged if it does not exist."""
    try:
        file = posix.open(path, posix.O_PATH | posix.O_CLOEXEC)
    except OSError:
        return path
    try:
        return posix.readlink(f"/proc/self/fd/{file}")
    finally:
        posix.close(file)


def make_directory(path: str) -> None:
    """Create a directory with mode 0700 and its parents, unless they exist.

    Raises
    ------
    OSError
        It can't be created.
    """
    try:
        posix.mkdir(path, 0o700)
    except FileNotFoundError:
        if path == parent_of(path):
            raise
        make_directory(parent_of(path))
        make_directory(path)
    except FileExistsError:
        if not is_directory(path):
            raise


def parent_of(path: str) -> str:
    """Return the parent directory of a path."""
    return path.rpartition("/")[0].rstrip("/") or "/"


def name_of(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def _mode(path: str) -> int:
    try:
        return posix.stat(path).st_mode
    except (OSError, ValueError):
        return 0
