"""A step that was started: whether it runs, how it ended, and how to end it."""

import contextlib
import select
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from ..broker.messages import MOST_BYTES, Ended, Refusal, Signal, to_line
from ..forking import ForkedProgram
from ..regular_files import read_regular
from .spec import StepSpec, StepState, TaskPlace

_LOST = 1
_MOST_BYTES = 1 << 20
# Longer than a keeper takes to end everything by force.
_END_S = 60.0
_SAID: TypeAdapter[Ended | Refusal] = TypeAdapter(Ended | Refusal)


class _Channel(Protocol):
    """The connection to a keeper."""

    def poll(self, seconds: float) -> int | None:
        """The exit status, if it comes within so many seconds."""

    def signal(self, number: int) -> None:
        """Send a signal."""

    def close(self) -> None:
        """Let go, which stops a step that runs."""


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
        """What the step's keeper says of it; ``starting`` before it has said anything."""
        try:
            return StepState.model_validate_json(
                read_regular(Path(self.spec.folder, f"{self.spec.name}.json"), _MOST_BYTES)
            )
        except (OSError, ValidationError):
            return StepState(phase="starting")

    @property
    def step_id(self) -> str:
        """Slurm's ``job.step``, or ``local-<pid>``; empty until a task has started."""
        return self.state.step_id

    @property
    def tasks(self) -> tuple[TaskPlace, ...]:
        """Where the tasks that have started run, by rank."""
        found = []
        for path in Path(self.spec.folder, f"{self.spec.name}.tasks").glob("*.json"):
            with contextlib.suppress(OSError, ValidationError):
                found.append(TaskPlace.model_validate_json(read_regular(path, _MOST_BYTES)))
        return tuple(sorted(found, key=lambda each: each.rank))

    def poll(self) -> int | None:
        """The exit status, the highest of the tasks'; None while the step runs."""
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
        """End the step: SIGTERM, SIGKILL after ``grace_s``; returns the status when nothing of it is left."""
        self.signal(signal.SIGTERM)
        status = self.wait(self.spec.grace_s + _END_S)
        self._channel.close()
        self._status = _LOST if status is None else status
        return self._status


class OwnKeeper:
    """A keeper that is a child of this process."""

    def __init__(self, process: "subprocess.Popen[bytes] | ForkedProgram") -> None:
        self._process = process

    def poll(self, seconds: float) -> int | None:
        """The exit status, if it comes within so many seconds."""
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
        """Let go."""
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


class BrokersKeeper:
    """A keeper that the job's broker started, over the connection to it."""

    def __init__(self, connected: socket.socket, rest: bytes) -> None:
        self._socket = connected
        self._rest = rest

    def poll(self, seconds: float) -> int | None:
        """The exit status, if it comes within so many seconds; 1 where the broker is gone."""
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
            said = _SAID.validate_json(line)
            if isinstance(said, Ended):
                return said.status
        return _LOST

    def signal(self, number: int) -> None:
        """Send a signal."""
        with contextlib.suppress(OSError):
            self._socket.sendall(to_line(Signal(signal=number)))

    def close(self) -> None:
        """Let go."""
        self._socket.close()
