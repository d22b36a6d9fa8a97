"""The SHA-256 digest of an image's content, in a cache of the user that jobs and scans share.

An image may have tens of gigabytes. Its digest is looked up in the cache when a job starts. If the cache does
not have it, `BackgroundDigest` computes it while the job runs, slowly and at the lowest priority.
"""

import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .regular_files import read_regular
from .runs import write_atomically

_PIECE_BYTES = 1 << 20
#: Wait until the container has started, since it reads the same file.
_DELAY_S = 30.0
_BYTES_PER_S = 256 << 20
#: Seconds of reading after which the digest is given up.
_DIGEST_S = 1800.0
_LOWEST_PRIORITY = 19
_ENTRY_BYTES = 1 << 10
_MAX_ENTRIES = 256
#: Name of the user's cache of digests, which scans of images share.
DIGESTS = "image-digests"


def stable_device(status: os.stat_result) -> int:
    """Return a file's device number; 0 for a file system without a block device.

    Network file systems, and others such as tmpfs, get their number when they are mounted, so that it differs
    between nodes and after a restart. Inode and times identify a file there, together with its path.
    """
    return status.st_dev if os.major(status.st_dev) else 0


def _key(path: str, status: os.stat_result) -> dict[str, Any]:
    """Return the attributes that change with a file's content."""
    return {
        "path": os.path.realpath(path),
        "device": stable_device(status),
        "inode": status.st_ino,
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
    }


def _entry(cache: Path, path: str) -> Path:
    return cache / f"{hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()}.json"


def cached_digest(cache: Path, path: str, status: os.stat_result) -> str | None:
    """Return the cached digest ``sha256:…`` of a file; None without one, or if the file has changed."""
    try:
        content = json.loads(read_regular(_entry(cache, path), _ENTRY_BYTES + len(path) * 6))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    digest = content.pop("digest", None)
    return digest if isinstance(digest, str) and content == _key(path, status) else None


def keep_digest(cache: Path, path: str, handle: int, status: os.stat_result, digest: str) -> bool:
    """Write the digest of an open file to the cache; return False if the file has changed since `status`."""
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


class BackgroundDigest:
    """Computes the missing digest of an image in a thread of the lowest priority.

    Parameters
    ----------
    identity
        Result of `image_identity`, whose ``digest`` is set to the result; None, or one with a digest, does
        nothing.
    cache
        Directory of the user's cache.
    on_digest
        Called once after ``digest`` was set, but never after `stop` has returned.
    delay_s, bytes_per_s, limit_s
        Seconds before reading, highest reading rate, and seconds of reading after which it gives up.
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
        """Stop the computation; ``digest`` stays None if it is not known yet."""
        self._stopped.set()
        with self._lock:
            return

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for the end of the computation."""
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
