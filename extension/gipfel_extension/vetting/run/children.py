"""Child processes with a time limit: each leads a session of its own, which is killed as a whole.

They are started by a process with a single thread, and the kernel kills them when that process is gone.
`probes_python` chooses the image's Python, because training will run with it.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from ...kernels.examine import find_image_python
from ..local_probes import Forked, ForkServer

_PR_SET_PDEATHSIG = 1
_LARGEST = 8 << 20
_LARGEST_SAID = 16 << 10
_PIECES = 64
_REAPED_WITHIN_S = 2.0
#: How long a process may be stopped by a signal before it counts as lost, in seconds.
STOPPED_S = 5.0
_C = ctypes.CDLL(None, use_errno=True)
_HAS_TORCH = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
_ASKED_S = 10.0


class Child:
    """Running child and its output so far.

    Parameters
    ----------
    output, errors
        Descriptors to read; they are closed at the end.
    limit_s
        Seconds until it is killed.
    """

    def __init__(self, pid: int, *, output: int, errors: int | None, limit_s: float) -> None:
        self.pid = pid
        self.status: int | None = None
        self.killed = False
        self.timed_out = False
        self.stopped = False
        self.output = bytearray()
        self.said = bytearray()
        self._streams = {output: (self.output, _LARGEST)}
        if errors is not None:
            self._streams[errors] = (self.said, _LARGEST_SAID)
        for stream in self._streams:
            os.set_blocking(stream, False)
        self.limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._stopped_since: float | None = None

    @property
    def streams(self) -> tuple[int, ...]:
        """Return the descriptors to wait for."""
        return tuple(self._streams)

    def advance(self) -> bool:
        """Read what is there, look at the clock; whether the child has ended."""
        self._read()
        if self.status is None:
            self.status = self._look()
        if self.status is not None:
            self._finish()
            return True
        self._look_whether_stopped()
        if time.monotonic() > self._deadline:
            self.timed_out = True
            self.kill()
        elif self._stopped_since is not None and time.monotonic() - self._stopped_since > STOPPED_S:
            self.stopped = True
            self.kill()
        return self.status is not None

    def kill(self) -> None:
        """Kill it with all that it has started."""
        if self.status is not None:
            return
        self.stopped = self.stopped or _state(self.pid) == "T"
        self.killed = True
        self._kill()
        self.status = self._reaped()
        self._finish()

    def _look(self) -> int | None:
        """Return its status where it has ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _kill(self) -> None:
        self._kill_session()
        with contextlib.suppress(ProcessLookupError):
            # It may not have got its session yet.
            os.kill(self.pid, signal.SIGKILL)

    def _reaped(self) -> int:
        end = time.monotonic() + _REAPED_WITHIN_S
        while time.monotonic() < end:
            with contextlib.suppress(ChildProcessError):
                status = self._look()
                if status is not None:
                    return status
            time.sleep(0.01)
        # Held by a device or a file system that does not answer: the run goes on without it.
        return -signal.SIGKILL

    def _kill_session(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _look_whether_stopped(self) -> None:
        if _state(self.pid) != "T":
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = time.monotonic()

    def _read(self) -> None:
        for stream, (stored, most) in list(self._streams.items()):
            for _ in range(_PIECES):
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
                # The end counts: what went wrong is said last.
                del stored[:-most]

    def _finish(self) -> None:
        # What it has left behind in its session may hold the pipes open.
        self._read()
        self._kill_session()
        for stream in tuple(self._streams):
            os.close(stream)
            del self._streams[stream]


class ForkedChild(Child):
    """Child that the fork server has started, which reports its end."""

    def __init__(self, forked: Forked, *, output: int, errors: int, limit_s: float) -> None:
        super().__init__(forked.pid, output=output, errors=errors, limit_s=limit_s)
        self._forked = forked

    def _look(self) -> int | None:
        status = self._forked.wait()
        self.pid = self._forked.pid
        return status

    def _kill(self) -> None:
        self._kill_session()

    def _kill_session(self) -> None:
        # Of one whose number is not known yet, the server hears by the socket that is closed.
        self._forked.kill()

    def _reaped(self) -> int:
        return -signal.SIGKILL


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent is gone."""
    _C.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start_program(
    argv: Sequence[str], *, given: bytes, environment: Mapping[str, str], limit_s: float
) -> Child:
    """Start a program with `given` on its standard input.

    Raises
    ------
    OSError
        It can't be started.
    """
    with _in_memory(given) as stdin:
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - there is one thread
        )
    assert process.stdout is not None  # noqa: S101 - pipes were asked for
    assert process.stderr is not None  # noqa: S101
    output, errors = os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())
    process.stdout.close()
    process.stderr.close()
    # It is waited for by its number here; the object would complain that it was not.
    process.returncode = 0
    return Child(process.pid, output=output, errors=errors, limit_s=limit_s)


def start_forked(
    server: ForkServer, argv: Sequence[str], *, given: bytes, variables: Mapping[str, str], limit_s: float
) -> Child:
    """Have the fork server start a probe, with these variables beside its own.

    Raises
    ------
    OSError
        The server is gone.
    """
    output, out = os.pipe()
    errors, said = os.pipe()
    try:
        with _in_memory(given) as stdin:
            forked = server.fork(argv, variables, (stdin.fileno(), out, said))
    except OSError:
        os.close(output)
        os.close(errors)
        raise
    finally:
        os.close(out)
        os.close(said)
    return ForkedChild(forked, output=output, errors=errors, limit_s=limit_s)


def _in_memory(given: bytes) -> IO[bytes]:
    # This node's disks may be what is wrong with it.
    file = os.fdopen(os.memfd_create("gipfel-probe"), "wb+")
    file.write(given)
    file.seek(0)
    return file


def start_function(function: Callable[[], bytes], *, limit_s: float) -> Child:
    """Start a function of this program in a child; what it returns is the child's output."""
    receive, send = os.pipe()
    errors, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            die_with_parent()
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (said, 1), (said, 2)):
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
    os.close(said)
    return Child(pid, output=receive, errors=errors, limit_s=limit_s)


def probes_python(environment: Mapping[str, str]) -> str:
    """Return the first Python on the PATH that is not this runtime's; this one where only it has torch."""
    own = sys.executable
    found = find_image_python(environment.get("PATH", os.defpath), Path(sys.prefix))
    if found is None or _has_torch(found, environment):
        return found or own
    return own if _has_torch(own, environment) else found


def _has_torch(python: str, environment: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", _HAS_TORCH], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_ASKED_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
