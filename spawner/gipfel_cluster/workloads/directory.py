"""The directory of a workload: its files, its state, and whether its supervisor lives.

====================  ==========================================================================
``spec.json``         what was requested; enough to start the same again
``command.txt``       the exact command
``state.json``        a `WorkloadState` or a kind's subclass, written by the supervisor alone
``exit.json``         how it ended
``*.log``             its output
``supervisor.lock``   locked by the supervisor for as long as it lives
``stop``              created by whoever wants it to end
====================  ==========================================================================

A process's number says nothing in another container or on another node; a lock does, on file systems with
locks.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ValidationError

from ..model import Frozen, GipfelError, one_line
from ..process.tree import Process
from ..regular_files import read_regular, read_tail
from ..runs import write_atomically

if TYPE_CHECKING:
    from ..scheduler import Scheduler

Phase = Literal["preflight", "vetting", "queued", "running", "ended"]
Outcome = Literal["", "completed", "failed", "stopped", "timeout", "preempted", "lost"]
STATE, EXIT, SPEC, COMMAND, STOP = "state.json", "exit.json", "spec.json", "command.txt", "stop"
LOCK = "supervisor.lock"
#: Largest size of these files; logs are read in pages.
MOST_BYTES = 16 << 20

#: A supervisor writes its state more often; two nodes may not see each other's locks.
_QUIET_NS = 30 * 10**9
_PATIENCE_S = 10.0
_LAST_LINE_BYTES = 64 << 10
_LOST = "Its supervisor ended unexpectedly: it was killed, its node was lost, or its disk was full."


class WorkloadState(Frozen, extra="ignore"):
    """A workload at one moment; times are UTC in nanoseconds.

    ``job_id`` is its own job or the one that it runs in; ``run`` the run directory with its samples;
    ``reason`` why it is in this phase, for people.
    """

    phase: Phase
    name: str = ""
    title: str = ""
    outcome: Outcome = ""
    reason: str = ""
    nodes: tuple[str, ...] = ()
    job_id: str = ""
    scheduler: str = ""
    run: str = ""
    supervisor: Process | None = None
    created_ns: int = 0
    started_ns: int | None = None
    ended_ns: int | None = None
    updated_ns: int = 0
    exit_status: int | None = None

    @property
    def ended(self) -> bool:
        """Return whether it has ended."""
        return self.phase == "ended"

    def exit_document(self) -> dict[str, Any]:
        """Return the content of ``exit.json``."""
        names = ("exit_status", "outcome", "reason", "ended_ns")
        return {name: getattr(self, name) for name in names}


State = TypeVar("State", bound=WorkloadState)


def read_state(folder: Path, model: type[State], what: str = "workload") -> State:
    """Return the state of a workload.

    Raises
    ------
    GipfelError
        There is none, or it can't be read.
    """
    try:
        return model.model_validate_json(read_regular(folder / STATE, MOST_BYTES))
    except FileNotFoundError:
        raise GipfelError(f"There is no {what} in {folder}.", "See `gipfel ps --all`.") from None
    except OSError as error:
        raise GipfelError(f"The state of the {what} in {folder} can't be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        why = one_line(f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip())[:200]
        raise GipfelError(
            f"The state of the {what} in {folder} can't be read: {why}.",
            "Use the version of Gipfel that wrote it, or remove the directory.",
        ) from error


def write_state(folder: Path, state: State) -> State:
    """Write the state with the current time, and ``exit.json`` at its end; return it as written."""
    state = state.model_copy(update={"updated_ns": time.time_ns()})
    write_atomically(folder / STATE, state.model_dump_json(indent=1) + "\n")
    if state.ended:
        write_atomically(folder / EXIT, json.dumps(state.exit_document(), indent=1) + "\n")
    return state


@contextlib.contextmanager
def hold_supervisor_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a workload for as long as the block runs.

    Raises
    ------
    GipfelError
        Another process supervises it.
    """
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield
        return
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not _locked(lock):
            # A process that settles a state holds it for a moment.
            if time.monotonic() > deadline:
                raise GipfelError(f"The workload in {folder} is supervised already.", "See `gipfel ps`.")
            time.sleep(0.1)
        yield
    finally:
        os.close(lock)


def is_supervised(folder: Path) -> bool | None:
    """Return whether a supervisor holds the lock; None if there never was one, or there are no locks."""
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


def settled_state(folder: Path, state: State) -> State:
    """Return the state of a workload; write that it has ended if its supervisor was killed."""
    quiet = time.time_ns() - state.updated_ns > _QUIET_NS
    if state.phase not in {"running", "vetting"} or not quiet or is_supervised(folder) is not False:
        return state
    return _lost(folder, state, _LOST)


def settled_in_queue(folder: Path, state: State, scheduler: "Scheduler | None") -> State:
    """Return the state of a queued workload; write that it has ended if its supervisor never started.

    Parameters
    ----------
    scheduler
        That of its own job; None if it was to run in a job that was there.
    """
    if state.phase != "queued" or time.time_ns() - state.updated_ns < _QUIET_NS:
        return state
    if scheduler is None:
        if is_supervised(folder):
            return state
        why = last_line(folder / "supervisor.log") or "its supervisor did not start"
        return _lost(folder, state, f"It never started: {why}")
    if not state.job_id:
        return state
    from ..scheduler.command import run_sync  # noqa: PLC0415 - asyncio, which readers of a state can do without

    status = run_sync(scheduler.query([state.job_id])).get(state.job_id)
    if status is None or status.answer != "ended":
        return state
    why = status.reason or last_line(folder / "job.log") or status.state
    return _lost(folder, state, f"Its job {state.job_id} ended before it started: {why}")


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty; empty if it can't be read."""
    try:
        lines = read_tail(log, _LAST_LINE_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((one_line(line) for line in reversed(lines) if line.strip()), "")


def _lost(folder: Path, state: State, reason: str) -> State:
    ended = {"phase": "ended", "outcome": "lost", "exit_status": 1, "reason": reason}
    if "gpus" in type(state).model_fields:
        ended["gpus"] = {}
    settled = state.model_copy(update={**ended, "ended_ns": state.updated_ns})
    # In another user's directory, or on a full disk, the reader is told all the same.
    with contextlib.suppress(OSError, GipfelError), hold_supervisor_lock(folder):
        now = read_state(folder, type(state))
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
