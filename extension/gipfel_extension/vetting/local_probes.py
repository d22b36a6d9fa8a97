"""Run probes on this node: as child processes with a time limit, or forked from a server that imported torch.

`LocalProbes` is the `ProbeRunner`. `ForkServer` imports torch once for all probes of a node; the server
itself (`checks/probes/fork_server.py`) runs with the image's Python. A forked probe is a process of its own:
one that hangs or crashes leaves the others alone.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Annotated

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen

from .probing import LARGEST_ANSWER, ProbeAnswer, ProbeSpec, probe_file, read_answer

#: Seconds that importing torch may take, beside the run's own limit.
IMPORT_LIMIT_S = 120.0
_LARGEST = 1 << 16
_LONGEST_COMPLAINT = 20_000


class TorchImport(Frozen):
    """Result of importing torch.

    Parameters
    ----------
    error
        Why probes must import it by themselves; empty where they can be forked.
    """

    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    error: str = ""


class ForkServer:
    """Process of the image's Python that imports torch and then forks probes.

    Parameters
    ----------
    python
        The image's own.
    environment
        What the user's processes have.

    Raises
    ------
    OSError
        It can't be started.
    """

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [python, probe_file("fork_server"), str(theirs.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._late_at = time.monotonic() + IMPORT_LIMIT_S
        self._ended = False
        #: None until torch is imported, and for good where the process ended before.
        self.imported: TorchImport | None = None
        #: Whether the import took longer than it may.
        self.late = False

    @property
    def pid(self) -> int:
        """Return its process number."""
        return self._process.pid

    @property
    def importing(self) -> bool:
        """Return whether the import is still running; never waits."""
        if self.imported is None and not self._ended and not self.late:
            self._listen()
            self.late = self.imported is None and not self._ended and time.monotonic() > self._late_at
            if self.late:
                self.close()
        return self.imported is None and not self._ended and not self.late

    @property
    def forks(self) -> bool:
        """Return whether probes can be forked."""
        return self.imported is not None and not self.imported.error and not self._ended

    def fork(self, argv: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> "Forked":
        """Have a probe forked, with these variables beside the server's own.

        Parameters
        ----------
        streams
            Descriptors of its standard input, output and errors; they stay the caller's.

        Raises
        ------
        OSError
            The server is gone.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"argv": list(argv), "environment": dict(environment)}).encode()
        try:
            socket.send_fds(self._socket, [request], [*streams, theirs.fileno()], socket.MSG_DONTWAIT)
        except OSError:
            self._ended = True
            ours.close()
            raise
        finally:
            theirs.close()
        return Forked(ours)

    def close(self) -> None:
        """End it, with every probe that it has forked."""
        self._ended = True
        self._socket.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # One that hangs in a file system does not die even then; it is left behind.
            self._process.wait(2)

    def _listen(self) -> None:
        try:
            message = self._socket.recv(_LARGEST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        try:
            self.imported = TorchImport.model_validate_json(message)
        except ValidationError:
            # It was killed, or crashed: each probe will show it by itself.
            self._ended = True


class Forked:
    """Probe that the server has forked, with the socket that reports its end."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        #: 0 until it has started.
        self.pid = 0
        self.status: int | None = None

    def wait(self, seconds: float = 0.0) -> int | None:
        """Return its exit status, negative for a signal; None where it has not ended within so long."""
        end = time.monotonic() + seconds
        while self.status is None:
            self._control.settimeout(max(0.0, end - time.monotonic()))
            try:
                message = self._control.recv(_LARGEST)
            except (BlockingIOError, TimeoutError):
                return None
            except OSError:
                message = b""
            self._take(message)
        return self.status

    def _take(self, message: bytes) -> None:
        told = json.loads(message) if message else {}
        self.pid = int(told.get("pid", self.pid))
        if "pid" not in told:
            # A server that is gone has taken the probe along.
            self.status = int(told.get("status", -signal.SIGKILL))

    def kill(self) -> None:
        """Kill it with all that it has started, and listen no more."""
        if self.pid > 0 and self.status is None:
            # The server does so as well, if it still can.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._control.close()


class LocalProbes:
    """Runs probes with one Python of this node.

    Parameters
    ----------
    python
        The image's own; empty where the image has none.
    environment
        What the user's processes have.
    server
        Forks the probes that import torch; without one, each imports it by itself.
    """

    def __init__(self, python: str, environment: Mapping[str, str], server: ForkServer | None = None) -> None:
        self._python, self._environment, self._server = python, dict(environment), server

    def run(self, spec: ProbeSpec) -> ProbeAnswer:
        """Return the probe's answer; every failure is its `error`."""
        if not self._python:
            return ProbeAnswer(error="This image has no Python.", missing="python")
        # Files and not pipes: a probe that prints without end must not fill anybody's memory.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as said:
            try:
                status = self._status(spec, output, said)
            except OSError as error:
                return ProbeAnswer(error=f"{self._python} can't be started: {error}.", missing="python")
            return read_answer(
                _tail(output, LARGEST_ANSWER),
                status=status,
                said=_tail(said, _LONGEST_COMPLAINT).decode(errors="replace"),
            )

    def _status(self, spec: ProbeSpec, output: IO[bytes], said: IO[bytes]) -> int | None:
        """Run the probe to its end; None where it was killed at its time limit."""
        if spec.torch and self._server is not None and self._server.forks:
            # A server that is gone by now is no reason not to measure.
            with contextlib.suppress(OSError):
                return _forked(self._server, spec, output, said)
        process = subprocess.Popen(
            [self._python, *spec.argv], stdin=subprocess.PIPE, stdout=output, stderr=said,
            env=self._environment, start_new_session=True,
        )  # fmt: skip
        return _ended(process, spec)


def _forked(server: ForkServer, spec: ProbeSpec, output: IO[bytes], said: IO[bytes]) -> int | None:
    with tempfile.TemporaryFile() as given:
        given.write(spec.stdin())
        given.seek(0)
        forked = server.fork(spec.argv, {}, (given.fileno(), output.fileno(), said.fileno()))
        try:
            return forked.wait(spec.time_limit_s)
        finally:
            forked.kill()


def _ended(process: "subprocess.Popen[bytes]", spec: ProbeSpec) -> int | None:
    try:
        with contextlib.suppress(BrokenPipeError):
            process.communicate(spec.stdin(), timeout=spec.time_limit_s)
        status: int | None = process.wait(timeout=spec.time_limit_s)
    except subprocess.TimeoutExpired:
        status = None
    finally:
        # The whole group: a library's children outlive their parent.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # One that hangs in the driver does not die even then; it is left behind.
            process.wait(timeout=5)
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
    return status


def _tail(file: IO[bytes], most: int) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - most))
    return file.read()
