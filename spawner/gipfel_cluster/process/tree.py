"""Processes of this machine by their identity, and the tree below one: find, signal and end them.

A process id alone may belong to another process by now: `Process` adds when it started.
"""

import os
import signal
import time
from pathlib import Path

from ..model import Frozen

#: Seconds that this part of a job's end may take; see `scheduler.supervisor.GRACE_SECONDS`.
GRACE_S = 5.0

_PROC = Path("/proc")
_STEP_S = 0.05


class Process(Frozen):
    """A process by its identity, which no later process of the same id shares."""

    pid: int
    start: int  # clock ticks after the machine's start
    boot: str

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """Return the process that has this id now; None where there is none, or only its zombie."""
        fields = _stat(pid)
        if fields is None or fields[0] in {"Z", "X"}:
            return None
        return cls(pid=pid, start=int(fields[19]), boot=_boot())

    @property
    def alive(self) -> bool:
        """Return whether this very process runs."""
        return Process.of(self.pid) == self

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def descendants(root: int) -> tuple[int, ...]:
    """Return the ids of all living processes below one, parents first."""
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
    """Send SIGKILL to every process below one, and those that they start meanwhile, but not to the root."""
    for _ in range(50):
        below = descendants(root)
        if not below:
            return
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def end_descendants(keep: frozenset[int] = frozenset()) -> None:
    """End every process below this one but those of `keep`: by SIGTERM, after 5 s by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_S
        signalled: set[Process] = set()
        while (left := _left(keep)) and time.monotonic() < deadline:
            for each in left - signalled:
                each.signal(number)
            signalled |= left
            time.sleep(_STEP_S)


def _left(keep: frozenset[int]) -> set[Process]:
    found = (Process.of(pid) for pid in descendants(os.getpid()) if pid not in keep)
    return {process for process in found if process is not None}


def _stat(pid: int) -> list[str] | None:
    try:
        # The program's name may hold any bytes, parentheses too; the fields start behind its last one.
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
