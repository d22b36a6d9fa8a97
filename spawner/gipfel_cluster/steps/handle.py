"""Start a step from a process of a job, or on a machine without Slurm, and control it.

`start_step` returns a `StepHandle`. On the host it starts the step's supervisor as a child process; in a
container it connects to a supervisor that the job's broker starts.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from ..broker.client import no_answer, read_answer
from ..broker.messages import MAX_BYTES, Ended, PathRef, Signal, Started, StepRequest, broker_socket, to_line
from ..edf.model import Mount
from ..environment import without_tokens
from ..model import GipfelError, ReportOSError
from ..process.fork import ForkedProgram, can_fork
from ..regular_files import read_regular
from .container import step_job_from_environment
from .spec import StepJob, StepPlan, StepSpec, StepState, TaskLocation

#: Exit status of a step whose supervisor or broker disconnected.
_DISCONNECTED_STATUS = 1
_MAX_BYTES = 1 << 20
# Longer than a supervisor takes, after the grace period, to end everything with SIGKILL.
_END_S = 60.0
_START_S = 75.0


class StepHandle:
    """A step that was started, and its state; the step is stopped when this process ends.

    Use it as a context manager to stop the step at the end of a block.
    """

    def __init__(self, spec: StepSpec, channel: "ChildSupervisor | BrokerSupervisor") -> None:
        self.spec = spec
        self._channel = channel
        self._status: int | None = None

    def __enter__(self) -> "StepHandle":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def state(self) -> StepState:
        """Return the state that the supervisor wrote; the phase ``starting`` if it has written none."""
        try:
            return StepState.model_validate_json(
                read_regular(Path(self.spec.folder, f"{self.spec.name}.json"), _MAX_BYTES)
            )
        except (OSError, ValidationError):
            return StepState(phase="starting")

    @property
    def step_id(self) -> str:
        """Return Slurm's ``job.step``, or ``local-<pid>``; empty until a task has started."""
        return self.state.step_id

    @property
    def tasks(self) -> tuple[TaskLocation, ...]:
        """Return the locations of the tasks that have started, by rank."""
        locations = []
        for path in Path(self.spec.folder, f"{self.spec.name}.tasks").glob("*.json"):
            with contextlib.suppress(OSError, ValidationError):
                locations.append(TaskLocation.model_validate_json(read_regular(path, _MAX_BYTES)))
        return tuple(sorted(locations, key=lambda each: each.rank))

    def poll(self) -> int | None:
        """Return the step's exit status, the highest of its tasks'; None while the step runs."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait at most `timeout` seconds for the end; return the exit status, None if the step still runs."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._status is None:
            remaining = 3600.0 if end is None else end - time.monotonic()
            self._status = self._channel.poll(max(0.0, remaining))
            if end is not None and time.monotonic() >= end:
                break
        return self._status

    def signal(self, number: int) -> None:
        """Send SIGUSR1 or SIGUSR2 to the tasks, or SIGTERM to stop the step."""
        if self._status is None:
            self._channel.signal(number)

    def stop(self) -> int:
        """End the step's processes with SIGTERM, after ``grace_s`` with SIGKILL; return the exit status."""
        self.signal(signal.SIGTERM)
        status = self.wait(self.spec.grace_s + _END_S)
        self._channel.close()
        self._status = _DISCONNECTED_STATUS if status is None else status
        return self._status


class ChildSupervisor:
    """A supervisor that is a child of this process."""

    def __init__(self, process: "subprocess.Popen[bytes] | ForkedProgram") -> None:
        self._process = process

    def poll(self, seconds: float) -> int | None:
        """Wait at most `seconds` for the end; return the exit status, None if the step still runs."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self.close()
        return code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Send a signal."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def close(self) -> None:
        """Close its standard input, which stops a running step."""
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


class BrokerSupervisor:
    """A supervisor that the job's broker started; closing the connection to the broker stops the step."""

    def __init__(self, connected: socket.socket, received: bytes) -> None:
        self._socket = connected
        self._received = received

    def poll(self, seconds: float) -> int | None:
        """Wait at most `seconds` for the end; return the exit status, 1 if the broker disconnected.

        Return None if the step still runs.
        """
        end = time.monotonic() + seconds
        while b"\n" not in self._received:
            try:
                ready, _, _ = select.select([self._socket], [], [], max(0.0, end - time.monotonic()))
                if not ready:
                    return None
                piece = self._socket.recv(MAX_BYTES)
            except OSError:
                piece = b""
            if not piece:
                return _DISCONNECTED_STATUS
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        self.close()
        with contextlib.suppress(GipfelError):
            return read_answer(line, Ended).status
        return _DISCONNECTED_STATUS

    def signal(self, number: int) -> None:
        """Send a signal."""
        with contextlib.suppress(OSError):
            self._socket.sendall(to_line(Signal(signal=number)))

    def close(self) -> None:
        """Disconnect, which stops a running step."""
        self._socket.close()


