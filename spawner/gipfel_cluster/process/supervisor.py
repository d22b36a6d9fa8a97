"""Keep one recorder running: restart it when it dies, and record how it ended.

``python -m gipfel_cluster.process.supervisor TELEMETRY NODE COMMAND...`` does so on the nodes where Slurm
starts the recorder, and imports little. The recorder ends with this process; this process ends on a signal or
with its parent.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..environment import without_tokens
from ..regular_files import open_log

#: This module's name, for ``python -m`` on the nodes where Slurm starts it.
PROGRAM = "gipfel_cluster.process.supervisor"

#: Pause before a restart: doubled after each end, and reset after a recorder has run for the maximum.
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0
#: Seconds that a recorder has to write its samples when it ends; part of
#: `scheduler.supervisor.GRACE_SECONDS`.
FLUSH_S = 15.0
_POLL_S = 1.0


class RecorderSupervisor:
    """A recorder in its own session, which the workload's signals do not reach; it is restarted when it dies.

    Parameters
    ----------
    command
        The recorder's argv; the recorder ends by itself when this process ends.
    telemetry
        Directory for ``<node>.recorder.json``, which describes the recorder's last end, or its last
        unexpected end if there was one.
    node
        Name of this node, for file names and events.
    environment
        Environment variables of the recorder; tokens are removed.

    Raises
    ------
    OSError
        The recorder can't be started.
    """

    def __init__(
        self, command: Sequence[str], telemetry: Path, node: str, environment: Mapping[str, str]
    ) -> None:
        self._command = tuple(command)
        self._environment = without_tokens(environment)
        self._end_file = telemetry / f"{node}.recorder.json"
        self._events = telemetry / f"{node}-supervisor.events.jsonl"
        self._node = node
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._unexpected_ends = 0
        self._process = self._start()
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Return the recorder's process id."""
        return self._process.pid

    def stop_restarting(self) -> int:
        """Stop restarting the recorder, and return the id of its current process."""
        with self._lock:
            self._ending.set()
            return self.pid

    def stop(self) -> None:
        """End the recorder with SIGTERM, so that it closes its segment; after 15 s with SIGKILL."""
        self.stop_restarting()
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(FLUSH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join(FLUSH_S)

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _supervise(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            started = time.monotonic()
            status = self._process.wait()
            if status == 0:
                # It received a signal to end. Slurm signals this process as well, perhaps a moment later.
                self._ending.wait(pause)
            expected = self._ending.is_set()
            if time.monotonic() - started > _MAX_PAUSE_S:
                pause = _FIRST_PAUSE_S
            self._unexpected_ends += not expected
            self._write_end(status, expected=expected)
            if not expected:
                append_event(
                    self._events,
                    "recorder_lost",
                    self._node,
                    f"The recorder ended with {_describe_status(status)}. It is restarted in {pause:g} s.",
                )
            self._ending.wait(pause)
            with self._lock:
                if self._ending.is_set():
                    return
                try:
                    self._process = self._start()
                except OSError as error:
                    append_event(
                        self._events,
                        "recorder_lost",
                        self._node,
                        f"The recorder can't be restarted: {error.strerror}.",
                    )
                    return
            pause = min(2 * pause, _MAX_PAUSE_S)

    def _write_end(self, status: int, *, expected: bool) -> None:
        if expected and self._unexpected_ends:
            # An expected end must not overwrite an unexpected one.
            return
        end = {"time_ns": time.time_ns(), "status": status, "description": _describe_status(status)}
        text = json.dumps({**end, "expected": expected, "unexpected_ends": self._unexpected_ends}) + "\n"
        part = self._end_file.with_name(f".{self._end_file.name}.{os.getpid()}")
        with suppress(OSError):
            with os.fdopen(open_log(part, truncate=True), "w") as file:
                file.write(text)
            part.replace(self._end_file)


def append_event(path: Path, kind: str, node: str, message: str) -> None:
    """Append an event of a node to a file; `gipfel_extension.telemetry.events` reads it."""
    event = {"time_ns": time.time_ns(), "node": node, "kind": kind, "device": "", "message": message}
    with suppress(OSError), os.fdopen(open_log(path), "ab") as file:
        file.write(json.dumps(event).encode() + b"\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a recorder until SIGTERM, SIGINT, SIGHUP or SIGUSR2 arrives, or the parent of this process ends.

    Return the exit status: 1 if the recorder can't be started, else 0.
    """
    telemetry, node, *command = sys.argv[1:] if arguments is None else arguments
    parent = os.getppid()
    ended = threading.Event()
    # srun forwards SIGUSR2 to its tasks; on the other signals it kills them.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, lambda *_: ended.set())
    node = node or os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    try:
        supervisor = RecorderSupervisor(
            [*command, f"--with-parent={os.getpid()}"], Path(telemetry), node, os.environ
        )
    except OSError as error:
        sys.stderr.write(f"The recorder can't be started: {error.strerror}.\n")
        return 1
    while not ended.wait(_POLL_S) and os.getppid() == parent:
        pass
    supervisor.stop()
    return 0


def _describe_status(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


if __name__ == "__main__":
    sys.exit(main())
