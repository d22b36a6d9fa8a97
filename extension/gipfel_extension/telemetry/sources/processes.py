"""The tree of processes below one, read from ``/proc`` at the cost of the tree and not of the machine."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """What a process tree has used so far (CPU, I/O) and holds now (memory).

    CPU seconds and bytes include descendants that have ended. I/O is None where the system hides it.
    """

    cpu_seconds: float
    memory_bytes: float
    read_bytes: float | None
    write_bytes: float | None


class ProcessTree:
    """A process and its descendants.

    Parameters
    ----------
    proc
        The mount point of procfs.
    """

    def __init__(self, root_pid: int, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._root = root_pid
        self._strangers: set[int] = set()
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")

    def usage(self) -> Usage | None:
        """What the tree uses; None where its root is gone."""
        stats = self._members()
        if self._root not in stats:
            return None
        # utime, stime, and what waited-for children used (cutime, cstime): a process that ends moves its time
        # from its own line to its parent's, so the sum never loses it.
        cpu = sum(float(number) for fields in stats.values() for number in fields[11:15]) / self._ticks
        private = shared = 0
        read = write = 0.0
        counted = False
        for pid in stats:
            with suppress(OSError, ValueError, IndexError):
                resident, common = map(int, (self._proc / str(pid) / "statm").read_text().split()[1:3])
                private += resident - common
                # Forked workers map the same pages: the largest mapping stands for all.
                shared = max(shared, common)
            with suppress(OSError, ValueError, KeyError):
                lines = (self._proc / str(pid) / "io").read_text().splitlines()
                numbers = dict(line.split(": ") for line in lines)
                read += int(numbers["read_bytes"])
                write += int(numbers["write_bytes"])
                counted = True
        memory = float(private + shared) * self._page
        return Usage(cpu, memory, read if counted else None, write if counted else None)

    def _members(self) -> dict[int, list[str]]:
        """Members' pids and their fields of ``stat``, from the third (state) on."""
        present = {int(entry.name) for entry in os.scandir(self._proc) if entry.name.isdecimal()}
        # A process never becomes a descendant later: those seen to be none needn't be read again.
        self._strangers &= present
        stats = {}
        for pid in present - self._strangers:
            # ESRCH: it ended since the listing.
            with suppress(OSError):
                line = (self._proc / str(pid) / "stat").read_text(errors="replace")
                stats[pid] = line.rpartition(")")[2].split()
        children: dict[int, list[int]] = {}
        for pid, fields in stats.items():
            children.setdefault(int(fields[1]), []).append(pid)
        members: dict[int, list[str]] = {}
        waiting = [self._root]
        while waiting:
            pid = waiting.pop()
            if pid in stats:
                members[pid] = stats[pid]
                waiting.extend(children.get(pid, []))
        self._strangers |= stats.keys() - members.keys()
        return members
