"""Processes of a job on this node, and their connections, read once a second; see ``network/``."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ..network.record import GateTail, NetworkFile
from ..network.sockets import ClosedSockets, Socket, SocketTable, has_only_loopback, read_process_sockets
from ..network.traffic import FlowKey, Limits, Owner, TrafficWatch
from ..telemetry.ranks import rank_of_environment, read_environment
from ..telemetry.sources import Clock
from .journal import Journal

_MOST_PROCESSES, _MOST_FILES = 2000, 4000
#: Time after which the owner of a socket is searched again if none was found: it may have been starting.
_SEARCH_AGAIN_NS = 10 * 10**9
#: Minimum time between two readings: a second, less the time by which a tick may come early.
_INTERVAL_NS = 900_000_000
#: Flows (see `FlowKey`) are written immediately when they are new, later totals at this interval.
_WRITE_NS = 10 * 10**9
_SEARCH_NS = 5 * 10**9
_MOST_NAMESPACES = 64
#: Maximum number of events about single destinations of a gate; `gipfel net` lists all destinations.
_MOST_GATE_EVENTS = 50
log = logging.getLogger("gipfel.recorder")


class JobProcesses:
    """Finder of this user's processes in the job; other users' processes are ignored.

    Parameters
    ----------
    root_pid
        Root of the job's process tree; None for the processes of the Slurm job of `environment`.
    """

    def __init__(
        self, root_pid: int | None, environment: Mapping[str, str], proc: Path = Path("/proc")
    ) -> None:
        self._root_pid = root_pid
        self._job = environment.get("SLURM_JOB_ID", "") if root_pid is None else ""
        self._proc = proc

    def find(self) -> list[int]:
        """Return the process IDs, at most 2 000, without this process's own."""
        if self._root_pid is None and not self._job:
            return []
        parents: dict[int, int] = {}
        uid = os.getuid()
        for entry in os.scandir(self._proc):
            if entry.name.isdecimal():
                with suppress(OSError, ValueError, IndexError):
                    if entry.stat().st_uid == uid:
                        fields = (
                            (self._proc / entry.name / "stat").read_text(errors="replace").rpartition(")")
                        )
                        parents[int(entry.name)] = int(fields[2].split()[1])
        chosen = [pid for pid in sorted(parents) if pid != os.getpid() and self._is_of_job(pid, parents)]
        return chosen[:_MOST_PROCESSES]

    def _is_of_job(self, pid: int, parents: Mapping[int, int]) -> bool:
        if self._root_pid is None:
            with suppress(OSError):
                own = read_environment(self._proc / str(pid)).get(b"SLURM_JOB_ID", b"")
                return own.decode(errors="replace") == self._job
            return False
        for _ in range(len(parents)):
            if pid == self._root_pid:
                return True
            pid = parents.get(pid, 0)
            if not pid:
                return False
        return False


class SocketOwners:
    """Finder of the job's process that owns a socket, by the inodes in ``/proc/PID/fd``.

    Processes are searched only when an unknown socket of this user appears.

    Parameters
    ----------
    monotonic_ns
        The clock; the owner of a socket is searched again after some seconds if none was found.
    """

    def __init__(
        self,
        processes: JobProcesses,
        monotonic_ns: Callable[[], int],
        proc: Path = Path("/proc"),
    ) -> None:
        self._processes, self._monotonic_ns, self._proc = processes, monotonic_ns, proc
        self._uid = os.getuid()
        self._owners: dict[int, Owner] = {}
        self._foreign: dict[int, int] = {}
        #: PID of one process in each network namespace of the job other than this one, by namespace inode.
        self.other_namespaces: dict[int, int] = {}

    def owner(self, each: Socket) -> Owner | None:
        """Return the process of the job that owns a socket; None if it does not belong to this job."""
        if each.uid != self._uid or not each.inode:
            return None
        found = self._owners.get(each.inode)
        if found is not None:
            return found
        now_ns = self._monotonic_ns()
        searched_ns = self._foreign.get(each.inode)
        if searched_ns is not None and now_ns - searched_ns < _SEARCH_AGAIN_NS:
            return None
        self.search()
        found = self._owners.get(each.inode)
        if found is None:
            self._foreign[each.inode] = now_ns
        return found

    def forget(self, present: Iterable[int]) -> None:
        """Forget all inodes except `present`: the kernel reuses the inodes of closed sockets."""
        kept = set(present)
        self._owners = {inode: owner for inode, owner in self._owners.items() if inode in kept}
        self._foreign = {inode: since for inode, since in self._foreign.items() if inode in kept}

    def search(self) -> None:
        """Read the sockets and the network namespaces that the job's processes have now."""
        self._owners, self.other_namespaces = {}, {}
        own_namespace = _namespace(self._proc / "self")
        for pid in self._processes.find():
            folder = self._proc / str(pid)
            with suppress(OSError, ValueError):
                inodes = self._inodes(folder)
                namespace = _namespace(folder)
                if namespace not in (None, own_namespace):
                    self.other_namespaces.setdefault(namespace or 0, pid)
                if inodes:
                    program = (folder / "comm").read_text(errors="replace").strip()
                    owner = Owner(program, rank_of_environment(read_environment(folder)))
                    for inode in inodes:
                        self._owners.setdefault(inode, owner)

    def _inodes(self, folder: Path) -> list[int]:
        found = []
        for number, entry in enumerate(os.scandir(folder / "fd")):
            if number >= _MOST_FILES:
                break
            with suppress(OSError, ValueError):
                target = str(Path(entry.path).readlink())
                if target.startswith("socket:["):
                    found.append(int(target[8:-1]))
        return found


