"""Run recorders on the job's other nodes in a Slurm step, watch them, and restart the step when it ends."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..process.supervisor import FLUSH_S, append_event
from ..process.tree import descendants, end_child
from ..regular_files import open_log
from ..scheduler.notation import expand_hostlist

if TYPE_CHECKING:
    from .recording import FanInProcess

#: srun forwards SIGUSR2 to its tasks; on SIGTERM it would kill them with SIGKILL.
END_SIGNAL = signal.SIGUSR2
#: Seconds between two polls of the step's process, and between two checks of all nodes.
_POLL_S = 0.5
_CHECK_S = 5.0
#: Seconds that the step of the recorders has to end: the time that each supervisor gives its recorder, and
#: 5 s for Slurm to deliver the signal. If srun were killed earlier, a recorder could lose the segment that
#: it is closing. `scheduler.supervisor.GRACE_SECONDS` must include this time.
END_S = FLUSH_S + 5.0
#: Seconds before the step is started again: doubled each time, and reset once a step has run this maximum.
_FIRST_PAUSE_S = 5.0
_MAX_PAUSE_S = 60.0
#: Seconds after the start of the job from which the start of a recorder is reported as an event.
_LATE_S = 60.0
#: Seconds without growth of a node's files after which the node counts as lost. If samples are rare, it is
#: so many sampling intervals and a third of these seconds.
_SILENT_S = 30.0
_SILENT_INTERVALS = 3.0
_SEGMENT_NAME = re.compile(r"(?:.*/)?(.+)-\d{15,}-\d+(?:\.closed)?\.arrows")
#: Variables that srun would read as options of this step.
_STEP_VARIABLES = ("SLURM_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "PMI2_")


def remote_nodes(environment: Mapping[str, str], local_node: str) -> tuple[str, ...]:
    """Return the job's nodes except this one; none outside of Slurm."""
    if not environment.get("SLURM_JOB_ID"):
        return ()
    try:
        nodes = expand_hostlist(environment.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        return ()
    return tuple(node for node in nodes if node != local_node)


class RemoteRecorders:
    """The recorders of a job's other nodes.

    Parameters
    ----------
    nodes
        Names of these nodes.
    command
        The recorder's argv, the same on every node.
    telemetry
        Directory that every recorder writes to, on a file system that all nodes share.
    environment
        The job's variables.
    local_node
        Name of this node.
    interval
        Seconds between two samples.
    receiver
        Receiver of the live samples, if any.
    silent_s
        Seconds without new samples after which a node counts as lost.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        command: Sequence[str],
        telemetry: Path,
        environment: Mapping[str, str],
        *,
        local_node: str,
        interval: float,
        receiver: "FanInProcess | None" = None,
        silent_s: float = _SILENT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = tuple(nodes)
        self._local_node = local_node
        self._command = tuple(command)
        self._job_id = environment["SLURM_JOB_ID"]
        self._receiver = receiver
        self._environment = step_environment(environment)
        self._telemetry = telemetry
        self._log = telemetry.parent / "recorder-other-nodes.log"
        self._events = telemetry / f"{local_node}-watch.events.jsonl"
        self._clock = clock
        self._checked = clock()
        self._liveness = NodeLiveness(
            nodes, max(silent_s, _SILENT_INTERVALS * interval + silent_s / 3), clock()
        )
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop_restarting(self) -> frozenset[int]:
        """Start no further step, and return the processes of the receiver and of the step on this node."""
        self._ending.set()
        process = self._process
        receiver = frozenset() if self._receiver is None else self._receiver.pids()
        return receiver if process is None else receiver | {process.pid, *descendants(process.pid)}

    def stop(self) -> None:
        """End the recorders so that they flush and close their segments; after 20 s with SIGKILL."""
        self._ending.set()
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(END_SIGNAL)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                end_child(process, END_S)
        self._thread.join(END_S)
        if self._receiver is not None:
            self._receiver.stop()
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
                status: int | None = self._run_step(nodes)
            except OSError as error:
                append_event(
                    self._events,
                    "recorder_lost",
                    self._local_node,
                    f"The recorders of the other nodes can't start: {error.strerror}.",
                )
                return
            if self._ending.is_set():
                return
            if self._clock() - started > _MAX_PAUSE_S:
                pause, reported = _FIRST_PAUSE_S, ""
            message = f"The recorders of the other nodes ended with status {status}; see {self._log.name}."
            # Report it once, not at each attempt. If all nodes of the step are lost, that is reported
            # already.
            if message != reported and not self._liveness.lost.issuperset(nodes):
                append_event(
                    self._events, "recorder_lost", self._local_node, f"{message} They are restarted."
                )
                reported = message
            self._wait(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)
            # If one node is down, Slurm refuses the whole step.
            nodes = tuple(node for node in self._nodes if node not in self._liveness.lost) or self._nodes

    def _wait(self, seconds: float) -> None:
        """Wait before the next step, and watch the nodes meanwhile."""
        end = self._clock() + seconds
        while (remaining := end - self._clock()) > 0 and not self._ending.wait(min(_POLL_S, remaining)):
            self._check()

    def _check(self) -> None:
        """Check all nodes, and restart the receiver if it has died, every few seconds."""
        now = self._clock()
        if now - self._checked < _CHECK_S or self._ending.is_set():
            return
        self._checked = now
        if self._receiver is not None:
            self._receiver.sender_settings()
        for kind, node, message in self._liveness.check(self._telemetry, now):
            append_event(self._events, kind, node, message)

    def _run_step(self, nodes: Sequence[str]) -> int:
        """Run one step to its end, and return its exit status."""
        arguments, keys = ([], {}) if self._receiver is None else self._receiver.sender_settings()
        argv = srun_arguments(nodes, [*self._command, *arguments], self._job_id, self._telemetry.parent)
        if self._ending.is_set():
            return 0
        with os.fdopen(open_log(self._log), "ab") as log:
            process = subprocess.Popen(
                argv,
                env={**self._environment, **keys},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._process = process
        if self._ending.is_set():
            # `stop` was called while the step was starting.
            process.send_signal(END_SIGNAL)
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            self._check()
        return process.returncode


class NodeLiveness:
    """Detects lost nodes: those whose recorder's files have stopped growing, according to this node's clock.

    Parameters
    ----------
    limit_s
        Seconds without growth after which a node counts as lost.
    started
        When the job started, on the clock of :meth:`check`.
    """

    def __init__(self, nodes: Sequence[str], limit_s: float, started: float) -> None:
        self._limit_s = limit_s
        self._started = started
        self._segments: dict[str, tuple[str, int]] = {}
        self._last_growth: dict[str, float] = {}
        self._lost: set[str] = set()
        self._nodes = tuple(nodes)

    @property
    def lost(self) -> frozenset[str]:
        """Return the nodes whose files did not grow for longer than the limit."""
        return frozenset(self._lost)

    def check(self, telemetry: Path, now: float) -> list[tuple[str, str, str]]:
        """Return new events: kind, node and message of each."""
        newest = _newest_segments(telemetry)
        events = []
        for node in self._nodes:
            segment = newest.get(node)
            if segment is not None and segment != self._segments.get(node):
                self._segments[node] = segment
                if node not in self._last_growth and now - self._started > _LATE_S:
                    late = now - self._started
                    events.append(
                        ("late_join", node, f"The recorder on {node} started {late:.0f} s after the job.")
                    )
                elif node in self._lost:
                    events.append(("node_back", node, f"The recorder on {node} writes samples again."))
                self._lost.discard(node)
                self._last_growth[node] = now
            silent = now - self._last_growth.get(node, self._started)
            if silent > self._limit_s and node not in self._lost:
                self._lost.add(node)
                events.append(
                    ("node_lost", node, f"The recorder on {node} has written no samples for {silent:.0f} s.")
                )
        return events


def _newest_segments(telemetry: Path) -> dict[str, tuple[str, int]]:
    """Return the name and size of each node's newest segment; names sort by time."""
    newest: dict[str, str] = {}
    with suppress(OSError):
        for name in os.listdir(telemetry):  # noqa: PTH208 - only names are needed, of many files
            match = _SEGMENT_NAME.fullmatch(name)
            if match and name > newest.get(match[1], ""):
                newest[match[1]] = name
    segments = {}
    for node, name in newest.items():
        with suppress(OSError):
            segments[node] = (name, (telemetry / name).stat().st_size)
    return segments


def srun_arguments(
    nodes: Sequence[str], command: Sequence[str], job_id: str, folder: Path
) -> tuple[str, ...]:
    """Return the argv of srun that starts a recorder on each node without reserving resources of the job."""
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
        # If the recorder on one node ends, the recorders on other nodes must keep running.
        "--kill-on-bad-exit=0",
        "--no-kill",
        "--wait=0",
        "--input=none",
        "--open-mode=append",
        # srun expands percent signs, so percent signs in the path are doubled.
        f"--output={str(folder).replace('%', '%%')}/recorder-%N.log",
        "--chdir=/",
        "--export=ALL",
        *command,
    )


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the job's variables without tokens and without variables that srun reads as options."""
    return {
        name: value
        for name, value in environment.items()
        if "TOKEN" not in name and (name == "SLURM_CONF" or not name.startswith(_STEP_VARIABLES))
    }
