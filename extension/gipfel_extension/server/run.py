"""The run that a notebook server belongs to: the job's, or one of its own where there is no job."""

import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import RunFolder, runs_root
from gipfel_cluster.scratch import ScratchFolder

from ..redaction import shown_record

_RUN, _SOCKETS = "GIPFEL_RUN", "GIPFEL_SOCKETS"


@dataclass(frozen=True)
class CurrentRun:
    """Where this server's samples are written and streamed.

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
        """The variables by which kernels find this run."""
        return {_RUN: str(self.folder.path), _SOCKETS: str(self.sockets)}

    def describe(self) -> dict[str, Any]:
        """What the panel's header shows, with the whole record; reads the disk."""
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
    """The job's run where ``$GIPFEL_RUN`` names one, else a new ``local-<pid>-<time>`` of this server.

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
                f"The run folder {given} is not there.", "Restart the server; its job makes the folder anew."
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
    folder = RunFolder.create(runs_root(dict(environment)), "local", job_id)
    folder.write_record(_own_record(node, job_id))
    sockets = ScratchFolder.create().path
    return CurrentRun(folder, sockets, node, job_id, "local", own=True)


def _own_record(node: str, job_id: str) -> dict[str, Any]:
    started = datetime.now().astimezone().isoformat(timespec="milliseconds")
    return {
        "schema": 1,
        "kind": "server",
        "cluster": "local",
        "job_id": job_id,
        "started": started,
        "node": node,
        "nodes": [node],
        "edf": None,
        "edf_digest": None,
    }


def _nanoseconds(moment: str | None) -> int | None:
    # ISO 8601 without a zone would be read as local time of whoever reads it.
    if moment is None or not re.search(r"(Z|[+-]\d\d:\d\d)$", moment):
        return None
    return int(datetime.fromisoformat(moment).timestamp()) * 1_000_000_000
