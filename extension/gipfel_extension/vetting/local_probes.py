"""Runs probes as child processes with a time limit; whoever is left of them is killed."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from typing import IO

from .fork_server import ForkServer
from .probing import LARGEST_ANSWER, ProbeAnswer, ProbeSpec, read_answer

_LONGEST_COMPLAINT = 20_000


class LocalProbes:
    """Probes with one Python of this node.

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
        """The probe's answer; everything that goes wrong is its `error`."""
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
