"""Recorders on the job's other nodes: a Slurm step beside the work, watched, started again where it ends."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..scheduler.hostlist import expand_hostlist
from ..scheduler.processes import descendants
from .fan_in_head import FanInHead

#: srun passes it on to every task; SIGTERM it would turn into SIGKILL.
END_SIGNAL = signal.SIGUSR2

_GLANCE_S = 0.5
_LOOK_S = 5.0
#: Seconds that this part of a job's end may take; see `scheduler.keeper.GRACE_SECONDS`.
END_S = 15.0
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0
#: A recorder that begins so much later than the job is an event.
_LATE_S = 60.0
#: From so many seconds of silence on a node counts as lost; more where samples are rare.
_SILENT_S = 30.0
_SILENT_INTERVALS = 3.0
_OF_NODE = re.compile(r"(?:.*/)?(.+)-\d{15,}-\d+(?:\.closed)?\.arrows")
#: What the job's own step was asked for; each of them would become an option of this one.
_OPTIONS = ("SLURM_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "PMI2_")


def other_nodes(environment: Mapping[str, str], here: str) -> tuple[str, ...]:
    """The job's nodes but this one; none outside Slurm."""
    if not environment.get("SLURM_JOB_ID"):
        return ()
    try:
        nodes = expand_hostlist(environment.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        return ()
    return tuple(node for node in nodes if node != here)


class OtherNodes:
    """The recorders of a job's other nodes.

    Parameters
    ----------
    nodes
        Their names.
    command
        The recorder's argv, the same on every node.
    telemetry
        Where every recorder writes, on a file system that all nodes share.
    environment
        The job's.
    interval
        Seconds between two samples.
    head
        Where they send what they see now; None for nowhere.
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
        head: FanInHead | None = None,
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
        self._signs = Signs(nodes, max(silent_s, _SILENT_INTERVALS * interval + silent_s / 3), clock())
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def processes(self) -> frozenset[int]:
        """The processes of the step on this node; from now on no other step is started."""
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
        # What had nothing to say is no log.
        for path in (self._log, *(self._log.with_name(f"recorder-{node}.log") for node in self._nodes)):
            with suppress(OSError):
                if not path.stat().st_size:
                    path.unlink()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        nodes = self._nodes
        told = ""
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
                pause, told = _FIRST_PAUSE_S, ""
            words = f"The recorders of the other nodes ended with status {status}; see {self._log.name}."
            # Once, not at each attempt; that a node is lost says why a step on it alone has ended.
            if words != told and not self._signs.lost.issuperset(nodes):
                self._note("recorder_lost", self._here, f"{words} They are started again.")
                told = words
            self._wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            # Slurm starts no step on a node that is down, nor on the others with it.
            nodes = tuple(node for node in self._nodes if node not in self._signs.lost) or self._nodes

    def _wait(self, seconds: float) -> None:
        """Let time pass before the next step; a node may be lost, or speak, meanwhile."""
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0 and not self._ending.wait(min(_GLANCE_S, left)):
            self._look()

    def _look(self) -> None:
        """Every few seconds: the signs of life of all nodes, and of what takes in what they send."""
        now = self._clock()
        if now - self._looked < _LOOK_S or self._ending.is_set():
            return
        self._looked = now
        if self._head is not None:
            self._head.ready()
        for kind, node, message in self._signs.look(self._telemetry, now):
            self._note(kind, node, message)

    def _step(self, nodes: Sequence[str]) -> int:
        """One step from its beginning to its end; its status."""
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
                process.wait(_GLANCE_S)
            self._look()
        return process.returncode

    def _note(self, kind: str, node: str, message: str) -> None:
        """A line that `gipfel_extension.telemetry.events` reads."""
        event = {"time_ns": time.time_ns(), "node": node, "kind": kind, "device": "", "message": message}
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(self._events, flags, 0o600)
            try:
                os.write(handle, json.dumps(event).encode() + b"\n")
            finally:
                os.close(handle)


class Signs:
    """Signs of life of nodes: what their recorders write, by this node's clock alone.

    Parameters
    ----------
    limit_s
        Silence after which a node counts as lost.
    began
        When the job began, on the clock that :meth:`look` is told.
    """

    def __init__(self, nodes: Sequence[str], limit_s: float, began: float) -> None:
        self._limit_s = limit_s
        self._began = began
        self._seen: dict[str, tuple[str, int]] = {}
        self._heard: dict[str, float] = {}
        self._lost: set[str] = set()
        self._nodes = tuple(nodes)

    @property
    def lost(self) -> frozenset[str]:
        """The nodes that are silent for longer than the limit."""
        return frozenset(self._lost)

    def look(self, telemetry: Path, now: float) -> list[tuple[str, str, str]]:
        """What is new: kind, node and sentence of an event each."""
        newest = _newest(telemetry)
        found = []
        for node in self._nodes:
            state = newest.get(node)
            if state is not None and state != self._seen.get(node):
                self._seen[node] = state
                if node not in self._heard and now - self._began > _LATE_S:
                    late = now - self._began
                    found.append(
                        ("late_join", node, f"The recorder on {node} began {late:.0f} s after the job.")
                    )
                elif node in self._lost:
                    found.append(("node_back", node, f"The recorder on {node} speaks again."))
                self._lost.discard(node)
                self._heard[node] = now
            silent = now - self._heard.get(node, self._began)
            if silent > self._limit_s and node not in self._lost:
                self._lost.add(node)
                found.append(
                    ("node_lost", node, f"The recorder on {node} has been silent for {silent:.0f} s.")
                )
        return found


def _newest(telemetry: Path) -> dict[str, tuple[str, int]]:
    """Node to name and size of its newest segment, whose name begins with when it was begun."""
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
    """A recorder on each node, beside whatever runs there and without a share of it."""
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
    """The job's variables without secrets, and without what would change the step."""
    return {
        name: value
        for name, value in environment.items()
        if "TOKEN" not in name and (name == "SLURM_CONF" or not name.startswith(_OPTIONS))
    }
