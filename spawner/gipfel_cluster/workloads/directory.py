"""The directory of a workload: its path, its files, its state, and whether its supervisor runs.

====================  ==========================================================================
``spec.json``         the request; sufficient to start the same workload again
``command.txt``       the exact command
``state.json``        a `WorkloadState` or a kind's subclass, written by the supervisor alone
``exit.json``         exit status, outcome and reason
``*.log``             output
``supervisor.lock``   locked by the supervisor while it runs
``stop``              created by any process to stop the workload
====================  ==========================================================================

Unlike a process id, the lock shows in other containers and on other nodes, too, whether the supervisor runs,
if the file system supports locks.

The directory is ``<run>/<kind>/<n>``, or ``$GIPFEL_RUNS/<kind>/<n>`` outside of jobs. A ``kind`` argument is
the name of the parent directory, such as ``launches``.
"""

import contextlib
import importlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ValidationError

from ..model import Frozen, GipfelError, ReportOSError, first_problem, one_line
from ..process.fork import ForkedProgram, can_fork
from ..process.locks import is_locked, lock_within
from ..process.tree import Process
from ..regular_files import last_line, modified_ns, open_log, read_regular
from ..runs import make_private, runs_root, write_atomically

if TYPE_CHECKING:
    from ..scheduler import Scheduler


Phase = Literal["preflight", "vetting", "queued", "running", "ended"]
Outcome = Literal["", "completed", "failed", "stopped", "timeout", "preempted", "lost"]
STATE, EXIT, SPEC, COMMAND, STOP = "state.json", "exit.json", "spec.json", "command.txt", "stop"
LOCK = "supervisor.lock"
#: Largest size of these files except logs, which are read in pages.
MAX_BYTES = 16 << 20

#: A running supervisor writes its state more often than this. A lock alone is not enough, because some file
#: systems do not show locks of other nodes.
_STALE_NS = 30 * 10**9
_LOCK_TIMEOUT_S = 10.0
_LOST = "Its supervisor ended unexpectedly: it was killed, its node was lost, or its disk was full."


class WorkloadState(Frozen, extra="ignore"):
    """The state of a workload; times are UTC in nanoseconds.

    ``name`` is what the user called it, ``title`` what it runs; ``outcome`` is empty before the end;
    ``reason`` explains phase or outcome in one sentence; ``job_id`` is the job that it submitted or runs in,
    and ``scheduler`` that job's; ``run`` is the run folder with its samples; ``updated_ns`` is when the state
    was last written.
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
    progress: float | None = None
    """Share of the work that is done, 0 to 1; None where it is unknown."""

    @property
    def ended(self) -> bool:
        """Return whether the workload has ended."""
        return self.phase == "ended"

    def exit_document(self) -> dict[str, Any]:
        """Return the content of ``exit.json``."""
        names = ("exit_status", "outcome", "reason", "ended_ns")
        return {name: getattr(self, name) for name in names}


State = TypeVar("State", bound=WorkloadState)


def read_state(folder: Path, model: type[State], kind: str = "workload") -> State:
    """Return the state of a workload; ``kind`` is the noun for it in messages.

    Raises
    ------
    GipfelError
        The directory has no state, or it can't be read.
    """
    try:
        return model.model_validate_json(read_regular(folder / STATE, MAX_BYTES))
    except FileNotFoundError:
        raise GipfelError(f"There is no {kind} in {folder}.", "See `gipfel ps --all`.") from None
    except OSError as error:
        raise GipfelError(f"The state of the {kind} in {folder} can't be read: {error.strerror}.") from error
    except ValidationError as error:
        reason = one_line(" ".join(first_problem(error)))[:200]
        raise GipfelError(
            f"The state of the {kind} in {folder} can't be read: {reason}.",
            "Use the version of Gipfel that wrote it, or remove the directory.",
        ) from error


def write_state(folder: Path, state: State) -> State:
    """Write the state with the current time, and ``exit.json`` if it has ended; return the written state."""
    state = state.model_copy(update={"updated_ns": time.time_ns()})
    write_atomically(folder / STATE, state.model_dump_json(indent=1) + "\n")
    if state.ended:
        write_atomically(folder / EXIT, json.dumps(state.exit_document(), indent=1) + "\n")
    return state


@contextlib.contextmanager
def hold_supervisor_lock(folder: Path) -> Iterator[None]:
    """Hold the supervisor's lock of a workload during the block; do without if it can't be created.

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
        # A process that corrects the state of a lost workload holds the lock for a moment.
        if not lock_within(lock, _LOCK_TIMEOUT_S):
            raise GipfelError(
                f"Another process supervises the workload in {folder} already.", "See `gipfel ps`."
            )
        yield
    finally:
        os.close(lock)


def is_supervised(folder: Path) -> bool | None:
    """Return whether a supervisor holds the lock; None if none ever did, or locks are not supported."""
    return is_locked(folder / LOCK)


def refresh_state(folder: Path, state: State) -> State:
    """Return the state of a workload; if its supervisor was killed, write and return the outcome ``lost``."""
    is_stale = time.time_ns() - state.updated_ns > _STALE_NS
    if state.phase not in {"running", "vetting"} or not is_stale or is_supervised(folder) is not False:
        return state
    return _write_lost(folder, state, _LOST)


