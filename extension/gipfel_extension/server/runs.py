"""Runs: the run of this server, the other runs of the user, and the report of one as a page."""

import asyncio
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import RunFolder, ScratchFolder, runs_root
from gipfel_cluster.scheduler.machine import run_command
from gipfel_cluster.workloads.run_folders import read_notes

from ..telemetry.files import edf_name, read_record_file, read_regular
from ..telemetry.redaction import redact_record
from ..telemetry.sample import Device

_MAX_RUNS = 200
_NAME = re.compile(r"[A-Za-z0-9][\w.+@-]{0,199}")
_RUN, _SOCKETS = "GIPFEL_RUN", "GIPFEL_SOCKETS"
# Cluster name of a run outside a job.
_OWN_CLUSTER = "local"
_DRIVERS = ("nvidia[0-9]*", "kfd")
_LIMIT_S = 300.0
_MAX_BYTES = 128 << 20
# Most requests that wait until another report is made; requests of closed pages may still be among them.
_MAX_WAITING = 3


def list_runs(environment: Mapping[str, str], current: str) -> list[dict[str, Any]]:
    """Return the newest runs that have samples, the newest first; `current` names this server's run."""
    root = runs_root(dict(environment))
    found = []
    for folder in newest_runs(root):
        record = read_record_file(folder)
        found.append(
            {
                "run": folder.name,
                "display_name": read_notes(folder).display_name,
                "job_id": str(record.get("job_id", "")),
                "cluster": str(record.get("cluster", "")),
                "kind": str(record.get("kind", "")),
                "started": str(record.get("started", "")),
                "node": str(record.get("node", "")),
                "nodes": len(record.get("nodes") or ()),
                "edf": edf_name(record),
                "current": folder.name == current,
            }
        )
    return found


def run_folder(environment: Mapping[str, str], name: str) -> Path:
    """Return the folder of a run by its name.

    Raises
    ------
    GipfelError
        There is no run of that name.
    """
    path = runs_root(dict(environment)) / name
    try:
        if _NAME.fullmatch(name) and (path / "telemetry").is_dir():
            return path
    except OSError:
        # A directory without access for this user: is_dir raises PermissionError before Python 3.14.
        pass
    raise GipfelError("There is no such run.", "Choose a run from the list.")


def newest_runs(root: Path) -> list[Path]:
    """Return the run folders that have samples, the newest first, at most 200."""
    try:
        folders = [
            (path.stat().st_mtime, path) for path in root.iterdir() if _has_samples(path / "telemetry")
        ]
    except OSError:
        return []
    return [path for _, path in sorted(folders, reverse=True)[:_MAX_RUNS]]


def _has_samples(telemetry: Path) -> bool:
    """Return whether samples were recorded; a run folder of a vetting, for example, has none."""
    return any(telemetry.glob("*.arrows")) or any(telemetry.glob("*.parquet"))


@dataclass(frozen=True)
class CurrentRun:
    """Run folder and sockets of this server's samples.

    Parameters
    ----------
    folder
        The run folder.
    sockets
        Directory on local disk, with mode 0700, that holds the sockets of the recorders.
    node, job_id, cluster
        Node, job and cluster of the server.
    created_by_server
        True if the server created the run, and therefore must record it.
    """

    folder: RunFolder
    sockets: Path
    node: str
    job_id: str
    cluster: str
    created_by_server: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which kernels find this run."""
        return {_RUN: str(self.folder.path), _SOCKETS: str(self.sockets)}

    def describe(self) -> dict[str, Any]:
        """Return the content of the panel's header, including the record of the run; reads files."""
        record = self.folder.read_record()
        edf = record.get("edf")
        return {
            "run": str(self.folder.path),
            "node": self.node,
            "job_id": "" if self.created_by_server else self.job_id,
            "cluster": self.cluster,
            "edf": {"name": edf["name"], "digest": record.get("edf_digest") or ""} if edf else None,
            "ends_ns": _nanoseconds(record.get("time_limit_ends")),
            "record": redact_record(record),
        }

    def remove_sockets(self) -> None:
        """Remove the sockets of a run that this server created; a job removes the sockets of its run."""
        if self.created_by_server:
            for path in self.sockets.glob("*"):
                path.unlink(missing_ok=True)
            self.sockets.rmdir()


