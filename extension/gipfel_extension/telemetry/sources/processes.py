"""The tree of processes below one, read from ``/proc`` at the cost of the tree and not of the machine."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """What a process tree has used so far (CPU, I/O) and holds now (memory).

    CPU seconds, bytes and page faults include descendants that have ended. I/O is None where the system hides
    it.
    """

    cpu_seconds: float
    memory_bytes: float
    read_bytes: float | None
    write_bytes: float | None
    minor_faults: float
    major_faults: float


class ProcessTree:
    """A process and its descendants, or those of a Slurm job on this node.

    Parameters
    ----------
    job_id
        With it the tree is everything below this job's step daemons, where there are any.
    proc
        The mount point of procfs.
    """

    def __init__(self, root_pid: int, *, job_id: str = "", proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._root = root_pid
        self._daemon = f"slurmstepd: [{job_id}." if job_id else ""
        self._strangers: set[int] = set()
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")

    def usage(self) -> Usage | None:
        """What the tree uses; None where its root is gone."""
        stats = self._members()
        if not stats:
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
        minor = sum(float(fields[7]) + float(fields[8]) for fields in stats.values())
        major = sum(float(fields[9]) + float(fields[10]) for fields in stats.values())
        return Usage(cpu, memory, read if counted else None, write if counted else None, minor, major)

    def _members(self) -> dict[int, list[str]]:
        """Members' pids and their fields of ``stat``, from the third (state) on."""
        present = {int(entry.name) for entry in os.scandir(self._proc) if entry.name.isdecimal()}
        # A process never becomes a descendant later: those seen to be none needn't be read again.
        self._strangers &= present
        stats = {}
        daemons = []
        for pid in present - self._strangers:
            # ESRCH: it ended since the listing.
            with suppress(OSError):
                line = (self._proc / str(pid) / "stat").read_text(errors="replace")
                name, _, fields = line.rpartition(")")
                stats[pid] = fields.split()
                if self._daemon and name.endswith("(slurmstepd"):
                    daemons.append(pid)
        children: dict[int, list[int]] = {}
        for pid, fields_of in stats.items():
            children.setdefault(int(fields_of[1]), []).append(pid)
        members: dict[int, list[str]] = {}
        # Without a daemon of this job the tree is the one below the process that was named.
        waiting = [pid for pid in daemons if self._is_ours(pid)] or [self._root]
        while waiting:
            pid = waiting.pop()
            if pid in stats and pid not in members:
                members[pid] = stats[pid]
                waiting.extend(children.get(pid, []))
        # A daemon says whose it is a moment after it began.
        self._strangers |= stats.keys() - members.keys() - set(daemons)
        return members

    def _is_ours(self, daemon: int) -> bool:
        with suppress(OSError):
            title = (self._proc / str(daemon) / "cmdline").read_bytes()
            return title.decode(errors="replace").startswith(self._daemon)
        return False
