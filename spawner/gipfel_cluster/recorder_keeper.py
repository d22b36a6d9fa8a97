"""Keeps one recorder running: started again when it dies, its end written down. Imports next to nothing.

``python -m gipfel_cluster.recorder_keeper TELEMETRY NODE COMMAND...`` does so where Slurm starts it; the
recorder ends with this process, and this process on a signal or with its own parent.
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

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
#: Seconds that this part of a job's end may take; see `scheduler.keeper.GRACE_SECONDS`.
FLUSH_S = 15.0
_GLANCE_S = 1.0


class RecorderKeeper:
    """A recorder in a session of its own, out of reach of the workload's signals.

    Parameters
    ----------
    command
        Its argv; it ends by itself with this process.
    telemetry
        Where ``<node>.recorder.json`` goes, which says how it ended: not as it should, if it ever did.

    Raises
    ------
    OSError
        It can't be started.
    """

    def __init__(
        self, command: Sequence[str], telemetry: Path, node: str, environment: Mapping[str, str]
    ) -> None:
        self._command = tuple(command)
        self._environment = {name: value for name, value in environment.items() if "TOKEN" not in name}
        self._note = telemetry / f"{node}.recorder.json"
        self._events = telemetry / f"{node}-keeper.events.jsonl"
        self._node = node
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._lost = 0
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The recorder's process."""
        return self._process.pid

    def hold(self) -> int:
        """Start no other from now on; the process that there is."""
        with self._lock:
            self._ending.set()
            return self.pid

    def stop(self) -> None:
        """End it so that it flushes and closes its segment; after 15 s by force."""
        self.hold()
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

    def _keep(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            started = time.monotonic()
            status = self._process.wait()
            if status == 0:
                # Told to end, as this process may have been: Slurm's signals reach both.
                self._ending.wait(pause)
            expected = self._ending.is_set()
            if time.monotonic() - started > _LONGEST_PAUSE_S:
                pause = _FIRST_PAUSE_S
            self._lost += not expected
            self._write_note(status, expected=expected)
            if not expected:
                self._tell(f"The recorder ended by {_how(status)}, and is started again in {pause:g} s.")
            self._ending.wait(pause)
            with self._lock:
                if self._ending.is_set():
                    return
                try:
                    self._process = self._start()
                except OSError as error:
                    self._tell(f"The recorder can't be started again: {error.strerror}.")
                    return
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _write_note(self, status: int, *, expected: bool) -> None:
        if expected and self._lost:
            # What went wrong is what a person looks for.
            return
        end = {"time_ns": time.time_ns(), "status": status, "how": _how(status)}
        text = json.dumps({**end, "expected": expected, "lost": self._lost}) + "\n"
        part = self._note.with_name(f".{self._note.name}.{os.getpid()}")
        with suppress(OSError):
            handle = os.open(
                part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            with os.fdopen(handle, "w") as file:
                file.write(text)
            part.replace(self._note)

    def _tell(self, message: str) -> None:
        """A line that `gipfel_extension.telemetry.events` reads."""
        event = {"time_ns": time.time_ns(), "node": self._node, "kind": "recorder_lost", "device": ""}
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with suppress(OSError):
            handle = os.open(self._events, flags, 0o600)
            try:
                os.write(handle, json.dumps({**event, "message": message}).encode() + b"\n")
            finally:
                os.close(handle)


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep a recorder until SIGTERM, SIGINT, SIGHUP or SIGUSR2, or the end of whoever started this."""
    telemetry, node, *command = sys.argv[1:] if arguments is None else arguments
    parent = os.getppid()
    ended = threading.Event()
    # srun passes SIGUSR2 on to its tasks, and would kill them for the others.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, lambda *_: ended.set())
    node = node or os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    try:
        keeper = RecorderKeeper([*command, f"--with-parent={os.getpid()}"], Path(telemetry), node, os.environ)
    except OSError as error:
        sys.stderr.write(f"The recorder can't be started: {error.strerror}.\n")
        return 1
    while not ended.wait(_GLANCE_S) and os.getppid() == parent:
        pass
    keeper.stop()
    return 0


def _how(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


if __name__ == "__main__":
    sys.exit(main())
