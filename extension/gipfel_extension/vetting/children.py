"""Child processes with a time limit; each leads its own session, which is killed as a whole.

Linux kills those of a process with a single thread when it ends. Probes are the small programs that measure:
`start_probe` starts one, `LocalProbes` also waits for its answer, and `python_for_probes` selects the image's
Python for them, because training will use it.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from gipfel_cluster.namespaces import die_with_parent

from ..kernels import find_image_python
from .probing import MAX_MESSAGE_BYTES, ForkServer, ProbeAnswer, ProbeSpec, read_answer

_MAX_OUTPUT = 8 << 20
_MAX_ERRORS = 16 << 10
_MAX_READS = 64
_REAP_LIMIT_S = 2.0
_POLL_S = 0.05
#: Seconds for which a process may be stopped by a signal before it is killed.
STOPPED_S = 5.0
_HAS_TORCH = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
_HAS_TORCH_LIMIT_S = 10.0


class Child:
    """Running child process and its output.

    Parameters
    ----------
    output, errors
        Descriptors of its standard output and standard error; they are closed at the end.
    limit_s
        Seconds after which it is killed.
    """

    def __init__(self, pid: int, *, output: int, errors: int | None, limit_s: float) -> None:
        self.pid = pid
        self.status: int | None = None
        self.killed = False
        self.timed_out = False
        self.stopped = False
        self.output = bytearray()
        self.errors = bytearray()
        self._streams = {output: (self.output, _MAX_OUTPUT)}
        if errors is not None:
            self._streams[errors] = (self.errors, _MAX_ERRORS)
        for stream in self._streams:
            os.set_blocking(stream, False)
        self._deadline = time.monotonic() + limit_s
        self._stopped_since: float | None = None

    @property
    def streams(self) -> tuple[int, ...]:
        """Return the descriptors to wait for."""
        return tuple(self._streams)

    def advance(self) -> bool:
        """Read available output and enforce the limits; return whether the child has ended."""
        self._read()
        if self.status is None:
            self.status = self._poll()
        if self.status is not None:
            self._finish()
            return True
        self._watch_stopped()
        if time.monotonic() > self._deadline:
            self.timed_out = True
            self.kill()
        elif self._stopped_since is not None and time.monotonic() - self._stopped_since > STOPPED_S:
            self.stopped = True
            self.kill()
        return self.status is not None

    def kill(self) -> None:
        """Kill the child and all processes of its session."""
        if self.status is not None:
            return
        self.stopped = self.stopped or _state(self.pid) == "T"
        self.killed = True
        self._kill()
        self.status = self._reaped()
        self._finish()

    def _poll(self) -> int | None:
        """Return the exit status; None while the child runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _kill(self) -> None:
        self._kill_session()
        with contextlib.suppress(ProcessLookupError):
            # It may not have created its session yet.
            os.kill(self.pid, signal.SIGKILL)

    def _reaped(self) -> int:
        end = time.monotonic() + _REAP_LIMIT_S
        while time.monotonic() < end:
            with contextlib.suppress(ChildProcessError):
                status = self._poll()
                if status is not None:
                    return status
            time.sleep(0.01)
        # The process hangs in a device or a file system: it is abandoned.
        return -signal.SIGKILL

    def _kill_session(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _watch_stopped(self) -> None:
        if _state(self.pid) != "T":
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = time.monotonic()

    def _read(self) -> None:
        for stream, (stored, max_bytes) in list(self._streams.items()):
            for _ in range(_MAX_READS):
                try:
                    piece = os.read(stream, 1 << 16)
                except BlockingIOError:
                    break
                except OSError:
                    piece = b""
                if not piece:
                    os.close(stream)
                    del self._streams[stream]
                    break
                stored.extend(piece)
                # Only the end is kept, because errors are printed last.
                del stored[:-max_bytes]

    def _finish(self) -> None:
        # Processes that it left behind in its session may keep the pipes open.
        self._read()
        self._kill_session()
        for stream in tuple(self._streams):
            os.close(stream)
            del self._streams[stream]


class ForkedChild(Child):
    """Child that the fork server has started, and whose process ID and end it reports on a socket."""

    def __init__(self, control: socket.socket, *, output: int, errors: int, limit_s: float) -> None:
        super().__init__(0, output=output, errors=errors, limit_s=limit_s)
        self._control = control

    def _poll(self) -> int | None:
        while True:
            try:
                message = self._control.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except OSError:
                message = b""
            report = json.loads(message) if message else {}
            if "pid" not in report:
                # When the server ends, its probes are killed.
                return int(report.get("status", -signal.SIGKILL))
            self.pid = int(report["pid"])

    def _kill(self) -> None:
        self._kill_session()

    def _kill_session(self) -> None:
        # The server does so too, unless it has ended; it alone can kill a child whose ID is not known yet.
        if self.pid and self.status is None:
            super()._kill_session()
        self._control.close()

    def _reaped(self) -> int:
        # The fork server waits for it.
        return -signal.SIGKILL


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def start_program(
    argv: Sequence[str], *, stdin: bytes, environment: Mapping[str, str], limit_s: float
) -> Child:
    """Start a program with these bytes as standard input.

    Raises
    ------
    OSError
        It can't be started.
    """
    with _pipes() as (output, errors, out, error_output), _memory_file(stdin) as file:
        process = subprocess.Popen(
            argv,
            stdin=file,
            stdout=out,
            stderr=error_output,
            env=dict(environment),
            start_new_session=True,
            # Code between fork and exec may deadlock if there are other threads.
            preexec_fn=die_with_parent if threading.active_count() == 1 else None,  # noqa: PLW1509
        )
    # `Child` waits for the process; without a return code, Popen would warn that nothing did.
    process.returncode = 0
    return Child(process.pid, output=output, errors=errors, limit_s=limit_s)


def start_forked(
    server: ForkServer, argv: Sequence[str], *, stdin: bytes, variables: Mapping[str, str], limit_s: float
) -> Child:
    """Fork a probe from the fork server, with these variables in addition to the server's.

    Raises
    ------
    OSError
        The server has ended.
    """
    with _pipes() as (output, errors, out, error_output), _memory_file(stdin) as file:
        control = server.fork(argv, variables, (file.fileno(), out, error_output))
    return ForkedChild(control, output=output, errors=errors, limit_s=limit_s)


def start_probe(
    spec: ProbeSpec,
    *,
    python: str,
    environment: Mapping[str, str],
    variables: Mapping[str, str],
    server: ForkServer | None,
) -> Child:
    """Start a probe with variables in addition to the environment; fork it if it needs torch.

    Raises
    ------
    OSError
        It can't be started.
    """
    if spec.torch and server is not None and server.can_fork:
        # If the server has just ended, the probe is started as a program below.
        with contextlib.suppress(OSError):
            return start_forked(
                server, spec.argv, stdin=spec.stdin(), variables=variables, limit_s=spec.time_limit_s
            )
    return start_program(
        [python, *spec.argv], stdin=spec.stdin(), environment={**environment, **variables},
        limit_s=spec.time_limit_s,
    )  # fmt: skip


def probe_answer(child: Child) -> ProbeAnswer:
    """Return the answer of a probe that has ended."""
    if child.stopped:
        return ProbeAnswer(error="The probe was stopped by SIGSTOP and did not continue.")
    status = None if child.timed_out else child.status
    return read_answer(bytes(child.output), status=status, errors=child.errors.decode(errors="replace"))


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
        self._python, self._environment, self._server = python, environment, server

    def run(self, spec: ProbeSpec) -> ProbeAnswer:
        """Return the probe's answer; a failure is described by its `error`."""
        if not self._python:
            return ProbeAnswer(error="This image has no Python.", missing="python")
        try:
            child = start_probe(
                spec, python=self._python, environment=self._environment, variables={}, server=self._server
            )
        except OSError as error:
            return ProbeAnswer(error=f"{self._python} can't be started: {error}.", missing="python")
        while not child.advance():
            select.select(child.streams, (), (), _POLL_S)
        return probe_answer(child)


def _memory_file(content: bytes) -> IO[bytes]:
    # In memory, because the node's disks may be faulty.
    file = os.fdopen(os.memfd_create("gipfel-probe"), "wb+")
    file.write(content)
    file.seek(0)
    return file


@contextlib.contextmanager
def _pipes() -> Iterator[tuple[int, int, int, int]]:
    """Yield the ends for reading and for writing of two pipes; close the latter, on an error all."""
    output, out = os.pipe()
    errors, error_output = os.pipe()
    try:
        yield output, errors, out, error_output
    except OSError:
        os.close(output)
        os.close(errors)
        raise
    finally:
        os.close(out)
        os.close(error_output)


def start_function(function: Callable[[], bytes], *, limit_s: float) -> Child:
    """Run a function in a forked child; the bytes that it returns are the child's output."""
    receive, send = os.pipe()
    errors, error_output = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            die_with_parent()
            os.setsid()
            empty = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((empty, 0), (error_output, 1), (error_output, 2)):
                os.dup2(source, target)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.close(receive)
            os.close(errors)
            with os.fdopen(send, "wb") as file:
                file.write(function())
            status = 0
        except BaseException as error:  # noqa: BLE001 - a child of a fork never returns into its parent's code
            os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace")[:2000])
        finally:
            os._exit(status)
    os.close(send)
    os.close(error_output)
    return Child(pid, output=receive, errors=errors, limit_s=limit_s)


def python_for_probes(environment: Mapping[str, str]) -> str:
    """Return the first Python on PATH outside Gipfel's own environment.

    Gipfel's own is returned if there is no other, or if it alone has torch.
    """
    own = sys.executable
    image_python = find_image_python(environment.get("PATH", os.defpath), Path(sys.prefix))
    if image_python is None or _has_torch(image_python, environment):
        return image_python or own
    return own if _has_torch(own, environment) else image_python


def _has_torch(python: str, environment: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", _HAS_TORCH], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_HAS_TORCH_LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
