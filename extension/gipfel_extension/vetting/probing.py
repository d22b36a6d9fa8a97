"""Probes: single-file programs that the image's own Python runs, and how they are started on this node.

A probe reads one JSON document from its standard input and prints one line ``{"gipfel_probe": 1, …}``;
other lines, such as a library's, are skipped. It gets rank, world size and master through the environment,
as torch.distributed reads them.

`LocalProbes` runs probes on this node, one at a time: it starts a probe as a child process with a time
limit, or has it forked by `ForkServer`, which imports torch once for all probes of a node. The program of
that server is `checks/probes/fork_server.py`. A forked probe has its own process: if it hangs or crashes, the
others continue.
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
from pathlib import Path
from typing import IO, Annotated

from pydantic import Field, JsonValue, ValidationError

from gipfel_cluster.model import Frozen

PROBES = Path(__file__).parent / "checks" / "probes"
#: Key that marks the line of a probe's output that is its answer.
ANSWER_KEY = "gipfel_probe"
#: Largest number of bytes that are read from a probe's output.
MAX_ANSWER_BYTES = 4_000_000


class ProbeSpec(Frozen):
    """Command of a probe: the image's Python with `argv`, and `request` as JSON on standard input.

    Parameters
    ----------
    argv
        Arguments of the image's Python: the probe's file.
    request
        The probe's parameters.
    time_limit_s
        Seconds after which the process and all its children are killed.
    per_gpu
        Whether a group has one rank per GPU of each node, else one rank per node.
    torch
        Whether it imports torch. It is then forked by the fork server, where there is one.
    """

    argv: tuple[str, ...]
    request: dict[str, JsonValue] = Field(default_factory=dict)
    time_limit_s: float = 60.0
    per_gpu: bool = False
    torch: bool = False

    def stdin(self) -> bytes:
        """Return the request as the probe's standard input."""
        return json.dumps(self.request).encode()


class ProbeAnswer(Frozen):
    """Answer of one probe process.

    Parameters
    ----------
    error
        Why there is no measurement, as one sentence; empty for a measurement.
    samples
        Samples in `unit`, without the first one, which includes the warm-up.
    wrong
        Number of wrong values in the computed or transferred data.
    missing
        The module or tool that the image lacks; else empty.
    """

    error: str = ""
    samples: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = ()
    unit: str = ""
    wrong: Annotated[int, Field(ge=0)] = 0
    missing: str = ""
    devices: tuple[dict[str, JsonValue], ...] = ()
    evidence: dict[str, JsonValue] = Field(default_factory=dict)


def probe_file(name: str) -> str:
    """Return the path of a shipped probe."""
    return str(PROBES / f"{name}.py")


def read_answer(output: bytes, *, status: int | None, errors: str = "") -> ProbeAnswer:
    """Return the probe's answer, or an answer with the error.

    Parameters
    ----------
    status
        Exit status; negative for a signal, None if it was killed at its time limit.
    errors
        The end of its standard error.
    """
    if status is None:
        return ProbeAnswer(error="The probe did not end within its time limit.")
    for line in reversed(output[-MAX_ANSWER_BYTES:].decode(errors="replace").splitlines()):
        if not line.startswith("{"):
            continue
        try:
            document = json.loads(line)
            if document.pop(ANSWER_KEY, None) == 1:
                return ProbeAnswer.model_validate(document)
        except (ValueError, ValidationError, AttributeError, RecursionError):
            continue
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "nothing")
    ending = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
    return ProbeAnswer(error=f"The probe {ending} without an answer. Its last output: {last[:300]}")


#: Seconds that importing torch may take.
IMPORT_LIMIT_S = 120.0
_MAX_MESSAGE_BYTES = 1 << 16
_MAX_STDERR_BYTES = 20_000


class TorchImport(Frozen):
    """Result of importing torch in the fork server.

    Parameters
    ----------
    error
        Why probes can't be forked and must import torch themselves; empty if they can.
    """

    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    error: str = ""


