"""Probes: single-file programs that the image's own Python runs, and how they are started on this node.

A probe reads one JSON document from its standard input and prints one line ``{"gipfel_probe": 1, …}``;
other lines, such as a library's, are skipped. It gets rank, world size and master through the environment,
as torch.distributed reads them.

`children` starts probes on this node: as child processes, or forked by `ForkServer`, which imports torch
once for all probes of a node. The program of that server is `checks/probes/fork_server.py`. A forked probe
has its own process: if it hangs or crashes, the others continue.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

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
#: Largest message of the fork server.
MAX_MESSAGE_BYTES = 1 << 16


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
    ) -> socket.socket:
        """Fork a probe, with these variables in addition to the server's environment.

        Return the socket on which the server reports the probe's process ID and exit status; closing it kills
        the probe.

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
        return local

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
            message = self._socket.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        try:
            self.imported = TorchImport.model_validate_json(message)
        except ValidationError:
            # The server was killed or crashed: each probe imports torch itself.
            self._ended = True
