"""The broker of a hub as a separate process, with Slurm's commands, which the hub lacks."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from one_machine import OneMachine, wait_until

from gipfel_cluster.model import GipfelError


class BrokerProcess:
    """``python -m gipfel_cluster.broker.hub`` from ``__enter__`` to ``__exit__``; it may be started again.

    Parameters
    ----------
    path
        Where it listens; its folder is made.
    cluster
        What it asks.
    python
        An interpreter that the hub's users can execute.
    more
        Further words of its command line.
    """

    def __init__(self, path: Path, cluster: OneMachine, python: str, *more: str) -> None:
        self.path = path
        words = ("--socket", str(path), "--python", python, *more)
        self._argv = (sys.executable, "-I", "-m", "gipfel_cluster.broker.hub", *words)
        self._environment = {**os.environ, **cluster.environment}
        self._process: subprocess.Popen[bytes] | None = None
        self.log = path.with_suffix(".log")

    def __enter__(self) -> "BrokerProcess":
        self.start()
        if not wait_until(self._answers, 20):
            raise GipfelError("The broker did not get ready.", self.log.read_text())
        return self

    def start(self) -> None:
        """Start it, and do not wait for it."""
        self.path.parent.mkdir(mode=0o755, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stderr=log, env=self._environment, cwd="/"
            )

    def __exit__(self, *exception: object) -> None:
        self.end()

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it; a second call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(15)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Say one request as the hub would, and return the answer; empty where there is none."""
        return said(self.path, (json.dumps(request) + "\n").encode())

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.ask({"kind": "partitions"}))
        return False


def said(path: Path, content: bytes) -> dict[str, Any]:
    """Return what a socket answers to some bytes."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(path))
        client.sendall(content)
        with client.makefile("rb") as lines:
            line = lines.readline()
    answer: dict[str, Any] = json.loads(line) if line else {}
    return answer
