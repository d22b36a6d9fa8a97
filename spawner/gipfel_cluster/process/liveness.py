"""How long a process lives: as long as its parent, or as long as others hold locks.

`end_with_parent` and `adopt_orphans` tie processes to each other by the kernel. Processes that keep a job
from ending with its server, such as a running launch, each lock a file in the job's scratch folder:
`locked_file` and `hand_over` are for who starts one, `wait_for_holders` for the job.
"""

import ctypes
import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..namespaces import die_with_parent

#: In a job's scratch folder: each process that keeps the job locks a file there, whose name is its number.
LOCKS_FOLDER = "k"

_LOOK_S = 0.5
_PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(parent: int) -> None:
    """Let the kernel send SIGTERM to this process when its parent, of this process id, has ended."""
    die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        # It ended while this program was loaded: the kernel sends nothing any more.
        os.kill(os.getpid(), signal.SIGTERM)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends.

    A terminal's background program or a kernel in a session of its own would otherwise become a child of the
    node's init, where neither this job nor a scheduler that follows the process tree finds it.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def locked_file(folder: Path) -> tuple[Path, int]:
    """Create a file, locked by a descriptor for a process to inherit; `hand_over` names it.

    Returns
    -------
    tuple
        The file and the descriptor.
    """
    descriptor, name = tempfile.mkstemp(prefix="new-", dir=folder)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return Path(name), descriptor


def hand_over(path: Path, descriptor: int, pid: int) -> None:
    """Name a locked file after the process that has inherited its descriptor, and close it here."""
    path.rename(path.with_name(str(pid)))
    os.close(descriptor)


def holders(folder: Path) -> tuple[int, ...]:
    """Return the processes that keep the job now."""
    found: list[int] = []
    with suppress(OSError):
        found += [int(each.name) for each in folder.iterdir() if each.name.isdecimal() and _is_held(each)]
    return tuple(found)


def wait_for_holders(folder: Path, report: Callable[[tuple[int, ...]], None]) -> None:
    """Wait until nothing keeps the job; `report` is called at each look with the processes that do."""
    while found := holders(folder):
        report(found)
        time.sleep(_LOOK_S)


def signal_all(pids: tuple[int, ...], number: int) -> None:
    """Send a signal to each process that still exists and may be signalled."""
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
