"""Whether a launch's supervisor lives: as long as it does, it holds a lock on a file of the folder.

A process's number says nothing in another container or on another node; a lock does, where the file system
has locks.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gipfel_cluster.at_once import at_once
from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler import Scheduler
from gipfel_cluster.steps.here import last_line

from .state import LaunchState, read_state, write_state

LOCK = "supervisor.lock"
#: A supervisor writes more often than that; two nodes may not see each other's locks.
_QUIET_NS = 30 * 10**9
_PATIENCE_S = 10.0
_LOST = "Its supervisor is gone without a word: it was killed, its node was lost, or its disk was full."


@contextmanager
def supervising(folder: Path) -> Iterator[None]:
    """Hold the lock of a launch for as long as the block runs.

    Raises
    ------
    GipfelError
        Somebody else supervises it.
    """
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield
        return
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not _locked(lock):
            # Whoever settles a state holds it for a moment.
            if time.monotonic() > deadline:
                raise GipfelError(
                    f"The launch in {folder} is supervised already.", "See `gipfel launch list`."
                )
            time.sleep(0.1)
        yield
    finally:
        os.close(lock)


def supervised(folder: Path) -> bool | None:
    """Whether somebody supervises a launch; None where nobody ever did, or there are no locks."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(lock)
    return False


def settled_state(folder: Path) -> LaunchState:
    """The state of a launch, which has ended where its supervisor was killed; the folder is told so.

    Raises
    ------
    GipfelError
        There is none, or it can't be read.
    """
    state = read_state(folder)
    quiet = time.time_ns() - state.updated_ns > _QUIET_NS
    if state.phase not in {"running", "vetting"} or not quiet or supervised(folder) is not False:
        return state
    return _ended(folder, state, _LOST)


def settled_in_queue(folder: Path, state: LaunchState, scheduler: Scheduler | None) -> LaunchState:
    """The same of one that waits: what was to supervise it may have ended before it began.

    Parameters
    ----------
    scheduler
        That of its own job; None where it was to run in a job that was there.
    """
    if state.phase != "queued" or time.time_ns() - state.updated_ns < _QUIET_NS:
        return state
    if scheduler is None:
        if supervised(folder):
            return state
        why = last_line(folder / "supervisor.log") or "its supervisor did not start"
        return _ended(folder, state, f"It never began: {why}")
    if not state.job_id:
        return state
    status = at_once(scheduler.query([state.job_id])).get(state.job_id)
    if status is None or status.answer != "ended":
        return state
    why = status.reason or last_line(folder / "job.log") or status.state
    return _ended(folder, state, f"Its job {state.job_id} ended before it began: {why}")


def _ended(folder: Path, state: LaunchState, reason: str) -> LaunchState:
    ended = {"phase": "ended", "outcome": "lost", "exit_status": 1, "reason": reason, "gpus": {}}
    settled = state.model_copy(update={**ended, "ended_ns": state.updated_ns})
    # Somebody else's folder, or a full disk: whoever reads is told all the same.
    with contextlib.suppress(OSError, GipfelError), supervising(folder):
        now = read_state(folder)
        if now != state:
            return now
        return write_state(folder, settled)
    return settled


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
