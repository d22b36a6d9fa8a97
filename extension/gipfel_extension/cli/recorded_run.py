"""The run folder of a recorded command: its name, its record, and which of several tasks writes what.

`CommandRecorder` is the recorder process beside a command; its failure never affects the command.
"""

import contextlib
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os import getpid
from pathlib import Path
from typing import Any

from gipfel_cluster.job.git_state import git_state
from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import LiveFolder, RunFolder, make_private, runs_root
from gipfel_cluster.scheduler.notation import expand_hostlist

from ..telemetry.recorder_process import RecorderProcess

_ODD = re.compile(r"[^A-Za-z0-9._-]")
#: Slurm's step IDs from this one on stand for the batch script, an allocation's shell and similar steps.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class RecordedRun:
    """Recorded run as seen by one task of a Slurm step, or by a single process.

    Parameters
    ----------
    recorder
        Name of this task's recorder.
    sources
        Sources of this task's recorder; empty if another task of this node records.
    first
        Whether this task writes the record.
    """

    folder: RunFolder
    node: str
    recorder: str
    sources: tuple[str, ...]
    interval: float | None
    first: bool
    record: dict[str, Any]

    @property
    def path(self) -> Path:
        """Path of the run folder."""
        return self.folder.path

    @classmethod
    def create(
        cls,
        runs: Path | None,
        command: Sequence[str],
        *,
        interval: float | None,
        sources: tuple[str, ...],
        environment: Mapping[str, str],
    ) -> "RecordedRun":
        """Create the run folder, or use the one that another task of this Slurm step created.

        Raises
        ------
        GipfelError
            The run folder can't be created.
        OSError
            The record can't be written.
        """
        root = (runs or runs_root(dict(environment))).absolute()
        node = environment.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
        given = environment.get("GIPFEL_CLUSTER") or environment.get("SLURM_CLUSTER_NAME") or node
        cluster = _ODD.sub("_", given).strip("._-")[:32] or "run"
        shared = environment.get("SLURM_STEP_NUM_TASKS", "1") != "1" and bool(_step(environment))
        task = environment.get("SLURM_PROCID", "0") if shared else "0"
        job_id = _job_id(environment)
        folder = RunFolder.create(root, cluster, job_id) if shared else _new_folder(root, cluster, job_id)
        record = {
            "schema": 1,
            "kind": "recording",
            "cluster": cluster,
            "job_id": environment.get("SLURM_JOB_ID", ""),
            "started": _now(),
            "ended": None,
            "exit_status": None,
            "node": node,
            "nodes": _nodes(environment, node),
            "tasks": environment.get("SLURM_STEP_NUM_TASKS") if shared else "1",
            "beside": environment.get("GIPFEL_RUN"),
            "interval": interval,
            "sources": list(sources),
            # Bytes that can't be decoded are replaced.
            "directory": _directory(),
            "command": [word.encode(errors="replace").decode() for word in command],
            "git": _git_state(environment) if task == "0" else None,
            "edf": None,
            "edf_digest": None,
        }
        # With --gpus-per-task each rank sees only its GPUs; otherwise a node's first rank records all.
        alone = not shared or environment.get("SLURM_LOCALID", "0") == "0"
        own = sources if alone else tuple(each for each in sources if each != "host")
        if not alone and not environment.get("SLURM_GPUS_PER_TASK"):
            own = ()
        run = cls(folder, node, "job" if alone else f"rank{task}", own, interval, task == "0", record)
        if run.first:
            folder.write_record(record)
        return run

    def finish(self, status: int) -> str:
        """Complete the record with the exit status; return an error message, or an empty string."""
        if not self.first:
            return ""
        try:
            self.folder.write_record({**self.record, "ended": _now(), "exit_status": status})
        except OSError as error:
            return f"The end of this run can't be written to its record: {error.strerror}."
        return ""


def _step(environment: Mapping[str, str]) -> str:
    """Return the ID of the Slurm step of this process; empty outside a step that `srun` started."""
    step = environment.get("SLURM_STEP_ID", "")
    known = step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP and "SLURM_JOB_ID" in environment
    return step if known else ""


def _job_id(environment: Mapping[str, str]) -> str:
    job = environment.get("SLURM_JOB_ID", "")
    if not job:
        # The time makes the name unique, since PIDs are reused.
        return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{getpid()}"
    step = _step(environment)
    return f"{job}.{step}" if step else job


def _new_folder(root: Path, cluster: str, job_id: str) -> RunFolder:
    """Create a new run folder; a job may record several commands, in sequence or in parallel."""
    for number in range(1, 10_001):
        name = job_id if number == 1 else f"{job_id}-{number}"
        try:
            make_private(root)
            (root / f"{cluster}-{name}").mkdir(mode=0o700)
            return RunFolder.create(root, cluster, name)
        except FileExistsError:
            continue
        except OSError as error:
            raise GipfelError(
                f"The run folder can't be created in {root}: {error.strerror}.",
                "Give another directory with --runs.",
            ) from error
    raise GipfelError(f"No run folder can be created in {root}.", "Give another directory with --runs.")


