"""Record a job: recorders on all its nodes, the receiver of their live samples, and the score at the end."""

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..environment import without_tokens
from ..process.supervisor import PROGRAM, RecorderSupervisor
from ..runs import RunFolder
from .remote_recorders import RemoteRecorders, remote_nodes
from .spec import JobSpec

#: Longest wait at a job's end; an unfinished score is computed on request.
SCORE_S = 10.0
_READY_S = 30.0
_END_S = 5.0


def close_run(run: Path, environment: Mapping[str, str], *, limit_s: float = SCORE_S) -> bool:
    """Run ``gipfel score --save``, which writes ``score.json`` and turns closed segments into Parquet.

    It is another process, killed when the limit has passed: the job's end and exit status do not
    depend on it, and no file of the run is half written.

    Returns
    -------
    bool
        True if it ended by itself within the limit.
    """
    argv = [sys.executable, "-I", "-m", "gipfel_extension.cli", "score", str(run), "--save", "--json"]
    try:
        process = subprocess.Popen(
            argv,
            env=without_tokens(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        return False
    try:
        return process.wait(limit_s) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class FanInProcess:
    """The receiver beside the job's first recorder; the other nodes are recorded without it too.

    Parameters
    ----------
    sockets
        Folder where readers on this node look for live streams.
    host
        This node's name, by which the others reach it.
    log
        File for its output.
    """

    def __init__(self, sockets: Path, host: str, environment: Mapping[str, str], log: Path) -> None:
        self._argv = [sys.executable, "-I", "-m", "gipfel_extension.telemetry.live.receiver"]
        self._argv += ["--sockets", str(sockets), f"--with-parent={os.getpid()}"]
        self._environment = without_tokens(environment)
        self._host = host
        self._log = log
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._answer: dict[str, Any] = {}

    def ready(self) -> tuple[list[str], dict[str, str]]:
        """Return a recorder's arguments and variables that lead here; empty where it can't be started."""
        with self._lock:
            if not self._stopped and (self._process is None or self._process.poll() is not None):
                self._start()
        if not self._answer:
            return [], {}
        return ["--fan-in", f"tcp://{self._host}:{self._answer['port']}"], dict(self._answer["environment"])

    def processes(self) -> frozenset[int]:
        """Return the receiver's process."""
        return frozenset() if self._process is None else frozenset({self._process.pid})

    def stop(self) -> None:
        """End it; after 5 s by SIGKILL."""
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
        same_port = ["--port", str(self._answer["port"])] if self._answer else []
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            log = os.open(self._log, flags, 0o600)
            try:
                process = subprocess.Popen(
                    [*self._argv, *same_port],
                    env={**self._environment, **self._answer.get("head", {})},
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
            answer = {**self._answer, **json.loads(line)}
            self._answer = {name: answer[name] for name in ("port", "environment", "head")}


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    """Return its first line, printed when it is ready; empty where that takes too long."""
    if process.stdout is None:
        return b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(_READY_S) else b""
    process.stdout.close()
    return line


class Recording:
    """A job's recorders, here and on its other nodes, out of reach of the workload's signals.

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
        The job's variables, with its nodes and GPUs. The tree below this process is the job here.
    """

    def __init__(
        self, spec: JobSpec, run: RunFolder, sockets: Path, node: str, environment: Mapping[str, str]
    ) -> None:
        command = [sys.executable, "-I", "-m", "gipfel_extension.recorder"]
        command += ["--telemetry", str(run.telemetry), "--name", "job"]
        command += [] if spec.interval is None else ["--interval", str(spec.interval)]
        for source in spec.sources:
            command += ["--source", source]
        # By process id: once the recorder has been loaded, it may have another parent.
        here = ["--sockets", str(sockets), "--node", node]
        here += ["--root-pid", str(os.getpid()), f"--with-parent={os.getpid()}"]
        self._recorder = RecorderSupervisor([*command, *here], run.telemetry, node, environment)
        others = remote_nodes(environment, node)
        self._others = (
            RemoteRecorders(
                others,
                # Each below a supervisor that restarts it, and ends with the daemon of the step.
                [sys.executable, "-I", "-m", PROGRAM, str(run.telemetry), "", *command],
                run.telemetry,
                environment,
                here=node,
                interval=spec.interval or 1.0,
                head=FanInProcess(sockets, node, environment, run.path / "fan-in.log"),
            )
            if others
            else None
        )

    @property
    def pid(self) -> int:
        """Return the recorder's process id."""
        return self._recorder.pid

    def processes(self) -> frozenset[int]:
        """Return what must outlive the work: the recorder, and what holds the recorders of other nodes.

        From now on none of them is restarted.
        """
        others = frozenset() if self._others is None else self._others.processes()
        return others | {self._recorder.stop_restarting()}

    def stop(self) -> None:
        """End the recorders so that they flush and close their segments; after 15 s by force."""
        self._recorder.stop_restarting()
        if self._others is not None:
            self._others.stop()
        self._recorder.stop()
