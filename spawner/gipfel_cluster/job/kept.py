"""Processes that keep a job from ending with its server: launches, as long as they run."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: In a job's scratch folder: each process that keeps the job locks a file there, whose name is its number.
FOLDER = "k"
_LOOK_S = 0.5


def locked_file(folder: Path) -> tuple[Path, int]:
    """A file of the folder, locked by the descriptor that a process inherits; to be named by `hand_over`."""
    descriptor, name = tempfile.mkstemp(prefix="new-", dir=folder)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return Path(name), descriptor


def hand_over(path: Path, descriptor: int, pid: int) -> None:
    """Name the file after the process that has inherited its descriptor, and let go of it here."""
    path.rename(path.with_name(str(pid)))
    os.close(descriptor)


def holders(folder: Path) -> tuple[int, ...]:
    """The processes that keep the job now."""
    found: list[int] = []
    with suppress(OSError):
        found += [int(each.name) for each in folder.iterdir() if each.name.isdecimal() and _is_held(each)]
    return tuple(found)


def wait_for_holders(folder: Path, tell: Callable[[tuple[int, ...]], None]) -> None:
    """Wait until nothing keeps the job; `tell` is called at each look with those that do."""
    while found := holders(folder):
        tell(found)
        time.sleep(_LOOK_S)


def signal_all(pids: tuple[int, ...], number: int) -> None:
    """Send a signal to each."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
