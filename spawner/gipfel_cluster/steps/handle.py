"""Start a step from anywhere in a job, on its node or on a machine alone, and hold what was started.

`start_step` returns a `StepHandle`. Its channel is a supervisor that is a child of this process, or one that
the job's broker started.
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
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from ..broker.messages import (
    MOST_BYTES,
    Ended,
    PathRef,
    Refusal,
    Signal,
    Started,
    StepRequest,
    broker_socket,
    to_line,
)
from ..edf.model import Mount
from ..environment import without_tokens
from ..model import GipfelError
from ..process.fork import ForkedProgram, can_fork
from ..regular_files import read_regular
from .container import setting_of_host
from .spec import StepPlan, StepSetting, StepSpec, StepState, TaskLocation

_LOST = 1
_MOST_BYTES = 1 << 20
# Longer than a supervisor takes to end everything by force.
_END_S = 60.0
_REPLIES: TypeAdapter[Ended | Refusal] = TypeAdapter(Ended | Refusal)
_START_S = 75.0
_REPLY: TypeAdapter[Refusal | Started] = TypeAdapter(Refusal | Started)


class _Channel(Protocol):
    """The connection to a supervisor."""

    def poll(self, seconds: float) -> int | None:
        """Return the exit status, if it comes within so many seconds."""

    def signal(self, number: int) -> None:
        """Send a signal."""

    def close(self) -> None:
        """Disconnect, which stops a step that runs."""


class StepHandle:
    """A step and its state; the step is stopped when the process that holds this ends.

    Use it as a context manager to have it stopped at the end of a block.
    """

    def __init__(self, spec: StepSpec, channel: _Channel) -> None:
        self.spec = spec
        self._channel = channel
        self._status: int | None = None

    def __enter__(self) -> "StepHandle":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def state(self) -> StepState:
        """Return the step's state as its supervisor wrote it; ``starting`` before that."""
        try:
            return StepState.model_validate_json(
                read_regular(Path(self.spec.folder, f"{self.spec.name}.json"), _MOST_BYTES)
            )
        except (OSError, ValidationError):
            return StepState(phase="starting")

    @property
    def step_id(self) -> str:
        """Return Slurm's ``job.step``, or ``local-<pid>``; empty until a task has started."""
        return self.state.step_id

    @property
    def tasks(self) -> tuple[TaskLocation, ...]:
        """Return where the tasks that have started run, by rank."""
        found = []
        for path in Path(self.spec.folder, f"{self.spec.name}.tasks").glob("*.json"):
            with contextlib.suppress(OSError, ValidationError):
                found.append(TaskLocation.model_validate_json(read_regular(path, _MOST_BYTES)))
        return tuple(sorted(found, key=lambda each: each.rank))

    def poll(self) -> int | None:
        """Return the exit status, the highest of the tasks'; None while the step runs."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end, at most `timeout` seconds; None where it still runs then."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._status is None:
            left = 3600.0 if end is None else end - time.monotonic()
            self._status = self._channel.poll(max(0.0, left))
            if end is not None and time.monotonic() >= end:
                break
        return self._status

    def signal(self, number: int) -> None:
        """Send SIGUSR1 or SIGUSR2 to the tasks, or SIGTERM to stop the step."""
        if self._status is None:
            self._channel.signal(number)

    def stop(self) -> int:
        """End the step: SIGTERM, SIGKILL after ``grace_s``; return its status when nothing of it is left."""
        self.signal(signal.SIGTERM)
        status = self.wait(self.spec.grace_s + _END_S)
        self._channel.close()
        self._status = _LOST if status is None else status
        return self._status


class ChildSupervisor:
    """A supervisor that is a child of this process."""

    def __init__(self, process: "subprocess.Popen[bytes] | ForkedProgram") -> None:
        self._process = process

    def poll(self, seconds: float) -> int | None:
        """Return the exit status, if it comes within so many seconds."""
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
        """Close its input, which stops a step that runs."""
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


class BrokerSupervisor:
    """A supervisor that the job's broker started, over the connection to it."""

    def __init__(self, connected: socket.socket, rest: bytes) -> None:
        self._socket = connected
        self._rest = rest

    def poll(self, seconds: float) -> int | None:
        """Return the exit status, if it comes within so many seconds; 1 where the broker is gone."""
        end = time.monotonic() + seconds
        while b"\n" not in self._rest:
            try:
                ready, _, _ = select.select([self._socket], [], [], max(0.0, end - time.monotonic()))
                if not ready:
                    return None
                piece = self._socket.recv(MOST_BYTES)
            except OSError:
                piece = b""
            if not piece:
                return _LOST
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        self.close()
        with contextlib.suppress(ValidationError):
            reply = _REPLIES.validate_json(line)
            if isinstance(reply, Ended):
                return reply.status
        return _LOST

    def signal(self, number: int) -> None:
        """Send a signal."""
        with contextlib.suppress(OSError):
            self._socket.sendall(to_line(Signal(signal=number)))

    def close(self) -> None:
        """Disconnect, which stops a step that runs."""
        self._socket.close()


