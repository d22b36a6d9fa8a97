"""No process outlives its job, whatever it was started by."""

import ctypes
import os
from collections.abc import Callable

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 5.0


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends.

    A terminal's background program or a kernel in a session of its own would otherwise become a child of the
    node's init, where neither this job nor a scheduler that follows the process tree finds it.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(keep: frozenset[int] = frozenset()) -> None:
    """End every process below this one but those of `keep`: by SIGTERM, after 5 s by SIGKILL."""
    left = [each for each in psutil.Process(os.getpid()).children(recursive=True) if each.pid not in keep]
    for each in left:
        _quietly(each.terminate)
    _, left = psutil.wait_procs(left, timeout=_GRACE_S)
    for each in left:
        _quietly(each.kill)
    psutil.wait_procs(left, timeout=_GRACE_S)


def _quietly(act: Callable[[], None]) -> None:
    try:
        act()
    except psutil.NoSuchProcess:
        return
