"""Where the recorders of a job's other nodes send what they see: a process here, with keys of this job."""

import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_READY_S = 30.0
_END_S = 5.0


class FanInHead:
    """The receiver beside the job's first recorder; without it the other nodes are recorded all the same.

    Parameters
    ----------
    sockets
        Where readers on this node look for live streams.
    host
        This node, as the others know it.
    log
        What it says goes here.
    """

    def __init__(self, sockets: Path, host: str, environment: Mapping[str, str], log: Path) -> None:
        self._argv = [sys.executable, "-I", "-m", "gipfel_extension.telemetry.fan_in.receiver"]
        self._argv += ["--sockets", str(sockets), f"--with-parent={os.getpid()}"]
        self._environment = {name: value for name, value in environment.items() if "TOKEN" not in name}
        self._host = host
        self._log = log
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._said: dict[str, Any] = {}

    def ready(self) -> tuple[list[str], dict[str, str]]:
        """The recorder's arguments and variables that lead here; started where it doesn't run, else empty."""
        with self._lock:
            if not self._stopped and (self._process is None or self._process.poll() is not None):
                self._start()
        if not self._said:
            return [], {}
        return ["--fan-in", f"tcp://{self._host}:{self._said['port']}"], dict(self._said["environment"])

    def processes(self) -> frozenset[int]:
        """The receiver's process."""
        return frozenset() if self._process is None else frozenset({self._process.pid})

    def stop(self) -> None:
        """End it, after 5 s by force."""
        with self._lock:
            self._stopped = True
            process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        # A successor takes the keys and the port that the senders know.
        again = ["--port", str(self._said["port"])] if self._said else []
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            log = os.open(self._log, flags, 0o600)
            try:
                process = subprocess.Popen(
                    [*self._argv, *again],
                    env={**self._environment, **self._said.get("head", {})},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            finally:
                os.close(log)
        except OSError:
            return
        self._process = process
        line = _first_line(process)
        with suppress(ValueError, KeyError, TypeError):
            said = {**self._said, **json.loads(line)}
            self._said = {name: said[name] for name in ("port", "environment", "head")}


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    """What it says when it is ready; nothing where that takes too long."""
    if process.stdout is None:
        return b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(_READY_S) else b""
    process.stdout.close()
    return line
