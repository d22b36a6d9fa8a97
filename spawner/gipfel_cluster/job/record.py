"""Build the content of ``record.json``: options, EDF, image, nodes, versions, command.

An image has tens of gigabytes. Its digest is looked up in the user's cache when a job starts. If the cache
does not have it, `BackgroundDigest` computes it while the job runs, slowly and at the lowest priority.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..edf import Edf
from ..edf.mounts import read_reference
from ..environment import without_tokens
from ..git_state import git_state
from ..image_verdict import is_configured, verdict_command
from ..model import GipfelError
from ..runs import user_cache, write_atomically
from ..runtime import Runtime
from ..scheduler.notation import expand_hostlist
from . import JobSpec
from .time_limit import time_limit_end

_PIECE_BYTES = 1 << 20
#: Wait until the container has started, since it reads the same file.
_DELAY_S = 30.0
_BYTES_PER_S = 256 << 20
_DIGEST_S = 1800.0
_LOWEST_PRIORITY = 19
_ENTRY_BYTES = 1 << 10
_MAX_ENTRIES = 256
#: Name of the user's cache of digests, which scans of images share.
DIGESTS = "image-digests"
_PACKAGES = ("gipfel", "jupyterlab", "jupyterhub", "papermill", "pyarrow", "plotly", "nvidia-ml-py")


def image_identity(edf: Edf | None, cache: Path) -> dict[str, Any] | None:
    """Return the path, size, modification time and digest of a run's image.

    ``digest`` is None if it is not computed yet, or if the image is an unpacked directory, which has none.
    For an image in a registry it is known only if the EDF names the image by its digest.
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


class BackgroundDigest:
    """Computes a missing digest of an `image_identity` in a thread of the lowest priority.

    Parameters
    ----------
    identity
        Its ``digest`` is set to the result.
    on_digest
        Called once after ``digest`` was set, but never after `stop` has returned.
    delay_s, bytes_per_s, limit_s
        Delay before reading, reading rate, and time after which it gives up.
    """

    def __init__(
        self,
        identity: dict[str, Any] | None,
        cache: Path,
        on_digest: Callable[[], None],
        *,
        delay_s: float = _DELAY_S,
        bytes_per_s: float = _BYTES_PER_S,
        limit_s: float = _DIGEST_S,
    ) -> None:
        self._identity = identity or {}
        self._cache = cache
        self._on_digest = on_digest
        self._delay_s, self._bytes_per_s, self._limit_s = delay_s, bytes_per_s, limit_s
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        # A daemon thread: a file system that does not answer may block it for ever.
        self._thread = threading.Thread(target=self._run, name="image digest", daemon=True)
        if "size" in self._identity and self._identity["digest"] is None:
            self._thread.start()

    def stop(self) -> None:
        """Stop the computation; a digest that is not known yet stays None."""
        self._stopped.set()
        with self._lock:
            return

    def wait(self, seconds: float) -> None:
        """Wait until the computation has ended, at most so many seconds."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        with suppress(OSError):
            # On Linux each thread has its own priority.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        if self._stopped.wait(self._delay_s):
            return
        with suppress(OSError):
            digest = self._compute(self._identity["path"])
            if digest is None:
                return
            with self._lock:
                if not self._stopped.is_set():
                    self._identity["digest"] = digest
                    self._on_digest()

    def _compute(self, path: str) -> str | None:
        """Return the digest of a file; None if stopped, if it takes too long, or if the file changes."""
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb", buffering=0) as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                return None
            # Reading must not evict the container's pages from the page cache.
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_NOREUSE)
            sha256, count, started = hashlib.sha256(), 0, time.monotonic()
            while piece := file.read(_PIECE_BYTES):
                sha256.update(piece)
                count += len(piece)
                elapsed = time.monotonic() - started
                if elapsed > self._limit_s or count > about.st_size:
                    return None
                if self._stopped.wait(max(0.0, count / self._bytes_per_s - elapsed)):
                    return None
            digest = f"sha256:{sha256.hexdigest()}"
            return digest if keep_digest(self._cache, path, handle, about, digest) else None


class BackgroundVerdict:
    """Process of the lowest priority that judges the job's image, and keeps the verdict in the run folder.

    It runs outside of the container, where image and advisories are; nothing runs where neither site nor user
    want verdicts.
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
        """Wait so many seconds at most, and end it."""
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _key(path: str, status: os.stat_result) -> dict[str, Any]:
    """Return the attributes that change with a file's content; device numbers differ between nodes."""
    return {
        "path": os.path.realpath(path),
        "inode": status.st_ino,
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
    }


def _entry(cache: Path, path: str) -> Path:
    return cache / f"{hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()}.json"


def cached_digest(cache: Path, path: str, status: os.stat_result) -> str | None:
    """Return the digest of a file that has not changed since it was computed; None if it is not known."""
    try:
        handle = os.open(_entry(cache, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            content = json.loads(file.read(_ENTRY_BYTES + len(path) * 6))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    digest = content.pop("digest", None)
    return digest if isinstance(digest, str) and content == _key(path, status) else None


def keep_digest(cache: Path, path: str, handle: int, status: os.stat_result, digest: str) -> bool:
    """Keep the digest of a file that is open; return False if the file has changed since `status`."""
    if _key(path, os.fstat(handle)) != _key(path, status):
        return False
    # If the cache can't be written to, the digest is computed again.
    with suppress(OSError):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(_entry(cache, path), json.dumps({**_key(path, status), "digest": digest}))
        entries = sorted(cache.glob("*.json"), key=lambda each: each.stat().st_mtime_ns, reverse=True)
        for old in entries[_MAX_ENTRIES:]:
            old.unlink(missing_ok=True)
    return True


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
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
