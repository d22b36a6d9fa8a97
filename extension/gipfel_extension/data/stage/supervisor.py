"""Supervisor of a staging: ``python -m gipfel_extension.data.stage.supervisor DIRECTORY [-]``.

It starts a task on each node, sends the nodes each other's addresses, and writes the state. It runs until the
job ends or the staging is stopped. With ``-``, the first line of standard input is the job as a `StepJob`;
otherwise the job is the one in this process's environment variables.
"""

import contextlib
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gipfel_cluster.model import GipfelError
from gipfel_cluster.process.fork import allow_forks
from gipfel_cluster.process.tree import Process
from gipfel_cluster.regular_files import last_line
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.staged import epilog_script
from gipfel_cluster.steps import PYTHON, StepHandle, StepJob, StepSpec, start_step
from gipfel_cluster.steps.container import step_job_from_environment
from gipfel_cluster.storage_classes import StorageClasses
from gipfel_cluster.workloads.directory import SPEC, STOP, hold_supervisor_lock, read_state, write_state

from ...telemetry.files import read_regular
from .model import (
    ITEMS,
    RENDEZVOUS,
    NodeCopy,
    StageItem,
    StageSpec,
    TransferState,
    describe_copies,
    list_items,
    share_copied,
)
from .wire import Channel, Rendezvous

_MAX_BYTES = 1 << 20
_LOOK_S = 0.2
_WRITE_S = 1.0
_BEAT_S = 10.0
_JOIN_S = 90.0
_GRACE_S = 10.0
_REMOVE_S = 30.0
STOPPED = 143
EPILOG = "epilog"
_ITEMS = TypeAdapter(tuple[StageItem, ...])


class _Member:
    """A node of the staging: its connection, and what it last reported."""

    def __init__(self, node: str) -> None:
        self.copy = NodeCopy(node=node)
        self.channel: Channel | None = None
        self.host, self.port = "", 0
        self.complete: tuple[int, ...] = ()
        self.roots: tuple[str, ...] = ()
        self.heard = time.monotonic()
        self.planned = False

    def change(self, **values: object) -> None:
        self.copy = self.copy.model_copy(update=values)

    @property
    def failed(self) -> bool:
        return self.copy.phase == "failed"


class Coordinator:
    """Connects the nodes of a staging: receives their reports, and sends each node the others' addresses.

    Parameters
    ----------
    nodes
        Names of the nodes; a node's number is its rank.

    Attributes
    ----------
    changed
        Set when a node has reported something else than progress.
    """

    def __init__(self, nodes: tuple[str, ...], total: int, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._total = total
        self.members = [_Member(each) for each in nodes]
        self._key = secrets.token_bytes(32)
        self._listener = socket.create_server(("", 0), backlog=4096)
        self.rendezvous = Rendezvous(
            hosts=_own_hosts(nodes, environment), port=self._listener.getsockname()[1], key=self._key.hex()
        )
        self.changed = threading.Event()

    def serve(self) -> None:
        """Accept the nodes' connections, in a thread."""
        threading.Thread(target=self._accept, daemon=True).start()

    def plan(self) -> bool:
        """Send the nodes each other's addresses once all have reported; return whether that is done."""
        with self._lock:
            present = [each for each in self.members if not each.failed]
            if any(not each.port for each in present):
                return False
            peers = {
                str(rank): (each.host, each.port, each.complete)
                for rank, each in enumerate(self.members)
                if not each.failed
            }
            for each in present:
                each.heard = time.monotonic()
                self._send(each, {"kind": "plan", "peers": peers})
        return True

    def fail(self, member: _Member, problem: str) -> None:
        """Mark a node as failed and end its task; if it failed before, keep the first problem."""
        with self._lock:
            if not member.failed:
                member.change(phase="failed", problem=problem)
                self._send(member, {"kind": "end"})
        self.changed.set()

    def fail_silent(self, limit_s: float) -> None:
        """Mark nodes as failed that have made no progress for some time."""
        for each in self.members:
            if each.copy.phase != "staged" and time.monotonic() - each.heard > limit_s:
                self.fail(each, f"It has made no progress for {limit_s:.0f} s.")

    def end(self) -> None:
        """End all tasks."""
        with self._lock:
            for each in self.members:
                self._send(each, {"kind": "end"})
        self._listener.close()

    def differing(self) -> str:
        """Return a node whose copies differ from the other nodes'; empty if there is none."""
        staged = [each for each in self.members if each.copy.phase == "staged"]
        for number in range(max((len(each.roots) for each in staged), default=0)):
            known: dict[str, str] = {}
            for each in staged:
                if root := each.roots[number]:
                    known.setdefault(root, each.copy.node)
            if len(known) > 1:
                return " and ".join(known.values())
        return ""

    def _accept(self) -> None:
        while True:
            try:
                connected, address = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connected, address[0]), daemon=True).start()

    def _serve(self, connected: socket.socket, host: str) -> None:
        member = None
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError, IndexError):
            channel = Channel(connected, self._key, accepted=True, timeout_s=_JOIN_S)
            connected.settimeout(None)
            message, _ = channel.receive()
            member = self.members[int(message["rank"])]
            member.channel, member.host, member.heard = channel, host, time.monotonic()
            while True:
                self._take(member, channel.receive()[0])
        if member is not None:
            self.fail(member, "Its task has ended: it was killed, or its node is lost.")

    def _take(self, member: _Member, message: dict[str, Any]) -> None:
        kind = message["kind"]
        counts = {name: int(message[name]) for name in ("done", "read", "received") if name in message}
        if kind == "failed":
            self.fail(member, str(message["problem"])[:500])
        elif kind == "doubt":
            doubted = self.members[int(message["rank"])]
            if not doubted.failed and not doubted.copy.problem:
                doubted.change(problem=f"It {str(message['problem'])[:300]}, says {member.copy.node}.")
        with self._lock:
            if counts.get("done", 0) > member.copy.done or kind in {"hello", "staged"}:
                member.heard = time.monotonic()
            if member.failed:
                return
            if kind == "hello":
                member.complete = tuple(int(each) for each in message["complete"])
                member.change(phase="copying", tier=str(message["tier"]), reused=int(message["reused"]))
                member.port = int(message["port"])
            elif kind == "staged":
                member.roots = tuple(str(each) for each in message["roots"])
                member.change(**counts, phase="staged", problem="")
            else:
                member.change(**counts)
        if kind in {"hello", "staged"}:
            self.changed.set()

    def _send(self, member: _Member, message: dict[str, Any]) -> None:
        if member.channel is not None:
            with contextlib.suppress(OSError):
                member.channel.send(message)


