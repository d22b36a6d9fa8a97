"""Keep a job alive with locked files that its processes hold.

A process that must keep the job alive after its server has ended, such as the supervisor of a launch, locks a
file in the job's scratch folder: its starter calls `create_lock_file` and `assign_lock_file`, and the job
calls `wait_for_lock_holders` before it ends. Only the standard library is imported, since the ranks of a
training, whose image may lack other packages, do the same for the process that copies their checkpoints.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: Directory in a job's scratch folder. Each process that keeps the job alive locks a file there, named after
#: its id.
LOCKS_DIRECTORY = "k"

_POLL_S = 0.5
_RETRY_S = 0.02


def create_lock_file(folder: Path) -> tuple[Path, int]:
    """Create a locked file in `folder` for a process that is about to start; see `assign_lock_file`.

    Returns
    -------
    tuple
        The file, and the descriptor that holds the lock, which the new process must inherit.
    """
    descriptor, name = tempfile.mkstemp(prefix="new-", dir=folder)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return Path(name), descriptor


def assign_lock_file(path: Path, descriptor: int, pid: int) -> None:
    """Name a lock file after the process that has inherited its descriptor, and close the descriptor here."""
    path.rename(path.with_name(str(pid)))
    os.close(descriptor)


def lock_holders(folder: Path) -> tuple[int, ...]:
    """Return the ids of the processes that hold a lock in `folder`; none if it can't be read."""
    pids: list[int] = []
    with suppress(OSError):
        pids += [int(each.name) for each in folder.iterdir() if each.name.isdecimal() and is_locked(each)]
    return tuple(pids)


def wait_for_lock_holders(folder: Path, report: Callable[[tuple[int, ...]], None]) -> None:
    """Wait until no process keeps the job alive; call `report` with their ids every half second."""
    while pids := lock_holders(folder):
        report(pids)
        time.sleep(_POLL_S)


def lock_within(descriptor: int, limit_s: float) -> bool:
    """Lock an open file; return False if another process holds its lock for longer than `limit_s` seconds.

    On a file system without locks return True: its files count as locked.
    """
    deadline = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_RETRY_S)
        except OSError:
            return True
        else:
            return True


def is_locked(path: Path) -> bool | None:
    """Return whether a process holds the lock of a file; None without the file, or without locks there."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