def supervisor_arguments() -> tuple[str, ...]:
    """Return the argv of a supervisor, which reads its plan from standard input."""
    return (sys.executable, "-I", "-m", "gipfel_cluster.steps.supervisor")


def in_container(environment: Mapping[str, str]) -> bool:
    """Return whether a process is in the container of a job, whose broker starts its steps."""
    return "GIPFEL_RUN" in environment and environment.get("GIPFEL_ENGINE", "") not in {"", "host"}


def supervisor_process(environment: Mapping[str, str]) -> "subprocess.Popen[bytes] | ForkedProgram":
    """Start a supervisor that waits for its plan on standard input."""
    variables = without_tokens(environment)
    if can_fork():
        from .supervisor import main  # noqa: PLC0415 - not where steps are only planned

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
    setting: StepSetting | None = None,
    mounts: tuple[Mount, ...] = (),
) -> StepHandle:
    """Start a step; it ends with the process that calls this.

    Parameters
    ----------
    environment
        The variables of this process, which describe the job around it.
    setting
        On the host: the job, where the variables describe another one.
    mounts
        On the host: more folders that the containers show.

    Raises
    ------
    GipfelError
        The folder can't be made, the host does not see it, or the job's broker refused.
    """
    environment = dict(os.environ) if environment is None else environment
    folder = Path(spec.folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(folder, f"{spec.name}.json").unlink(missing_ok=True)
    except OSError as error:
        raise GipfelError(
            f"The step's folder {folder} can't be made: {error.strerror}.", "Choose another one."
        ) from error
    if setting is None and in_container(environment):
        return _through_broker(spec, environment)
    setting = setting_of_host(environment) if setting is None else setting
    return _here(StepPlan(spec=spec, setting=setting, folder=spec.folder, mounts=mounts), environment)


def _here(plan: StepPlan, environment: Mapping[str, str]) -> StepHandle:
    process = supervisor_process(environment)
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    process.stdin.write(plan.model_dump_json().encode() + b"\n")
    process.stdin.flush()
    return StepHandle(plan.spec, ChildSupervisor(process))


def _through_broker(spec: StepSpec, environment: Mapping[str, str]) -> StepHandle:
    path = broker_socket(environment)
    if path is None:
        raise _gone()
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        request = StepRequest(
            spec=spec.model_dump(mode="json"),
            folder=PathRef.of(Path(spec.folder)),
            directory=PathRef.of(Path(spec.directory)) if spec.directory else None,
        )
        connected.settimeout(_START_S)
        connected.connect(str(path))
        connected.sendall(to_line(request))
        line, rest = _line(connected)
        reply = _REPLY.validate_json(line)
        if isinstance(reply, Refusal):
            raise GipfelError(reply.problem, reply.fix)  # noqa: TRY301 - closed like the others
        connected.settimeout(None)
    except OSError as error:
        connected.close()
        raise GipfelError(f"The step can't be started: {error.strerror or error}.") from error
    except ValidationError as error:
        connected.close()
        raise GipfelError(
            "The job's broker gave an answer of another version.",
            "Use the gipfel of the runtime that this job runs with.",
        ) from error
    except BaseException:
        connected.close()
        raise
    return StepHandle(spec, BrokerSupervisor(connected, rest))


def _line(connected: socket.socket) -> tuple[bytes, bytes]:
    """Return the first line that comes, and what came behind it."""
    content = b""
    while b"\n" not in content:
        piece = connected.recv(MOST_BYTES)
        if not piece:
            raise _gone()
        content += piece
    line, _, rest = content.partition(b"\n")
    return line, rest


def _gone() -> GipfelError:
    return GipfelError("This job's broker does not answer.", "Restart the server.")
