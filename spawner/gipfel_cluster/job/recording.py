"""The recorders beside a job: started before it on all its nodes, ended after it, their ends written down."""

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
from .fan_in_head import FanInHead
from .other_nodes import OtherNodes, other_nodes
from .spec import JobSpec

_FLUSH_S = 15.0


class Recording:
    """A recorder here, in a session of its own, out of reach of the workload's signals, and those elsewhere.

    Parameters
    ----------
    spec
        Interval and sources.
    run
        The folder that they write to.
    sockets
        A private folder on local disk with a short path, for the live stream.
    node
        This node's name.
    environment
        The job's: it says which nodes and GPUs the job has. The tree below this process is the job here.
    """

    def __init__(
        self, spec: JobSpec, run: RunFolder, sockets: Path, node: str, environment: Mapping[str, str]
    ) -> None:
        command = [sys.executable, "-I", "-m", "gipfel_extension.telemetry.recorder"]
        command += ["--telemetry", str(run.telemetry), "--name", "job", "--interval", str(spec.interval)]
        for source in spec.sources:
            command += ["--source", source]
        # Named, not asked for: when the recorder has been loaded, its parent may be another one.
        here = ["--sockets", str(sockets), "--node", node]
        here += ["--root-pid", str(os.getpid()), f"--with-parent={os.getpid()}"]
        self._ended = run.telemetry / f"{node}.recorder.json"
        self._stopping = False
        self._process = subprocess.Popen(
            [*command, *here],
            env={name: value for name, value in environment.items() if "TOKEN" not in name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._watch = threading.Thread(target=self._note_end, daemon=True)
        self._watch.start()
        others = other_nodes(environment, node)
        self._others = (
            OtherNodes(
                others,
                # Below the daemon of the step, with which it ends.
                [*command, "--with-parent"],
                run.telemetry,
                environment,
                here=node,
                interval=spec.interval,
                head=FanInHead(sockets, node, environment, run.path / "fan-in.log"),
            )
            if others
            else None
        )

    def _note_end(self) -> None:
        status = self._process.wait()
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        end = {"time_ns": time.time_ns(), "status": status, "how": how, "expected": self._stopping}
        write_atomically(self._ended, json.dumps(end) + "\n")

    @property
    def pid(self) -> int:
        """The recorder's process."""
        return self._process.pid

    def processes(self) -> frozenset[int]:
        """What must outlive the work: the recorder, and what holds the recorders of other nodes."""
        others = frozenset() if self._others is None else self._others.processes()
        return others | {self.pid}

    def stop(self) -> None:
        """End the recorders so that they flush and close their segments; after 15 s by force."""
        self._stopping = True
        if self._process.poll() is None:
            self._process.terminate()
        if self._others is not None:
            self._others.stop()
        try:
            self._process.wait(_FLUSH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._watch.join(_FLUSH_S)
