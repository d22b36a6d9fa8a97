"""Recorders on the job's other nodes: a Slurm step beside the work, watched, and restarted when it ends."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ..process.supervisor import append_event
from ..process.tree import descendants
from ..scheduler.notation import expand_hostlist

#: srun passes it on to every task; it would turn SIGTERM into SIGKILL.
END_SIGNAL = signal.SIGUSR2
_POLL_S = 0.5
_LOOK_S = 5.0
#: Seconds that this part of a job's end may take; see `scheduler.supervisor.GRACE_SECONDS`.
END_S = 15.0
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0
#: A recorder that begins this much later than the job is reported as an event.
_LATE_S = 60.0
#: After this silence a node counts as lost; longer where samples are rare.
_SILENT_S = 30.0
_SILENT_INTERVALS = 3.0
_OF_NODE = re.compile(r"(?:.*/)?(.+)-\d{15,}-\d+(?:\.closed)?\.arrows")
#: Variables of the job's own step; each of them would become an option of this one.
_OPTIONS = ("SLURM_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "PMI2_")


class FanInReceiver(Protocol):
    """A process on this node that receives live samples of other nodes; see `recording.FanInProcess`."""

    def ready(self) -> tuple[list[str], dict[str, str]]:
        """Return a recorder's arguments and variables that lead here; start it where it doesn't run."""

    def processes(self) -> frozenset[int]:
        """Return its process."""

    def stop(self) -> None:
        """End it."""


def remote_nodes(environment: Mapping[str, str], here: str) -> tuple[str, ...]:
    """Return the job's nodes except this one; none outside Slurm."""
    if not environment.get("SLURM_JOB_ID"):
        return ()
    try:
        nodes = expand_hostlist(environment.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        return ()
    return tuple(node for node in nodes if node != here)


class RemoteRecorders:
    """The recorders of a job's other nodes.

    Parameters
    ----------
    nodes
        Names of these nodes.
    command
        The recorder's argv, the same on every node.
    telemetry
        Folder that every recorder writes to, on a file system that all nodes share.
    environment
        The job's variables.
    interval
        Seconds between two samples.
    head
        Receiver of their live samples; None for no receiver.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        command: Sequence[str],
        telemetry: Path,
        environment: Mapping[str, str],
        *,
        here: str,
        interval: float,
        head: FanInReceiver | None = None,
        silent_s: float = _SILENT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = tuple(nodes)
        self._here = here
        self._command = tuple(command)
        self._job_id = environment["SLURM_JOB_ID"]
        self._head = head
        self._environment = step_environment(environment)
        self._telemetry = telemetry
        self._log = telemetry.parent / "recorder-other-nodes.log"
        self._events = telemetry / f"{here}-watch.events.jsonl"
        self._clock = clock
        self._looked = clock()
        self._liveness = NodeLiveness(
            nodes, max(silent_s, _SILENT_INTERVALS * interval + silent_s / 3), clock()
        )
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def processes(self) -> frozenset[int]:
        """Return the processes of the step on this node; from now on no other step is started."""
        self._ending.set()
        process = self._process
        head = frozenset() if self._head is None else self._head.processes()
        return head if process is None else head | {process.pid, *descendants(process.pid)}

    def stop(self) -> None:
        """End the recorders so that they flush and close their segments; after 15 s by force."""
        self._ending.set()
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(END_SIGNAL)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)
                process.kill()
                process.wait()
        self._thread.join(END_S)
        if self._head is not None:
            self._head.stop()
        # Remove empty logs.
        for path in (self._log, *(self._log.with_name(f"recorder-{node}.log") for node in self._nodes)):
            with suppress(OSError):
                if not path.stat().st_size:
                    path.unlink()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        nodes = self._nodes
        reported = ""
        while not self._ending.is_set():
            started = self._clock()
            try:
                status: int | None = self._step(nodes)
            except OSError as error:
                self._note(
                    "recorder_lost",
                    self._here,
                    f"The recorders of the other nodes can't start: {error.strerror}.",
                )
                return
            if self._ending.is_set():
                return
            if self._clock() - started > _LONGEST_PAUSE_S:
                pause, reported = _FIRST_PAUSE_S, ""
            message = f"The recorders of the other nodes ended with status {status}; see {self._log.name}."
            # Once, not at each attempt; a lost node is the reason why a step on it alone has ended.
            if message != reported and not self._liveness.lost.issuperset(nodes):
                self._note("recorder_lost", self._here, f"{message} They are restarted.")
                reported = message
            self._wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            # Slurm starts no step on a node that is down, nor on the others with it.
            nodes = tuple(node for node in self._nodes if node not in self._liveness.lost) or self._nodes

    def _wait(self, seconds: float) -> None:
        """Wait before the next step; a node may be lost, or come back, meanwhile."""
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0 and not self._ending.wait(min(_POLL_S, left)):
            self._look()

    def _look(self) -> None:
        """Check the signs of life of all nodes and the receiver, every few seconds."""
        now = self._clock()
        if now - self._looked < _LOOK_S or self._ending.is_set():
            return
        self._looked = now
        if self._head is not None:
            self._head.ready()
        for kind, node, message in self._liveness.look(self._telemetry, now):
            self._note(kind, node, message)

    def _step(self, nodes: Sequence[str]) -> int:
        """Run one step from its beginning to its end, and return its status."""
        more, keys = ([], {}) if self._head is None else self._head.ready()
        argv = srun_arguments(nodes, [*self._command, *more], self._job_id, self._telemetry.parent)
        if self._ending.is_set():
            return 0
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                argv,
                env={**self._environment, **keys},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._process = process
        if self._ending.is_set():
            # Asked to end while it was started.
            process.send_signal(END_SIGNAL)
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            self._look()
        return process.returncode

    def _note(self, kind: str, node: str, message: str) -> None:
        append_event(self._events, kind, node, message)


class NodeLiveness:
    """The signs of life of nodes: growth of their recorders' files, by this node's clock alone.

    Parameters
    ----------
    limit_s
        Silence after which a node counts as lost.
    began
        When the job began, on the clock of :meth:`look`.
    """

    def __init__(self, nodes: Sequence[str], limit_s: float, began: float) -> None:
        self._limit_s = limit_s
        self._began = began
        self._seen: dict[str, tuple[str, int]] = {}
        self._last_seen: dict[str, float] = {}
        self._lost: set[str] = set()
        self._nodes = tuple(nodes)

    @property
    def lost(self) -> frozenset[str]:
        """Return the nodes that are silent for longer than the limit."""
        return frozenset(self._lost)

    def look(self, telemetry: Path, now: float) -> list[tuple[str, str, str]]:
        """Return new events: kind, node and sentence of each."""
        newest = _newest_segments(telemetry)
        found = []
        for node in self._nodes:
            state = newest.get(node)
            if state is not None and state != self._seen.get(node):
                self._seen[node] = state
                if node not in self._last_seen and now - self._began > _LATE_S:
                    late = now - self._began
                    found.append(
                        ("late_join", node, f"The recorder on {node} began {late:.0f} s after the job.")
                    )
                elif node in self._lost:
                    found.append(("node_back", node, f"The recorder on {node} is back."))
                self._lost.discard(node)
                self._last_seen[node] = now
            silent = now - self._last_seen.get(node, self._began)
            if silent > self._limit_s and node not in self._lost:
                self._lost.add(node)
                found.append(
                    ("node_lost", node, f"The recorder on {node} has been silent for {silent:.0f} s.")
                )
        return found


def _newest_segments(telemetry: Path) -> dict[str, tuple[str, int]]:
    """Return each node's newest segment, by name and size; a name begins with its time."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for name in os.listdir(telemetry):  # noqa: PTH208 - names alone, of many files
            matched = _OF_NODE.fullmatch(name)
            if matched and name > found.get(matched[1], ""):
                found[matched[1]] = name
    states = {}
    for node, name in found.items():
        with suppress(OSError):
            states[node] = (name, (telemetry / name).stat().st_size)
    return states


def srun_arguments(
    nodes: Sequence[str], command: Sequence[str], job_id: str, folder: Path
) -> tuple[str, ...]:
    """Return the argv of a recorder on each node, beside whatever runs there and without a share of it."""
    return (
        "srun",
        f"--jobid={job_id}",
        "--overlap",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--mem=0",
        "--cpu-bind=none",
        "--job-name=gipfel-recorder",
        # One node's end is not the others'.
        "--kill-on-bad-exit=0",
        "--no-kill",
        "--wait=0",
        "--input=none",
        "--open-mode=append",
        # A percent sign of the folder's own is doubled.
        f"--output={str(folder).replace('%', '%%')}/recorder-%N.log",
        "--chdir=/",
        "--export=ALL",
        *command,
    )


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the job's variables without secrets and without options of srun."""
    return {
        name: value
        for name, value in environment.items()
        if "TOKEN" not in name and (name == "SLURM_CONF" or not name.startswith(_OPTIONS))
    }
