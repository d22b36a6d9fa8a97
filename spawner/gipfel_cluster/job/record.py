"""What ``record.json`` says of a run."""

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..edf import Edf
from ..runtime import Runtime
from ..scheduler.hostlist import expand_hostlist
from .image_digest import cache_folder, image_identity
from .spec import JobSpec

_PACKAGES = ("gipfel", "jupyterlab", "jupyterhub", "papermill", "pyarrow", "plotly", "nvidia-ml-py")


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def job_id_of(environment: Mapping[str, str]) -> str:
    """The number of this process's job; of a task of an array ``<array's>_<task's>``, as squeue says."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return environment.get("SLURM_JOB_ID") or environment.get("GIPFEL_JOB_ID", "")


def scheduler_of(environment: Mapping[str, str]) -> str:
    """Return the name of the scheduler that runs this process's job: ``slurm`` or ``local``."""
    return "slurm" if "SLURM_JOB_ID" in environment else "local"


def describe_run(
    spec: JobSpec,
    edf: Edf | None,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    node: str,
    runtime: Runtime,
) -> dict[str, Any]:
    """The record at the start of a run: options, resolved EDF and digest, nodes, versions, command."""
    return {
        "schema": 1,
        "kind": spec.kind,
        "cluster": spec.cluster,
        "job_id": job_id_of(environment),
        "started": now(),
        "ended": None,
        "exit_status": None,
        "node": node,
        "nodes": list(expand_hostlist(environment.get("SLURM_JOB_NODELIST") or node)),
        "time_limit_ends": _ends(environment),
        "options": dict(spec.options),
        "edf": edf.model_dump(mode="json") if edf else None,
        "edf_digest": edf.digest if edf else None,
        "image": image_identity(edf, cache_folder(environment)),
        "engine": spec.engine if edf and edf.image else "host",
        "runtime": {"root": runtime.root, "prefix": runtime.prefix, "version": runtime.version},
        "interval": spec.interval,
        "command": list(command),
        "versions": _versions(),
    }


def _ends(environment: Mapping[str, str]) -> str | None:
    seconds = environment.get("SLURM_JOB_END_TIME") or environment.get("GIPFEL_JOB_END_TIME") or ""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat() if seconds.isdigit() else None


def _versions() -> dict[str, str]:
    versions = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
