"""Runs: the one that this server belongs to, and the user's others.

`CurrentRun` is the job's, or one of the server's own where there is no job; `list_runs` are those to show
and compare.
"""

import os
import re
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import RunFolder, ScratchFolder, runs_root

from ..telemetry.redaction import shown_record
from ..telemetry.sample import Device

_MOST = 200
_NAME = re.compile(r"[A-Za-z0-9][\w.+@-]{0,199}")
_RUN, _SOCKETS = "GIPFEL_RUN", "GIPFEL_SOCKETS"
# Cluster in the name of a run outside a job.
_OWN_CLUSTER = "local"
_DRIVERS = ("nvidia[0-9]*", "kfd")


def list_runs(environment: Mapping[str, str], current: str) -> list[dict[str, Any]]:
    """Return the newest runs that have samples, the newest first; `current` names this server's own."""
    root = runs_root(dict(environment))
    found = []
    for folder in newest_runs(root):
        record = _record(folder)
        edf = record.get("edf")
        found.append(
            {
                "run": folder.name,
                "job_id": str(record.get("job_id", "")),
                "cluster": str(record.get("cluster", "")),
                "kind": str(record.get("kind", "")),
                "started": str(record.get("started", "")),
                "node": str(record.get("node", "")),
                "nodes": len(record.get("nodes") or ()),
                "edf": str(edf.get("name", "")) if isinstance(edf, dict) else "",
                "current": folder.name == current,
            }
        )
    return found


def run_folder(environment: Mapping[str, str], name: str) -> Path:
    """Return the folder of a run by its name.

    Raises
    ------
    GipfelError
        There is none of that name.
    """
    path = runs_root(dict(environment)) / name
    if not _NAME.fullmatch(name) or not (path / "telemetry").is_dir():
        raise GipfelError("There is no such run.", "Choose one of the list.")
    return path


def newest_runs(root: Path) -> list[Path]:
    """Return the run folders that have samples, the newest first, at most 200."""
    try:
        folders = [
            (path.stat().st_mtime, path) for path in root.iterdir() if _has_samples(path / "telemetry")
        ]
    except OSError:
        return []
    return [path for _, path in sorted(folders, reverse=True)[:_MOST]]


def _has_samples(telemetry: Path) -> bool:
    """Return whether anything was recorded: a vetting, for one, leaves a run without samples."""
    return any(telemetry.glob("*.arrows")) or any(telemetry.glob("*.parquet"))


def _record(folder: Path) -> dict[str, Any]:
    try:
        record = RunFolder(folder).read_record()
    except (OSError, ValueError, GipfelError):
        return {}
    return record if isinstance(record, dict) else {}


@dataclass(frozen=True)
class CurrentRun:
    """Run folder and sockets of this server's samples.

    Parameters
    ----------
    folder
        The run folder.
    sockets
        The 0700 folder on local disk that holds the recorders' sockets.
    node, job_id, cluster
        Where the server runs.
    own
        True where the server made the run itself and must record it itself.
    """

    folder: RunFolder
    sockets: Path
    node: str
    job_id: str
    cluster: str
    own: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which kernels find this run."""
        return {_RUN: str(self.folder.path), _SOCKETS: str(self.sockets)}

    def describe(self) -> dict[str, Any]:
        """Return the content of the panel's header, with the whole record; reads the disk."""
        record = self.folder.read_record()
        edf = record.get("edf")
        return {
            "run": str(self.folder.path),
            "node": self.node,
            "job_id": "" if self.own else self.job_id,
            "cluster": self.cluster,
            "edf": {"name": edf["name"], "digest": record.get("edf_digest") or ""} if edf else None,
            "ends_ns": _nanoseconds(record.get("time_limit_ends")),
            "record": shown_record(record),
        }

    def remove_sockets(self) -> None:
        """Remove the sockets' folder of an own run; the job removes its own."""
        if self.own:
            for path in self.sockets.glob("*"):
                path.unlink(missing_ok=True)
            self.sockets.rmdir()


def current_run(environment: Mapping[str, str]) -> CurrentRun:
    """Return the job's run where ``$GIPFEL_RUN`` names one, else a new ``local-<pid>-<time>`` of this server.

    Raises
    ------
    GipfelError
        The run folder can't be made or entered.
    """
    node = environment.get("GIPFEL_NODE") or socket.gethostname().partition(".")[0]
    if given := environment.get(_RUN):
        folder = RunFolder(Path(given))
        if not folder.telemetry.is_dir():
            raise GipfelError(
                f"The run folder {given} is not there.", "Restart the server; its job makes the folder again."
            )
        cluster, _, job_id = folder.name.rpartition("-")
        return CurrentRun(
            folder,
            Path(environment.get(_SOCKETS) or folder.path),
            node,
            environment.get("GIPFEL_JOB_ID") or job_id,
            environment.get("GIPFEL_CLUSTER") or cluster,
        )
    # A process id alone comes back after a reboot, and on another node that shares the home folder.
    job_id = f"{os.getpid()}-{int(time.time())}"
    folder = RunFolder.create(runs_root(dict(environment)), _OWN_CLUSTER, job_id)
    folder.write_record(_own_record(node, job_id))
    sockets = ScratchFolder.create().path
    return CurrentRun(folder, sockets, node, job_id, _OWN_CLUSTER, own=True)


def _own_record(node: str, job_id: str) -> dict[str, Any]:
    started = datetime.now().astimezone().isoformat(timespec="milliseconds")
    return {
        "schema": 1,
        "kind": "server",
        "cluster": _OWN_CLUSTER,
        "job_id": job_id,
        "started": started,
        "node": node,
        "nodes": [node],
        "edf": None,
        "edf_digest": None,
    }


def _nanoseconds(moment: str | None) -> int | None:
    # ISO 8601 without a zone would be read as the reader's local time.
    if moment is None or not re.search(r"(Z|[+-]\d\d:\d\d)$", moment):
        return None
    return int(datetime.fromisoformat(moment).timestamp()) * 1_000_000_000


def missing_gpus(
    record: Mapping[str, Any], devices: Iterable[Device], node: str, dev: Path = Path("/dev")
) -> str:
    """Return a sentence where GPUs were asked for and none is here, else nothing.

    Parameters
    ----------
    record
        The run's ``record.json``; its options hold the GPUs per node.
    devices
        What is recorded; simulated GPUs don't count.
    """
    options = record.get("options")
    asked = options.get("gpus") if isinstance(options, dict) else None
    here = any(device.kind == "gpu" and not device.simulated for device in devices)
    if not isinstance(asked, int) or asked < 1 or here:
        return ""
    there = any(any(dev.glob(pattern)) for pattern in _DRIVERS)
    reason = (
        f"{node} has GPUs whose driver does not answer in this environment. Run nvidia-smi in a terminal."
        if there
        else f"{node} has none, or gave this job none. Start it again on a node with GPUs."
    )
    return f"You asked for {asked} GPU{'' if asked == 1 else 's'} and got none, because {reason}"
