"""The recorder beside a job: started before it, ended after it, and its death written down."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ..runs import RunFolder, write_atomically
from .spec import JobSpec

_FLUSH_S = 15.0


class Recording:
    """A recorder process in its own session, so that a signal to the workload does not reach it.

    Parameters
    ----------
    spec
        Interval and sources.
    run
        The folder that it writes to.
    sockets
        A private folder on local disk with a short path, for the live stream.
    node
        This node's name.
    environment
        The job's: it says which GPUs the job has. The tree below this process is the job.
    """

    def __init__(
        self, spec: JobSpec, run: RunFolder, sockets: Path, node: str, environment: Mapping[str, str]
    ) -> None:
        command = [sys.executable, "-I", "-m", "gipfel_extension.telemetry.recorder"]
        command += [
            "--telemetry",
            str(run.telemetry),
            "--sockets",
            str(sockets),
            "--node",
            node,
            "--name",
            "job",
        ]
        command += ["--interval", str(spec.interval), "--root-pid", str(os.getpid()), "--with-parent"]
        for source in spec.sources:
            command += ["--source", source]
        self._ended = run.telemetry / f"{node}.recorder.json"
        self._stopping = False
        self._process = subprocess.Popen(
            command,
            env={name: value for name, value in environment.items() if "TOKEN" not in name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._watch = threading.Thread(target=self._note_end, daemon=True)
        self._watch.start()

    def _note_end(self) -> None:
        status = self._process.wait()
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        end = {"time_ns": time.time_ns(), "status": status, "how": how, "expected": self._stopping}
        write_atomically(self._ended, json.dumps(end) + "\n")

    @property
    def pid(self) -> int:
        """The recorder's process."""
        return self._process.pid

    def stop(self) -> None:
        """End the recorder so that it flushes and closes its segments; after 15 s by force."""
        self._stopping = True
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_FLUSH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._watch.join(_FLUSH_S)
