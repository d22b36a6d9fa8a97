"""The connections of the job on this node, seen once a second; see ``network/``."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..network.gate import GateTail
from ..network.record import NetworkFile
from ..network.sockets import (
    ClosedSockets,
    Socket,
    SocketTable,
    has_only_loopback,
    read_process_sockets,
)
from ..network.traffic import FlowKey, Limits, TrafficWatch
from ..telemetry.sources import Clock
from .job_processes import JobProcesses, SocketOwners
from .journal import Journal

#: Shorter than a second by what a tick may come early.
_INTERVAL_NS = 900_000_000
#: New flows are written at once, growing totals as often as this.
_WRITE_NS = 10 * 10**9
_SEARCH_NS = 5 * 10**9
_MOST_NAMESPACES = 64
#: Events about single destinations of a gate; `gipfel net` lists all.
_MOST_GATE_EVENTS = 50
log = logging.getLogger("gipfel.recorder")


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
        """Read the sockets if a second has passed, note events, and write what changed when that is due.

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
        """Read the sockets once more, write the last totals and release what was opened."""
        self._due_ns = self._written_ns = 0
        with suppress(OSError):
            self.check()
            self._write()
        self._table.close()
        self._closed.close()

    def _check_gate(self) -> None:
        """Note what the gates of this node allowed and refused for the first time."""
        found = self._gate.read()
        self._watch.count_refused(sum(not each.allowed for each in found), self._clock.time_ns())
        for row in found[: max(0, _MOST_GATE_EVENTS - self._reported)]:
            self._journal.note(row.kind, row.message)
        self._reported += len(found)
        if closed := self._gate.read_closed():
            self._journal.note("network_closed", f"{closed[:1].upper()}{closed[1:]}.")

    def _sockets(self, now_ns: int) -> list[Socket]:
        if now_ns - self._searched_ns >= _SEARCH_NS:
            # A program that starts in a namespace of its own has no socket in this one.
            self._searched_ns = now_ns
            self._owners.search()
        sockets = self._table.read()
        for pid in list(self._owners.other_namespaces.values())[:_MOST_NAMESPACES]:
            with suppress(OSError):
                # Nothing leaves a namespace without another interface; its gate writes what was tried.
                if has_only_loopback(pid):
                    continue
                sockets += read_process_sockets(pid)
        return sockets

    def _write(self) -> None:
        self._file.append(self._watch.flows, self._changed)
        self._changed = set()
