"""Processes of this machine by their identity: a number alone may belong to another process by now."""

import os
import signal
from pathlib import Path

from ..model import Frozen

_PROC = Path("/proc")


class Process(Frozen):
    """A process that can't be confused with a later one of the same number."""

    pid: int
    start: int  # clock ticks after the machine's start
    boot: str

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """The process that has this number now; None where there is none, or only its zombie."""
        fields = _stat(pid)
        if fields is None or fields[0] in {"Z", "X"}:
            return None
        return cls(pid=pid, start=int(fields[19]), boot=_boot())

    @property
    def alive(self) -> bool:
        """Whether this very process runs."""
        return Process.of(self.pid) == self

    def signal(self, number: int) -> None:
        """Send a signal, unless the process is gone."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def _stat(pid: int) -> list[str] | None:
    try:
        # The program's name may hold any bytes, parentheses too; the fields start behind its last one.
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def descendants(root: int) -> tuple[int, ...]:
    """Numbers of all living processes below one, parents first."""
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
    """SIGKILL every process below one, and those that they start meanwhile; the root itself is left alone."""
    for _ in range(50):
        below = descendants(root)
        if not below:
            return
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
