"""Build the content of ``record.json``: options, EDF, image, nodes, versions, command."""

import importlib.metadata
import platform
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..edf import Edf
from ..edf.mounts import read_reference
from ..environment import without_tokens
from ..image_digest import DIGESTS, cached_digest
from ..image_verdict import is_configured, verdict_command
from ..model import GipfelError
from ..runs import user_cache
from ..runtime import Runtime
from ..scheduler.notation import expand_hostlist
from . import JobSpec
from .git_state import git_state
from .time_limit import time_limit_end

_PACKAGES = ("gipfel", "jupyterlab", "jupyterhub", "papermill", "pyarrow", "plotly", "nvidia-ml-py")


def image_identity(edf: Edf | None, cache: Path) -> dict[str, Any] | None:
    """Return the path, size, modification time and digest of a run's image.

    ``digest`` is None if it has not been computed yet, or if the image is an unpacked directory. For an
    image in a registry it is known only if the EDF names the image by its digest.
    """
    if edf is None or not edf.image:
        return None
    if edf.image_path is None:
        return {"path": edf.image, "digest": _digest_in_name(edf.image)}
    try:
        about = edf.image_path.stat()
    except OSError:
        return {"path": edf.image, "digest": None}
    identity = {"path": edf.image, "mtime_ns": about.st_mtime_ns, "digest": None}
    if not stat.S_ISREG(about.st_mode):
        return identity
    return identity | {"size": about.st_size, "digest": cached_digest(cache, edf.image, about)}


def _digest_in_name(image: str) -> str | None:
    try:
        _, at, digest = read_reference(image).version.rpartition("@")
    except GipfelError:
        return None
    return digest if at else None


class BackgroundVerdict:
    """A process with the lowest priority that computes the verdict on the job's image for the run folder.

    It runs outside the container, because image and advisories are there. It is not started if neither the
    site nor the user has configured verdicts.
    """

    def __init__(self, image: str, run: Path, environment: Mapping[str, str]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if not image or not is_configured(environment):
            return
        with suppress(OSError):
            self._process = subprocess.Popen(
                verdict_command(sys.executable, image, keep=run),
                env=without_tokens(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )

    def finish(self, seconds: float) -> None:
        """Wait at most ``seconds`` for the verdict, then end the process."""
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def now() -> str:
    """Return the current time in UTC as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def job_id_of(environment: Mapping[str, str]) -> str:
    """Return the id of this process's job; for a task of a job array ``<array job>_<task>``, as in squeue."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return environment.get("SLURM_JOB_ID") or environment.get("GIPFEL_JOB_ID", "")


def describe_run(
    spec: JobSpec,
    edf: Edf | None,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    node: str,
    runtime: Runtime,
) -> dict[str, Any]:
    """Return the content of ``record.json`` at the start of a run."""
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
        "image": image_identity(edf, user_cache(DIGESTS, environment)),
        "engine": spec.engine if edf and edf.image else "host",
        "runtime": {"root": runtime.root, "prefix": runtime.prefix, "version": runtime.version},
        "interval": spec.interval,
        "command": list(command),
        "git": _git_state(spec, environment),
        "versions": _versions(),
    }


def _git_state(spec: JobSpec, environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the commit of a notebook's or launch's directory; a server has none."""
    if spec.kind == "server" or not spec.directory:
        return None
    state = git_state(Path(spec.directory), environment)
    return None if state is None else state.model_dump()


def _ends(environment: Mapping[str, str]) -> str | None:
    end = time_limit_end(environment)
    return None if end is None else datetime.fromtimestamp(end, UTC).isoformat()


def _versions() -> dict[str, str]:
    versions = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
