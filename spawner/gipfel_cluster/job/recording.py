"""Record a job: recorders on all its nodes, the receiver of their live samples, and the final score."""

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..environment import without_tokens
from ..process.supervisor import PROGRAM, RecorderSupervisor
from ..process.tree import end_child
from ..regular_files import open_log
from ..runs import RunFolder
from . import JobSpec
from .remote_recorders import RemoteRecorders, remote_nodes

#: Time limit in seconds for the score when a job ends; a missing score is computed on request.
SCORE_S = 10.0
#: Time limit in seconds for sending runs to a tracking server when a job ends.
TRACK_S = 20.0
#: Time limit in seconds for creating a run on that server before the ranks of a launch start.
TRACK_BEGIN_S = 10.0
#: Variable with the address of the MLflow server to which jobs send their runs.
TRACK_TO = "GIPFEL_TRACK_TO"
_TRACK_TOKENS = ("GIPFEL_TRACK_TOKEN_FILE", "MLFLOW_TRACKING_TOKEN")
#: Seconds until the receiver of live samples must be ready, and between SIGTERM and SIGKILL at its end.
_READY_S = 30.0
_END_S = 5.0


def close_run(run: Path, environment: Mapping[str, str], *, limit_s: float = SCORE_S) -> bool:
    """Run ``gipfel score --save``, which writes ``score.json`` and turns closed segments into Parquet.

    It is a separate process that is killed after the limit: the job's end and exit status do not depend on
    it, and it writes files atomically.

    Returns
    -------
    bool
        Whether it succeeded within the limit.
    """
    return _run_command(("score", str(run), "--save", "--json"), without_tokens(environment), limit_s)


def track_runs(environment: Mapping[str, str], *, limit_s: float = TRACK_S) -> bool:
    """Run ``gipfel track --pending`` if ``$GIPFEL_TRACK_TO`` names a server; a later job sends the rest.

    Returns
    -------
    bool
        Whether all ended runs are on the server.
    """
    if not environment.get(TRACK_TO):
        return False
    variables = _track_environment(environment)
    # With this variable the run would count as still running, and only ended runs are sent.
    variables.pop("GIPFEL_RUN", None)
    return _run_command(("track", "--pending", "--json"), variables, limit_s)


def track_begin(run: Path, environment: Mapping[str, str], *, limit_s: float = TRACK_BEGIN_S) -> bool:
    """Create this run on the tracking server, so that programs can log to it while the job runs.

    Returns
    -------
    bool
        Whether it is on the server; its address is then in ``tracking.json`` of the run folder.
    """
    if not environment.get(TRACK_TO):
        return False
    variables = {**_track_environment(environment), "GIPFEL_RUN": str(run), "GIPFEL_RUNS": str(run.parent)}
    return _run_command(("track", run.name, "--no-files", "--json"), variables, limit_s)


def _track_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for ``gipfel track``, without any token except the tracking server's."""
    tokens = {name: environment[name] for name in _TRACK_TOKENS if name in environment}
    return {**without_tokens(environment), **tokens}


def _run_command(arguments: Sequence[str], environment: Mapping[str, str], limit_s: float) -> bool:
    argv = [sys.executable, "-I", "-m", "gipfel_extension.cli", *arguments]
    try:
        process = subprocess.Popen(
            argv,
            env=dict(environment),
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
    """The process on the job's first node that receives the live samples of the other nodes.

    If it does not run, the other nodes are recorded all the same, but without live samples.

    Parameters
    ----------
    sockets
        Directory where readers on this node look for live streams.
    host
        Name by which the other nodes reach this one.
    log
        File for its output.
    """

    def __init__(self, sockets: Path, host: str, environment: Mapping[str, str], log: Path) -> None:
        self._argv = [sys.executable, "-I", "-m", "gipfel_extension.telemetry.live.fan_in"]
        self._argv += ["--sockets", str(sockets), f"--with-parent={os.getpid()}"]
        self._environment = without_tokens(environment)
        self._host = host
        self._log = log
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        # The JSON that the receiver prints when it is ready: its port, and the variables for the senders and
        # for itself (``head``).
        self._settings: dict[str, Any] = {}

    def sender_settings(self) -> tuple[list[str], dict[str, str]]:
        """Start the receiver if necessary; return arguments and variables for recorders that send to it.

        Both are empty if the receiver can't be started.
        """
        with self._lock:
            if not self._stopped and (self._process is None or self._process.poll() is not None):
                self._start()
        if not self._settings:
            return [], {}
        address = f"tcp://{self._host}:{self._settings['port']}"
        return ["--fan-in", address], dict(self._settings["environment"])

    def pids(self) -> frozenset[int]:
        """Return the receiver's process id."""
        return frozenset() if self._process is None else frozenset({self._process.pid})

    def stop(self) -> None:
        """End the receiver with SIGTERM, after 5 s with SIGKILL."""
        with self._lock:
            self._stopped = True
            process = self._process
        if process is not None:
            end_child(process, _END_S)

    def _start(self) -> None:
        # After a restart the senders must find the same keys and the same port.
        same_port = ["--port", str(self._settings["port"])] if self._settings else []
        try:
            with os.fdopen(open_log(self._log), "ab") as log:
                process = subprocess.Popen(
                    [*self._argv, *same_port],
                    env={**self._environment, **self._settings.get("head", {})},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError:
            return
        self._process = process
        line = _first_line(process)
        with suppress(ValueError, KeyError, TypeError):
            settings = {**self._settings, **json.loads(line)}
            self._settings = {name: settings[name] for name in ("port", "environment", "head")}


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the first line of output, which a process prints when it is ready; empty after a time limit."""
    if process.stdout is None:
        return b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(_READY_S) else b""
    process.stdout.close()
    return line


class Recording:
    """The recorders of a job on all its nodes; the workload's signals do not reach them.

    On this node, the recorder takes the process tree below this process for the job.

    Parameters
    ----------
    spec
        Interval and sources.
    run
        The run folder that they write to.
    sockets
        A private directory on local disk with a short path, for the live stream.
    node
        This node's name.
    environment
        The job's variables, which list its nodes and GPUs.
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
        local = ["--sockets", str(sockets), "--node", node]
        local += ["--root-pid", str(os.getpid()), f"--with-parent={os.getpid()}"]
        self._recorder = RecorderSupervisor([*command, *local], run.telemetry, node, environment)
        nodes = remote_nodes(environment, node)
        self._remote = (
            RemoteRecorders(
                nodes,
                # On each node a supervisor restarts the recorder, and ends when Slurm's step daemon ends.
                [sys.executable, "-I", "-m", PROGRAM, str(run.telemetry), "", *command],
                run.telemetry,
                environment,
                local_node=node,
                interval=spec.interval or 1.0,
                receiver=FanInProcess(sockets, node, environment, run.path / "fan-in.log"),
            )
            if nodes
            else None
        )

    @property
    def pid(self) -> int:
        """Return the process id of the recorder on this node."""
        return self._recorder.pid

    def stop_restarting(self) -> frozenset[int]:
        """Stop restarting recorders, and return the processes on this node that must outlive the workload.

        They are the recorder of this node, the receiver, and the step of the recorders on other nodes.
        """
        remote = frozenset() if self._remote is None else self._remote.stop_restarting()
        return remote | {self._recorder.stop_restarting()}

    def stop(self) -> None:
        """End the recorders so that they flush and close their segments; after 15 s with SIGKILL."""
        self._recorder.stop_restarting()
        if self._remote is not None:
            self._remote.stop()
        self._recorder.stop()