def supervisor_arguments() -> tuple[str, ...]:
    """Return the argv of a supervisor, which reads a `StepPlan` from standard input."""
    return (sys.executable, "-I", "-m", "gipfel_cluster.steps.supervisor")


def in_container(environment: Mapping[str, str]) -> bool:
    """Return whether a process runs in a job's container, so that the job's broker must start its steps."""
    return "GIPFEL_RUN" in environment and environment.get("GIPFEL_ENGINE", "") not in {"", "host"}


def supervisor_process(environment: Mapping[str, str]) -> "subprocess.Popen[bytes] | ForkedProgram":
    """Start a supervisor that waits for a `StepPlan` on standard input."""
    variables = without_tokens(environment)
    if can_fork():
        from .supervisor import main  # noqa: PLC0415 - not needed where steps are only planned

        return ForkedProgram(supervisor_arguments(), main, variables)
    return subprocess.Popen(
        supervisor_arguments(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=variables,
        cwd="/",
        start_new_session=True,
    )


def start_step(
    spec: StepSpec,
    environment: Mapping[str, str] | None = None,
    *,
    job: StepJob | None = None,
    mounts: tuple[Mount, ...] = (),
) -> StepHandle:
    """Start a step, which ends with the calling process, and return its handle without waiting for its tasks.

    Parameters
    ----------
    environment
        Variables that describe the job of this process; by default those of the process.
    job
        Job to run in if `environment` does not describe it; only for callers on the host.
    mounts
        Further mounts of the containers; only for callers on the host.

    Raises
    ------
    GipfelError
        The step's directory can't be created, the host does not see it, or the job's broker refused.
    """
    environment = dict(os.environ) if environment is None else environment
    folder = Path(spec.folder)
    with ReportOSError(
        f"The step's directory {folder} can't be created", "Choose a directory that you can write to."
    ):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(folder, f"{spec.name}.json").unlink(missing_ok=True)
    if job is None and in_container(environment):
        return _through_broker(spec, environment)
    job = step_job_from_environment(environment) if job is None else job
    return _start_locally(StepPlan(spec=spec, job=job, folder=spec.folder, mounts=mounts), environment)


def _start_locally(plan: StepPlan, environment: Mapping[str, str]) -> StepHandle:
    process = supervisor_process(environment)
    assert process.stdin is not None  # noqa: S101 - it was started with a pipe
    process.stdin.write(plan.model_dump_json().encode() + b"\n")
    process.stdin.flush()
    return StepHandle(plan.spec, ChildSupervisor(process))


def _through_broker(spec: StepSpec, environment: Mapping[str, str]) -> StepHandle:
    path = broker_socket(environment)
    if path is None:
        raise no_answer()
    with contextlib.ExitStack() as stack:
        connected = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        with ReportOSError("The step can't be started"):
            request = StepRequest(
                spec=spec.model_dump(mode="json"),
                folder=PathRef.of(Path(spec.folder)),
                directory=PathRef.of(Path(spec.directory)) if spec.directory else None,
            )
            connected.settimeout(_START_S)
            connected.connect(str(path))
            connected.sendall(to_line(request))
            line, received = _receive_line(connected)
        read_answer(line, Started)
        connected.settimeout(None)
        # The step ends when the connection is closed.
        stack.pop_all()
    return StepHandle(spec, BrokerSupervisor(connected, received))


def _receive_line(connected: socket.socket) -> tuple[bytes, bytes]:
    """Return the first line, empty if the broker disconnects before its end, and what follows it."""
    content = b""
    while b"\n" not in content:
        piece = connected.recv(MAX_BYTES)
        if not piece:
            return b"", b""
        content += piece
    line, _, rest = content.partition(b"\n")
    return line, rest