class ForkServer:
    """Process with the image's Python that imports torch once and then forks probes.

    Parameters
    ----------
    python
        The image's Python.
    environment
        Environment variables of the user's processes.

    Raises
    ------
    OSError
        The process can't be started.
    """

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self._socket, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [python, probe_file("fork_server"), str(remote.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, pass_fds=(remote.fileno(),), start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._socket.close()
            raise
        finally:
            remote.close()
        self._import_deadline = time.monotonic() + IMPORT_LIMIT_S
        self._ended = False
        #: None until torch is imported; stays None if the process ends before.
        self.imported: TorchImport | None = None
        #: Whether the import exceeded its time limit.
        self.timed_out = False

    @property
    def pid(self) -> int:
        """Return the process ID of the server."""
        return self._process.pid

    @property
    def importing(self) -> bool:
        """Return whether the import is still running, without waiting."""
        if self.imported is None and not self._ended and not self.timed_out:
            self._receive_import()
            self.timed_out = (
                self.imported is None and not self._ended and time.monotonic() > self._import_deadline
            )
            if self.timed_out:
                self.close()
        return self.imported is None and not self._ended and not self.timed_out

    @property
    def can_fork(self) -> bool:
        """Return whether probes can be forked."""
        return self.imported is not None and not self.imported.error and not self._ended

    def fork(
        self, argv: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]
    ) -> "ForkedProbe":
        """Fork a probe, with these variables in addition to the server's environment.

        Parameters
        ----------
        streams
            Descriptors of its standard input, output and error; the caller closes them.

        Raises
        ------
        OSError
            The server has ended.
        """
        local, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"argv": list(argv), "environment": dict(environment)}).encode()
        try:
            socket.send_fds(self._socket, [request], [*streams, remote.fileno()], socket.MSG_DONTWAIT)
        except OSError:
            self._ended = True
            local.close()
            raise
        finally:
            remote.close()
        return ForkedProbe(local)

    def close(self) -> None:
        """Kill the server and every probe that it has forked."""
        self._ended = True
        self._socket.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # A process that hangs in a file system does not die even then.
            self._process.wait(2)

    def _receive_import(self) -> None:
        try:
            message = self._socket.recv(_MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        try:
            self.imported = TorchImport.model_validate_json(message)
        except ValidationError:
            # The server was killed or crashed: each probe imports torch itself.
            self._ended = True


class ForkedProbe:
    """Probe that the fork server has forked, with the socket on which its end is reported."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        #: 0 until it has started.
        self.pid = 0
        self.status: int | None = None

    def wait(self, seconds: float = 0.0) -> int | None:
        """Return the exit status, negative for a signal; None if the probe still runs after `seconds`."""
        end = time.monotonic() + seconds
        while self.status is None:
            self._control.settimeout(max(0.0, end - time.monotonic()))
            try:
                message = self._control.recv(_MAX_MESSAGE_BYTES)
            except (BlockingIOError, TimeoutError):
                return None
            except OSError:
                message = b""
            self._on_message(message)
        return self.status

    def _on_message(self, message: bytes) -> None:
        report = json.loads(message) if message else {}
        self.pid = int(report.get("pid", self.pid))
        if "pid" not in report:
            # When the server ends, its probes are killed.
            self.status = int(report.get("status", -signal.SIGKILL))

    def kill(self) -> None:
        """Kill the probe and all processes of its session, and close the socket."""
        if self.pid > 0 and self.status is None:
            # The server does so too, unless it has ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._control.close()


class LocalProbes:
    """Runner of probes with one Python of this node, one at a time.

    Parameters
    ----------
    python
        The image's Python; empty if the image has none.
    environment
        Environment variables of the user's processes.
    server
        Forks the probes that import torch; without a server, each probe imports it.
    """

    def __init__(self, python: str, environment: Mapping[str, str], server: ForkServer | None = None) -> None:
        self._python, self._environment, self._server = python, dict(environment), server

    def run(self, spec: ProbeSpec) -> ProbeAnswer:
        """Return the probe's answer; a failure is described by its `error`."""
        if not self._python:
            return ProbeAnswer(error="This image has no Python.", missing="python")
        # Files, not pipes: a probe that prints without end must not fill the memory.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                status = self._status(spec, output, errors)
            except OSError as error:
                return ProbeAnswer(error=f"{self._python} can't be started: {error}.", missing="python")
            return read_answer(
                _tail(output, MAX_ANSWER_BYTES),
                status=status,
                errors=_tail(errors, _MAX_STDERR_BYTES).decode(errors="replace"),
            )

    def _status(self, spec: ProbeSpec, output: IO[bytes], errors: IO[bytes]) -> int | None:
        """Run the probe and return its exit status; None if it was killed at its time limit."""
        if spec.torch and self._server is not None and self._server.can_fork:
            # If the server has just ended, the probe is started as a child process below.
            with contextlib.suppress(OSError):
                return _run_forked(self._server, spec, output, errors)
        process = subprocess.Popen(
            [self._python, *spec.argv], stdin=subprocess.PIPE, stdout=output, stderr=errors,
            env=self._environment, start_new_session=True,
        )  # fmt: skip
        return _await_end(process, spec)


def _run_forked(server: ForkServer, spec: ProbeSpec, output: IO[bytes], errors: IO[bytes]) -> int | None:
    with memory_file(spec.stdin()) as stdin:
        forked = server.fork(spec.argv, {}, (stdin.fileno(), output.fileno(), errors.fileno()))
        try:
            return forked.wait(spec.time_limit_s)
        finally:
            forked.kill()


def memory_file(content: bytes) -> IO[bytes]:
    """Return an open file with this content, for a probe's standard input."""
    # In memory, because the node's disks may be faulty.
    file = os.fdopen(os.memfd_create("gipfel-probe"), "wb+")
    file.write(content)
    file.seek(0)
    return file


def _await_end(process: "subprocess.Popen[bytes]", spec: ProbeSpec) -> int | None:
    try:
        with contextlib.suppress(BrokenPipeError):
            process.communicate(spec.stdin(), timeout=spec.time_limit_s)
        status: int | None = process.wait(timeout=spec.time_limit_s)
    except subprocess.TimeoutExpired:
        status = None
    finally:
        # The whole process group: children of libraries outlive their parent.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # A process that hangs in the driver does not die even then.
            process.wait(timeout=5)
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
    return status


def _tail(file: IO[bytes], max_bytes: int) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - max_bytes))
    return file.read()
