"""The run whose samples a kernel reads: the one it was started in, or one of its own."""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gipfel_cluster.live_folder import live_sockets
from gipfel_cluster.runs import RunFolder, runs_root
from gipfel_cluster.scratch import ScratchFolder


@dataclass(frozen=True)
class KernelRun:
    """A run folder, and where its recorders stream.

    Parameters
    ----------
    folder
        The run folder.
    sockets
        The recorders' sockets; None where the segments on disk are all there is.
    """

    folder: RunFolder
    sockets: Path | None = None

    @property
    def path(self) -> Path:
        """The run folder's path."""
        return self.folder.path

    @property
    def telemetry(self) -> Path:
        """Where the segments are."""
        return self.folder.telemetry

    def __str__(self) -> str:
        return str(self.path)


def present_run(environment: Mapping[str, str] | None = None) -> KernelRun | None:
    """The run that this kernel belongs to, as ``$GIPFEL_RUN`` and ``$GIPFEL_SOCKETS`` name it.

    Returns
    -------
    KernelRun or None
        None outside a run, and where its folder is gone.
    """
    environment = os.environ if environment is None else environment
    given = environment.get("GIPFEL_RUN")
    if not given or not Path(given).is_dir():
        return None
    sockets = environment.get("GIPFEL_SOCKETS")
    return KernelRun(RunFolder(Path(given)), Path(sockets) if sockets else None)


def run_at(path: Path, environment: Mapping[str, str] | None = None) -> KernelRun:
    """The run of a folder; live where something on this node streams it, such as ``gipfel record``."""
    environment = os.environ if environment is None else environment
    return KernelRun(RunFolder(path), live_sockets(path, node_name(environment)))


def create_run(
    source: str, interval: float | None, environment: Mapping[str, str] | None = None
) -> KernelRun:
    """Make a run folder ``measure-<pid>-<time>`` with its record, and a folder for sockets beside ``/tmp``.

    Raises
    ------
    GipfelError
        The run folder can't be made.
    """
    environment = os.environ if environment is None else environment
    node = node_name(environment)
    # Milliseconds: a kernel may measure twice within a second, and each measurement is a record of its own.
    job_id = f"{os.getpid()}-{time.time_ns() // 1_000_000}"
    folder = RunFolder.create(runs_root(dict(environment)), "measure", job_id)
    folder.write_record(
        {
            "schema": 1,
            "kind": "measurement",
            "cluster": "measure",
            "job_id": job_id,
            "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "node": node,
            "nodes": [node],
            "source": source,
            "interval": interval,
            "beside": environment.get("GIPFEL_RUN"),
            "edf": None,
            "edf_digest": None,
        }
    )
    # The path of a Unix socket has room for 107 bytes, less than many home folders need.
    return KernelRun(folder, ScratchFolder.create().path)


def node_name(environment: Mapping[str, str]) -> str:
    """The short name of the node that the kernel runs on."""
    return environment.get("GIPFEL_NODE") or socket.gethostname().partition(".")[0]