def _own_hosts(nodes: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return names and addresses at which the nodes may reach this process, the most likely first."""
    own = [environment.get("SLURMD_NODENAME", ""), socket.gethostname()]
    addresses = []
    for node in nodes:
        # Find this node's address on the way to another node; connecting a UDP socket sends nothing.
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((node, 9))
            addresses.append(probe.getsockname()[0])
        if len(addresses) > 1:
            break
    return tuple(dict.fromkeys(each for each in (*addresses, *own, "127.0.0.1") if each))


class Supervisor:
    """Supervisor of one staging."""

    def __init__(self, folder: Path, setting: StepJob, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        # The tasks run on the nodes without a container: containers share the nodes' paths and memory.
        self._setting = setting.model_copy(update={"edf": ""})
        self._spec = StageSpec.model_validate_json(read_regular(folder / SPEC, _MAX_BYTES))
        self._signal = 0
        self._written = 0.0
        self._state = write_state(
            folder,
            read_state(folder, TransferState).model_copy(
                update={
                    "phase": "running",
                    "reason": "",
                    "started_ns": time.time_ns(),
                    "supervisor": Process.of(os.getpid()),
                    "job_id": setting.slurm_job or setting.job_id,
                    "run": setting.run,
                }
            ),
        )

    def run(self) -> int:
        """Stage the data and hold it; return the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        status, outcome, reason = 1, "failed", ""
        try:
            status, outcome, reason = self._supervise()
        except GipfelError as error:
            reason = str(error)
        except OSError as error:
            path = error.filename or self._folder
            reason = f"The staging can't continue: {error.strerror or error} ({path})."
        ended = {"phase": "ended", "outcome": outcome, "exit_status": status, "reason": reason}
        self._state = self._state.model_copy(update={**ended, "ended_ns": time.time_ns()})
        write_state(self._folder, self._state)
        return status

    def _supervise(self) -> tuple[int, str, str]:
        items = list_items(self._spec, self._environment)
        nodes = self._spec.nodes or self._setting.nodes
        unknown = [each for each in nodes if each not in self._setting.nodes]
        if unknown:
            names = ", ".join(self._setting.nodes)
            raise GipfelError(f"{unknown[0]} is not a node of this job.", f"It has {names}.")
        total = sum(each.size for each in items)
        self._change(nodes=nodes, total=total, files=len(items))
        write_atomically(self._folder / ITEMS, _ITEMS.dump_json(items))
        coordinator = Coordinator(nodes, total, self._environment)
        write_atomically(self._folder / RENDEZVOUS, coordinator.rendezvous.model_dump_json())
        epilog = self._folder / EPILOG
        epilog.write_text(epilog_script(StorageClasses.load(self._environment).fast.directory))
        epilog.chmod(0o700)
        spec = StepSpec(
            command=(PYTHON, "-I", "-m", "gipfel_extension.data.stage.agent", str(self._folder)),
            nodes=nodes,
            gpus_per_node=0,
            folder=str(self._folder / "step"),
            name="stage",
            epilog=str(epilog),
            grace_s=_GRACE_S,
            fork=True,
        )
        with start_step(spec, self._environment, job=self._setting) as step:
            # Only now, since the step's supervisor is a fork, for which this process must have one thread.
            coordinator.serve()
            try:
                return self._follow(coordinator, step)
            finally:
                coordinator.end()
                step.wait(_GRACE_S)
                (self._folder / RENDEZVOUS).unlink(missing_ok=True)
                if step.stop() and not self._signal:
                    # Slurm also kills the epilogs of tasks that it has to kill.
                    words = {"command": (spec.epilog,), "name": "remove", "epilog": "", "fork": False}
                    with contextlib.suppress(GipfelError, OSError):
                        again = spec.model_copy(update=words)
                        start_step(again, self._environment, job=self._setting).wait(_REMOVE_S)

    def _follow(self, coordinator: Coordinator, step: StepHandle) -> tuple[int, str, str]:
        planned, began = False, time.monotonic()
        while True:
            if (self._folder / STOP).exists():
                return STOPPED, "stopped", "The staging was stopped, and its copies are removed."
            if self._signal:
                return 128 + self._signal, "stopped", "The job was ended."
            coordinator.changed.wait(_LOOK_S)
            coordinator.changed.clear()
            status = step.poll()
            if not planned:
                if time.monotonic() - began > _JOIN_S or status is not None:
                    self._fail_absent(coordinator, step)
                planned = coordinator.plan()
            elif not self._state.ready:
                coordinator.fail_silent(self._spec.silent_s)
            problem = self._problem(coordinator)
            self._show(coordinator, failed=bool(problem))
            if problem:
                return 1, "failed", problem
            if status is not None:
                reason = step.state.problem or last_line(self._folder / "step" / "stage.log")
                return status or 1, "failed", f"The tasks have ended. {reason}".strip()

    def _fail_absent(self, coordinator: Coordinator, step: StepHandle) -> None:
        reason = step.state.problem or last_line(self._folder / "step" / "stage.log")
        for rank, each in enumerate(coordinator.members):
            if not each.port:
                log = last_line(self._folder / "step" / f"node-{rank}.log")
                coordinator.fail(each, f"It did not start within {_JOIN_S:.0f} s. {log or reason}".strip())

    def _problem(self, coordinator: Coordinator) -> str:
        """Return why the staging has failed; empty if it has not."""
        if different := coordinator.differing():
            return f"The copies on {different} differ: the data changed while it was staged."
        failed = [each.copy for each in coordinator.members if each.failed]
        if failed and (self._spec.on_failure == "stop" or len(failed) == len(coordinator.members)):
            others = f" So did {len(failed) - 1} more." if len(failed) > 1 else ""
            return f"{failed[0].node} could not be staged: {failed[0].problem}{others}"
        return ""

    def _show(self, coordinator: Coordinator, *, failed: bool) -> None:
        """Write the state: at most once a second if it has changed, else every ten seconds."""
        copies = tuple(each.copy for each in coordinator.members)
        ready = not failed and all(each.phase in {"staged", "failed"} for each in copies)
        pause = time.monotonic() - self._written
        changed = copies != self._state.copies
        if not (pause > _BEAT_S or (changed and pause > _WRITE_S) or ready != self._state.ready):
            return
        self._written = time.monotonic()
        became = {"ready_ns": time.time_ns()} if ready and not self._state.ready else {}
        reason = describe_copies(copies, self._state.total, ready=ready)
        progress = None if ready else share_copied(copies, self._state.total)
        self._change(copies=copies, ready=ready, reason=reason, progress=progress, **became)

    def _change(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)
        # A full disk must not end the staging.
        with contextlib.suppress(OSError):
            self._state = write_state(self._folder, self._state)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signal = number


def main(arguments: list[str]) -> int:
    """Supervise a staging to its end."""
    folder = Path(arguments[0])
    allow_forks()
    try:
        with hold_supervisor_lock(folder):
            if arguments[1:] == ["-"]:
                setting = StepJob.model_validate_json(sys.stdin.readline())
            else:
                setting = step_job_from_environment(os.environ)
            return Supervisor(folder, setting, dict(os.environ)).run()
    except (GipfelError, OSError, ValueError) as error:
        sys.stderr.write(f"gipfel: {error}\n")
        with contextlib.suppress(GipfelError, OSError):
            state = read_state(folder, TransferState)
            ended = {"phase": "ended", "outcome": "failed", "exit_status": 1, "reason": str(error)}
            write_state(folder, state.model_copy(update={**ended, "ended_ns": time.time_ns()}))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
