"""The process that has imported torch, and the probes that it forks: one import for all probes of a node.

The server itself (`checks/probes/fork_server.py`) runs with the image's Python. Each probe is a process of
its own all the same: one that hangs or crashes leaves the others alone.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen

from .probing import probe_file

#: Seconds that importing torch may take, beside the run's own limit.
IMPORT_LIMIT_S = 120.0
_LARGEST = 1 << 16


class TorchImport(Frozen):
    """How importing torch went.

    Parameters
    ----------
    error
        Why probes must import it by themselves; empty where they can be forked.
    """

    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    error: str = ""


class ForkServer:
    """A process of the image's Python that imports torch and then forks probes.

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
        """Return whether nothing is known of the import yet; look at once, without waiting."""
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
    """A probe that the server has forked, by the socket on which its end is told."""

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