def _directory() -> str:
    """Return the working directory, to which the command's relative paths refer."""
    with contextlib.suppress(OSError):
        return str(Path.cwd()).encode(errors="replace").decode()
    return ""


def _git_state(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the commit of the working directory for the record; None without a repository."""
    with contextlib.suppress(OSError):
        state = git_state(Path.cwd(), environment)
        return None if state is None else state.model_dump()
    return None


def _nodes(environment: Mapping[str, str], node: str) -> list[str]:
    given = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or node
    with contextlib.suppress(GipfelError, ValueError):
        return list(expand_hostlist(given))
    return [node]


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")


_FLUSH_S = 30.0
_FIRST_SAMPLE_S = 5.0
_GLANCE_S = 0.02


class CommandRecorder:
    """Recorder process of a command, in its own session; it ends at the latest with this process.

    Parameters
    ----------
    run
        The run folder.
    name
        Distinguishes the recorders of one node.
    interval
        Seconds between two samples; None: as fast as the sources update, at most ten per second.
    environment
        The command's environment, which names the job's GPUs. The processes below this one are the job.
    metrics, metrics_file, metrics_pattern
        Additional GPU metrics, and a file of JSON lines, a directory, or another file of metrics that the
        command writes; a regular expression where it is a log.

    Raises
    ------
    OSError
        The recorder can't be started.
    """

    def __init__(
        self,
        run: Path,
        *,
        node: str,
        name: str,
        interval: float | None,
        sources: Sequence[str],
        environment: Mapping[str, str],
        metrics: Sequence[str] = (),
        metrics_file: str = "",
        metrics_pattern: str = "",
    ) -> None:
        options = [f"--root-pid={os.getpid()}", *(f"--metric={metric}" for metric in metrics)]
        if metrics_file:
            options += _metrics_arguments(Path(metrics_file).expanduser().absolute(), metrics_pattern)
        self._stream = LiveFolder.create(run, node)
        own = {key: value for key, value in environment.items() if "TOKEN" not in key}
        if "SLURM_JOB_ID" in own:
            # Slurm leaves it unset in a job without GPUs, and CUDA programs would then see all GPUs.
            own.setdefault("CUDA_VISIBLE_DEVICES", "")
        self._telemetry = run / "telemetry"
        self._segments = f"{node}-*.arrows" if name == "job" else f"{name}-{node}-*.arrows"
        self._recorder = RecorderProcess(
            self._telemetry,
            node=node,
            name=name,
            sources=sources,
            interval=interval,
            sockets=None if self._stream is None else self._stream.path,
            log=run / f"recorder-{node}-{name}.log",
            options=options,
            environment=own,
        )

    def stop(self) -> str:
        """Stop the recorder, with SIGKILL after 30 s; return an error message, or an empty string.

        It waits for the first sample, so that even a short command has one.
        """
        try:
            self._await_first_sample()
            died = self._recorder.exit_status
            if not self._recorder.stop(_FLUSH_S):
                return f"The recorder didn't end within {_FLUSH_S:g} s and was killed."
        finally:
            if self._stream is not None:
                self._stream.remove()
        message = self._recorder.last_log_line()
        if not message:
            with contextlib.suppress(OSError):
                self._recorder.log.unlink()
        return message or (f"The recorder ended early, with exit status {died}." if died else "")

    def _await_first_sample(self) -> None:
        deadline = time.monotonic() + _FIRST_SAMPLE_S
        # A segment file exists from the first sample on.
        while time.monotonic() < deadline and self._recorder.exit_status is None:
            if any(self._telemetry.glob(self._segments)):
                return
            time.sleep(_GLANCE_S)


def _metrics_arguments(path: Path, pattern: str = "") -> list[str]:
    """Return the recorder's arguments for the metrics that the command logs.

    In a file of JSON lines, or a file that does not exist yet, lines after its present end count; in other
    files and directories, values that are newer than now.
    """
    from ..tracking.find import kind_of  # noqa: PLC0415 - most commands name none

    if pattern:
        return ["--metrics", str(path), f"--metrics-since={time.time_ns()}", f"--metrics-pattern={pattern}"]
    kind = kind_of(path) if path.is_file() else None
    if (
        path.is_dir()
        or (kind is not None and kind.name != "JSON lines")
        or not (path.exists() or path.suffix)
    ):
        return ["--metrics", str(path), "--metrics-since", str(time.time_ns())]
    # Determine the end now, so that no lines are lost while the recorder starts.
    start = path.stat().st_size if path.is_file() else 0
    return ["--metrics", str(path), "--metrics-start", str(start)]
