"""No process outlives its job, whatever it was started by."""

import ctypes
import os
import signal
import time

from ..scheduler.processes import Process, descendants

_PR_SET_CHILD_SUBREAPER = 36
#: Seconds that this part of a job's end may take; see `scheduler.keeper.GRACE_SECONDS`.
GRACE_S = 5.0
_STEP_S = 0.05


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends.

    A terminal's background program or a kernel in a session of its own would otherwise become a child of the
    node's init, where neither this job nor a scheduler that follows the process tree finds it.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(keep: frozenset[int] = frozenset()) -> None:
    """End every process below this one but those of `keep`: by SIGTERM, after 5 s by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_S
        told: set[Process] = set()
        while (left := _left(keep)) and time.monotonic() < deadline:
            for each in left - told:
                each.signal(number)
            told |= left
            time.sleep(_STEP_S)


def _left(keep: frozenset[int]) -> set[Process]:
    found = (Process.of(pid) for pid in descendants(os.getpid()) if pid not in keep)
    return {process for process in found if process is not None}
