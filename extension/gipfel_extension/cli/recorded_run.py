"""The run folder of a recorded command: its name, its record, and who of several tasks writes what."""

import contextlib
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os import getpid
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import RunFolder, make_private, runs_root
from gipfel_cluster.scheduler.notation import expand_hostlist

_ODD = re.compile(r"[^A-Za-z0-9._-]")
#: From here on Slurm's step ids mean the batch script, an allocation's shell and the like.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class RecordedRun:
    """One task's view of a recorded run.

    Parameters
    ----------
    recorder
        The name of this task's recorder.
    sources
        What this task's recorder reads; empty where another task of this node records.
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
        """The run folder's path."""
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
        """Make the run folder, or enter the one that another task of this Slurm step made.

        Raises
        ------
        GipfelError
            It can't be made.
        OSError
            It can't be written.
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
            # Bytes that are no text in any locale are shown, not kept.
            "directory": _directory(),
            "command": [word.encode(errors="replace").decode() for word in command],
            "edf": None,
            "edf_digest": None,
        }
        # Ranks with GPUs of their own see no others; else the first on a node records all of the node's.
        alone = not shared or environment.get("SLURM_LOCALID", "0") == "0"
        own = sources if alone else tuple(each for each in sources if each != "host")
        if not alone and not environment.get("SLURM_GPUS_PER_TASK"):
            own = ()
        run = cls(folder, node, "job" if alone else f"rank{task}", own, interval, task == "0", record)
        if run.first:
            folder.write_record(record)
        return run

    def finish(self, status: int) -> str:
        """Complete the record; what went wrong with that as a sentence, or nothing."""
        if not self.first:
            return ""
        try:
            self.folder.write_record({**self.record, "ended": _now(), "exit_status": status})
        except OSError as error:
            return f"The record of this run lacks its end: {error.strerror}."
        return ""


def _step(environment: Mapping[str, str]) -> str:
    """The number of the Slurm step that this runs in; empty outside one that `srun` started."""
    step = environment.get("SLURM_STEP_ID", "")
    known = step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP and "SLURM_JOB_ID" in environment
    return step if known else ""


def _job_id(environment: Mapping[str, str]) -> str:
    job = environment.get("SLURM_JOB_ID", "")
    if not job:
        # A process's number comes back; with the time it's one run's alone.
        return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{getpid()}"
    step = _step(environment)
    return f"{job}.{step}" if step else job


def _new_folder(root: Path, cluster: str, job_id: str) -> RunFolder:
    """A folder of its own: a job may record several commands, one after the other or at a time."""
    number = 1
    while True:
        name = job_id if number == 1 else f"{job_id}-{number}"
        try:
            make_private(root)
            (root / f"{cluster}-{name}").mkdir(mode=0o700)
            return RunFolder.create(root, cluster, name)
        except FileExistsError:
            number += 1
            if number > 10_000 or not root.is_dir():
                raise GipfelError(
                    f"No run folder can be made in {root}.", "Name another with --runs."
                ) from None
        except OSError as error:
            raise GipfelError(
                f"The run folder can't be made in {root}: {error.strerror}.", "Name another with --runs."
            ) from error


def _directory() -> str:
    """Return where the command starts: its relative paths mean nothing without."""
    with contextlib.suppress(OSError):
        return str(Path.cwd()).encode(errors="replace").decode()
    return ""


def _nodes(environment: Mapping[str, str], node: str) -> list[str]:
    given = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or node
    with contextlib.suppress(GipfelError, ValueError):
        return list(expand_hostlist(given))
    return [node]


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