def refresh_queued_state(folder: Path, state: State, scheduler: "Scheduler | None") -> State:
    """Return the state of a queued workload; if it can't start any more, write and return ``lost``.

    Parameters
    ----------
    scheduler
        Scheduler of the workload's own job; None if it runs in an existing job.
    """
    if state.phase != "queued" or time.time_ns() - state.updated_ns < _STALE_NS:
        return state
    if scheduler is None:
        if is_supervised(folder):
            return state
        reason = last_line(folder / "supervisor.log") or "its supervisor did not start"
        return _write_lost(folder, state, f"It never started: {reason}")
    if not state.job_id:
        return state
    from ..scheduler.machine import run_sync  # noqa: PLC0415 - asyncio is slow to import and rarely needed here

    status = run_sync(scheduler.query([state.job_id])).get(state.job_id)
    if status is None or status.answer != "ended":
        return state
    reason = status.reason or last_line(folder / "job.log") or status.state
    return _write_lost(folder, state, f"Its job {state.job_id} ended before it started: {reason}")


def _write_lost(folder: Path, state: State, reason: str) -> State:
    changes = {"phase": "ended", "outcome": "lost", "exit_status": 1, "reason": reason}
    if "gpus" in type(state).model_fields:
        changes["gpus"] = {}
    ended = state.model_copy(update={**changes, "ended_ns": state.updated_ns})
    # Return it even if it can't be written: in another user's directory, or on a full disk.
    with contextlib.suppress(OSError, GipfelError), hold_supervisor_lock(folder):
        current = read_state(folder, type(state))
        return current if current != state else write_state(folder, ended)
    return ended


_MAX_NUMBER = 100_000


def parent_directory(kind: str, environment: Mapping[str, str]) -> Path:
    """Return the parent of a kind's directories: in this job's run folder, else in ``$GIPFEL_RUNS``."""
    run = environment.get("GIPFEL_RUN")
    return (Path(run) if run else runs_root(dict(environment))) / kind


def new_directory(parent: Path) -> Path:
    """Create the directory of the next workload, accessible to its owner alone.

    Raises
    ------
    GipfelError
        It can't be created.
    """
    with ReportOSError(
        f"A directory can't be created in {parent}",
        "Free space there, or set GIPFEL_RUNS to another directory.",
    ):
        make_private(parent)
        for number in range(max(_numbers(parent), default=0) + 1, _MAX_NUMBER):
            with contextlib.suppress(FileExistsError):
                (parent / str(number)).mkdir(mode=0o700)
                return parent / str(number)
    raise GipfelError(f"There are {_MAX_NUMBER} directories in {parent}.", "Remove old ones.")


def known_directories(
    kind: str, environment: Mapping[str, str], *, all_runs: bool = False
) -> tuple[Path, ...]:
    """Return the directories of a kind's workloads, the newest last.

    Parameters
    ----------
    all_runs
        Include all runs, not only `parent_directory`.
    """
    parents = [parent_directory(kind, environment)]
    if all_runs:
        root = runs_root(dict(environment))
        parents += [root / kind, *root.glob(f"*/{kind}")]
    modified: dict[Path, int] = {}
    for parent in parents:
        for number in _numbers(parent):
            folder = parent / str(number)
            # Only whether the state exists: readers report why it can't be read, for example if it is a pipe.
            with contextlib.suppress(OSError, RuntimeError):
                (folder / STATE).lstat()
                modified[folder.resolve()] = modified_ns(folder / SPEC)
    return tuple(sorted(modified, key=lambda each: (modified[each], int(each.name))))


def find_directory(kind: str, name: str, environment: Mapping[str, str]) -> Path | None:
    """Return a workload's directory by its ID (``N`` or ``RUN/N``) or path; None if there is none."""
    root = runs_root(dict(environment))
    run, _, number = name.rpartition("/")
    candidates = [parent_directory(kind, environment) / name, root / kind / name, Path(name)]
    if run:
        candidates.append(root / run / kind / number)
    for each in candidates:
        # A name longer than any path raises OSError.
        with contextlib.suppress(OSError):
            if name and "\0" not in name and (each / STATE).is_file():
                return each.resolve()
    return None


def workload_id(folder: Path) -> str:
    """Return the ID that `find_directory` accepts: ``RUN/N``, or ``N`` for a workload outside of runs."""
    run = folder.parents[1]
    return f"{run.name}/{folder.name}" if (run / "telemetry").is_dir() else folder.name


def _numbers(parent: Path) -> list[int]:
    try:
        return sorted(int(each.name) for each in parent.iterdir() if each.name.isdecimal())
    except OSError:
        return []


def start_detached(
    argv: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    *,
    cwd: str | None = "/",
    fork: bool = False,
) -> None:
    """Start a supervisor that outlives this process, in a session of its own; its output goes to a log.

    Parameters
    ----------
    fork
        Whether it may be a fork of this process; then `argv` names a module whose ``main`` gets the rest.

    Raises
    ------
    OSError
        It can't be started, or the log can't be written.
    """
    with os.fdopen(open_log(log), "ab") as output:
        if fork and can_fork():
            ForkedProgram(argv, partial(_run_module, argv, log), environment)
            return
        subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            start_new_session=True,
        )


def _run_module(argv: Sequence[str], log: Path) -> int:
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (open_log(log), 1)):
        os.dup2(source, target)
        os.close(source)
    os.dup2(1, 2)
    return int(importlib.import_module(argv[3]).main(list(argv[4:])))