def current_run(environment: Mapping[str, str]) -> CurrentRun:
    """Return the run in ``$GIPFEL_RUN``, else create the run ``local-<pid>-<time>`` for this server.

    Raises
    ------
    GipfelError
        The run folder can't be created or entered.
    """
    node = environment.get("GIPFEL_NODE") or socket.gethostname().partition(".")[0]
    if given := environment.get(_RUN):
        folder = RunFolder(Path(given))
        if not folder.telemetry.is_dir():
            raise GipfelError(
                f"The run folder {given} does not exist.",
                "Restart the server; its job creates the folder again.",
            )
        cluster, _, job_id = folder.name.rpartition("-")
        return CurrentRun(
            folder,
            Path(environment.get(_SOCKETS) or folder.path),
            node,
            environment.get("GIPFEL_JOB_ID") or job_id,
            environment.get("GIPFEL_CLUSTER") or cluster,
        )
    # A process ID is reused after a reboot, and on other nodes that share the home directory.
    job_id = f"{os.getpid()}-{int(time.time())}"
    folder = RunFolder.create(runs_root(dict(environment)), _OWN_CLUSTER, job_id)
    folder.write_record(_own_record(node, job_id))
    sockets = ScratchFolder.create().path
    return CurrentRun(folder, sockets, node, job_id, _OWN_CLUSTER, created_by_server=True)


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
    # ISO 8601 without a time zone would be parsed as local time.
    if moment is None or not re.search(r"(Z|[+-]\d\d:\d\d)$", moment):
        return None
    return int(datetime.fromisoformat(moment).timestamp()) * 1_000_000_000


def missing_gpus(
    record: Mapping[str, Any], devices: Iterable[Device], node: str, dev: Path = Path("/dev")
) -> str:
    """Return a message if GPUs were requested and none is recorded; else an empty text.

    Parameters
    ----------
    record
        The run's ``record.json``; its options hold the GPUs per node.
    devices
        Recorded devices; simulated GPUs don't count.
    """
    options = record.get("options")
    requested = options.get("gpus") if isinstance(options, dict) else None
    has_gpu = any(device.kind == "gpu" and not device.simulated for device in devices)
    if not isinstance(requested, int) or requested < 1 or has_gpu:
        return ""
    has_device_files = any(any(dev.glob(pattern)) for pattern in _DRIVERS)
    reason = (
        f"{node} has GPUs, but their driver does not respond in this environment. "
        "Run nvidia-smi in a terminal."
        if has_device_files
        else f"{node} has no GPUs, or the job was not given any. Start the server on a node with GPUs."
    )
    gpus = f"{requested} GPU{'' if requested == 1 else 's'}"
    return f"You requested {gpus}, but this server has none: {reason}"


class RunReports:
    """Maker of reports; one at a time, since each may take a core for a minute."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._lock = asyncio.Lock()
        self._requests = 0

    async def page(self, run: Path, base_url: str = "") -> bytes:
        """Return the report of a run folder as HTML; with a server's base URL, it links the job page.

        Raises
        ------
        GipfelError
            The report can't be made, takes more than 5 minutes, or too many others are waiting.
        """
        if self._requests > _MAX_WAITING:
            raise GipfelError(
                "Too many reports are requested at a time.",
                f"Try again in a few minutes, or make it in a terminal: gipfel report {run.name}",
            )
        self._requests += 1
        try:
            async with self._lock:
                return await self._page(run, base_url)
        finally:
            self._requests -= 1

    async def _page(self, run: Path, base_url: str) -> bytes:
        environment = {"JUPYTERHUB_SERVICE_PREFIX": base_url, **self._environment}
        with tempfile.TemporaryDirectory(prefix="gipfel-") as folder:
            output = Path(folder) / "report.html"
            await run_gipfel(("report", str(run), "-o", str(output)), environment, _LIMIT_S)
            try:
                return await asyncio.to_thread(read_regular, output, _MAX_BYTES)
            except OSError as error:
                raise GipfelError(f"The report of {run.name} can't be read: {error.strerror}.") from error


async def run_gipfel(arguments: tuple[str, ...], environment: Mapping[str, str], limit_s: float) -> None:
    """Run a command of ``gipfel`` about the run in its second argument in a process of its own.

    Raises
    ------
    GipfelError
        It failed, with the last line that it printed, or it takes longer than the limit.
    """
    verb, run = arguments[0], Path(arguments[1]).name
    command = [sys.executable, "-m", "gipfel_extension.cli", *arguments]
    try:
        done = await run_command(command, environment=environment, limit=limit_s)
    except TimeoutError:
        raise GipfelError(
            f"`gipfel {verb}` of {run} takes more than {limit_s:.0f} s.",
            f"Run it in a terminal: gipfel {verb} {run}",
        ) from None
    if done.code:
        message = done.errors.strip().rpartition("\n")[2].removeprefix("gipfel: ")
        raise GipfelError(message or f"gipfel {verb} ended with exit status {done.code}.")