def _namespace(folder: Path) -> int | None:
    with suppress(OSError):
        return (folder / "ns" / "net").stat().st_ino
    return None


class NetworkMonitor:
    """Monitor of the job's connections; writes ``network/<node>.jsonl`` and adds events to a journal.

    Parameters
    ----------
    root_pid
        Root of the job's process tree; None for the processes of the Slurm job of `environment`.
    environment
        Environment variables, which identify the Slurm job and hold the site's limits.
    """

    def __init__(
        self,
        run: Path,
        node: str,
        *,
        root_pid: int | None,
        environment: Mapping[str, str],
        clock: Clock,
        journal: Journal,
    ) -> None:
        self._clock, self._journal = clock, journal
        self._owners = SocketOwners(JobProcesses(root_pid, environment), clock.monotonic_ns)
        try:
            limits = Limits.from_environment(environment)
        except ValueError as error:
            log.warning("GIPFEL_NETWORK_…: %s. The default limits apply.", error)
            limits = Limits()
        self._watch = TrafficWatch(limits, self._owners.owner)
        self._file, self._gate = NetworkFile(run, node), GateTail(run, node)
        self._watch.names = self._gate.names
        self._reported = 0
        self._table, self._closed = SocketTable(), ClosedSockets()
        self._changed: set[FlowKey] = set()
        self._due_ns = self._written_ns = self._searched_ns = 0
        self._known = 0

    def check(self) -> None:
        """Read the sockets if a second has passed, add events, and write changed flows if a write is due.

        Raises
        ------
        OSError
            The kernel refuses socket diagnostics, or the file can't be written.
        """
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _INTERVAL_NS
        self._check_gate()
        ended = self._closed.read()
        sockets = self._sockets(now_ns)
        changed, findings = self._watch.update(sockets, ended, self._clock.time_ns())
        self._owners.forget(each.inode for each in sockets)
        for kind, message in findings:
            self._journal.note(kind, message)
        self._changed |= changed
        new = len(self._watch.flows) > self._known
        if new or now_ns - self._written_ns >= _WRITE_NS:
            self._known, self._written_ns = len(self._watch.flows), now_ns
            self._write()

    def close(self) -> None:
        """Read the sockets once more, write the last totals and close the netlink sockets."""
        self._due_ns = self._written_ns = 0
        with suppress(OSError):
            self.check()
            self._write()
        self._table.close()
        self._closed.close()

    def _check_gate(self) -> None:
        """Add events for what the gates of this node allowed and refused for the first time."""
        found = self._gate.read()
        self._watch.count_refused(sum(not each.allowed for each in found), self._clock.time_ns())
        for row in found[: max(0, _MOST_GATE_EVENTS - self._reported)]:
            self._journal.note(row.kind, row.message)
        self._reported += len(found)
        if closed := self._gate.read_closed():
            self._journal.note("network_closed", f"{closed[:1].upper()}{closed[1:]}.")

    def _sockets(self, now_ns: int) -> list[Socket]:
        if now_ns - self._searched_ns >= _SEARCH_NS:
            # A program in a network namespace of its own has no socket in this namespace, so only a regular
            # search finds it.
            self._searched_ns = now_ns
            self._owners.search()
        sockets = self._table.read()
        for pid in list(self._owners.other_namespaces.values())[:_MOST_NAMESPACES]:
            with suppress(OSError):
                # A namespace with only a loopback interface is behind a gate, which logs its connections.
                if has_only_loopback(pid):
                    continue
                sockets += read_process_sockets(pid)
        return sockets

    def _write(self) -> None:
        self._file.append(self._watch.flows, self._changed)
        self._changed = set()
