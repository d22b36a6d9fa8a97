"""Identify processes of this machine; find, signal and end process trees.

`Process` identifies a process by its id and start time, since the kernel reuses process ids. `end_child` ends
one child, `read_output` reads what one prints; `descendants`, `kill_tree` and `end_descendants` work on a
process tree. `end_with_parent` and `adopt_orphans` ask the kernel to tie processes to each other.
"""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ..model import Frozen
from ..namespaces import die_with_parent

#: Seconds between SIGTERM and SIGKILL in `end_descendants`; part of `scheduler.supervisor.GRACE_SECONDS`.
GRACE_S = 5.0

_PROC = Path("/proc")
_STEP_S = 0.05
#: Seconds for a killed process to end.
_KILL_S = 0.5


class Process(Frozen):
    """A process; a later process with the same id differs in its start time or boot id."""

    pid: int
    start: int  # clock ticks after boot
    boot: str

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """Return the process that has this id now; None if there is none, or only a zombie."""
        fields = _stat(pid)
        if fields is None or fields[0] in {"Z", "X"}:
            return None
        return cls(pid=pid, start=int(fields[19]), boot=_boot())

    @property
    def alive(self) -> bool:
        """Return whether this process, and not a later one with its id, is running."""
        return Process.of(self.pid) == self

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def descendants(root: int) -> tuple[int, ...]:
    """Return the ids of all running descendants of a process, parents first."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdecimal() and (fields := _stat(int(folder.name))) and fields[0] not in {"Z", "X"}:
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return tuple(found)


def kill_tree(root: int) -> None:
    """Send SIGKILL to every descendant of a process, also to those started meanwhile, but not to itself."""
    # Bounded, since a process that hangs in the kernel does not end.
    for _ in range(50):
        below = descendants(root)
        if not below:
            return
        signal_all(below, signal.SIGKILL)


def end_child(process: "subprocess.Popen[Any]", limit_s: float) -> bool:
    """End a child with SIGTERM, after `limit_s` seconds with SIGKILL; return whether SIGTERM was enough."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


def read_output(process: "subprocess.Popen[bytes]", max_bytes: int, deadline: float) -> bytes:
    """Return what a child prints until a time of the monotonic clock, and end it.

    At most ``max_bytes + 1`` bytes are read. The child's return code is None if it could not be ended.
    """
    read: list[bytes] = []

    def fill() -> None:
        if process.stdout:
            with process.stdout:
                read.append(process.stdout.read(max_bytes + 1))

    # A process that hangs in a file system does not die, and one of its children may hold the pipe.
    reader = threading.Thread(target=fill, daemon=True)
    reader.start()
    reader.join(max(deadline - time.monotonic(), 0.0))
    if not read or len(read[0]) > max_bytes:
        process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(deadline - time.monotonic(), _KILL_S))
    return read[0] if read else b""


def end_descendants(keep: frozenset[int] = frozenset()) -> None:
    """End every descendant of this process except those in `keep`: with SIGTERM, after 5 s with SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_S
        signalled: set[Process] = set()
        while (running := _running_descendants(keep)) and time.monotonic() < deadline:
            for each in running - signalled:
                each.signal(number)
            signalled |= running
            time.sleep(_STEP_S)


def _running_descendants(keep: frozenset[int]) -> set[Process]:
    processes = (Process.of(pid) for pid in descendants(os.getpid()) if pid not in keep)
    return {process for process in processes if process is not None}


def _stat(pid: int) -> list[str] | None:
    try:
        # The program's name may contain any bytes, also parentheses; the fields follow the last one.
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


_PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(parent: int) -> None:
    """Let the kernel send SIGTERM to this process when its parent, whose id is `parent`, ends."""
    die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        # The parent ended before the call, so the kernel will not send the signal.
        os.kill(os.getpid(), signal.SIGTERM)


def adopt_orphans() -> None:
    """Make this process a subreaper: the parent of descendants whose own parent ends.

    Otherwise a terminal's background program or a kernel in its own session would become a child of the
    node's init, where neither this job nor a scheduler that follows the process tree finds it.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def continue_in_child(on_killed: Callable[[str], None]) -> None:
    """Fork, and return in the child; the parent waits for the child and exits with its status.

    A program whose children would outlive it calls this first. The parent passes on the first SIGINT or
    SIGTERM, so that the child can clean up. If the parent is killed, the child gets SIGTERM. When the child
    has ended, even if it was killed, the parent kills all processes that it left behind, including those of
    other users in a user namespace.

    Parameters
    ----------
    on_killed
        Called in the parent with the name of the signal that ended the child, unless a signal was passed on.
    """
    adopt_orphans()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        # A terminal's Ctrl-C reaches it once, through the parent.
        os.setpgid(0, 0)
        adopt_orphans()
        end_with_parent(parent)
        return
    passed_on: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if not passed_on:
            passed_on.append(number)
            with suppress(ProcessLookupError):
                os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    kill_tree(parent)
    if status < 0 and not passed_on:
        on_killed(signal.Signals(-status).name)
    raise SystemExit(status if status >= 0 else 128 - status)


def signal_all(pids: tuple[int, ...], number: int) -> None:
    """Send a signal to each process that still exists and may be signalled."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
