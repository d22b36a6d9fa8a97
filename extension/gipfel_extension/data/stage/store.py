"""The copies of one staging on its node: tier and space, locks, files, and their removal."""

import errno
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from gipfel_cluster.model import GipfelError
from gipfel_cluster.staged import (
    available_memory,
    describe_path,
    lock_content,
    open_store,
    share_content,
    sweep,
)
from gipfel_cluster.storage_classes import node_stores

from ..s3 import S3Service
from .exchange import ExchangeError, FileCopy
from .model import StageItem, StageSpec

_POLL_S = 0.2
_DISK_SHARE, _MEMORY_SHARE = 0.9, 0.5


class NodeStore:
    """Copies in the first tier of this node with enough space, and their locks.

    Raises
    ------
    GipfelError
        No tier has enough space.
    OSError
        A store can't be used.
    """

    def __init__(self, spec: StageSpec, items: Sequence[StageItem], environment: Mapping[str, str]) -> None:
        self._spec, self._items = spec, items
        self._job = environment.get("SLURM_JOB_ID", "")
        self._environment = environment
        self._locks: dict[str, int] = {}
        self._files: list[BinaryIO] = []
        self.tier, self.path = self._choose()

    def _choose(self) -> tuple[str, Path]:
        available = node_stores(self._environment)
        problems = []
        for tier in [self._spec.to] if self._spec.to != "auto" else ["nvme", "memory"]:
            store = available.get(tier)
            if store is None:
                problems.append("no local disk is known (GIPFEL_STORAGE_FAST names one)")
                continue
            sweep(store)
            open_store(store)
            problem = self._space_problem(tier, store)
            if not problem:
                return tier, store
            problems.append(problem)
            sweep(store)
        raise GipfelError(f"The data does not fit: {'; '.join(problems)}.")

    def _space_problem(self, tier: str, store: Path) -> str:
        """Return why the files that are not there yet don't fit, as a clause; empty if they do."""
        needed = sum(each.size for each in self._items if not (store / each.key / "data").exists())
        used = sum(each.stat().st_size for each in store.glob("*/data"))
        about = os.statvfs(store)
        free = about.f_bavail * about.f_frsize
        if tier == "memory":
            limit, share = self._spec.max_memory, _MEMORY_SHARE
            free = min(free, available_memory())
        else:
            limit, share = self._spec.max_disk, _DISK_SHARE
        allowed = int(free * share) if limit is None else min(free, max(0, limit - used))
        if needed <= allowed:
            return ""
        name = "memory" if tier == "memory" else str(store.parent)
        return f"{name} has {_size(allowed)} for it, and {_size(needed)} are needed"

    def open(self) -> list[FileCopy]:
        """Return a copy per file: one that is there and complete, or a new one whose space is reserved.

        Waits while another job of this user copies the same content.

        Raises
        ------
        OSError
            A file can't be created, or the disk is full.
        """
        # In one order, so that two jobs don't wait for each other.
        found = {item.key: self._open(item) for item in sorted(self._items, key=lambda each: each.key)}
        return [found[item.key] for item in self._items]

    def _open(self, item: StageItem) -> FileCopy:
        content = self.path / item.key
        complete = self._lock(content, item.key)
        flags = os.O_RDONLY if complete else os.O_RDWR | os.O_CREAT | os.O_TRUNC
        name = content / ("data" if complete else "part")
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        file = cast("BinaryIO", os.fdopen(descriptor, "rb" if complete else "r+b", buffering=0))
        self._files.append(file)
        if not complete and item.size:
            try:
                # Reserved now, so that a full disk shows before the data is read.
                os.posix_fallocate(descriptor, 0, item.size)
            except OSError as error:
                if error.errno not in {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}:
                    raise
                os.ftruncate(descriptor, item.size)
        # Before the disk can be full; without `data` it describes nothing yet.
        describe_path(content, item.path, item.size, item.mtime_ns, self._job)
        return FileCopy(item, file, complete=complete)

    def _lock(self, content: Path, key: str) -> bool:
        """Lock a content, shared if it is complete; return whether it is."""
        while True:
            with suppress(FileExistsError):
                content.mkdir(mode=0o700)
            complete = (content / "data").exists()
            # Another process may remove it between two of these calls.
            with suppress(FileNotFoundError):
                lock = lock_content(content, exclusive=not complete)
                if lock is not None:
                    if complete == (content / "data").exists():
                        self._locks[key] = lock
                        return complete
                    os.close(lock)
                    continue
            time.sleep(_POLL_S)

    def finish(self, copy: FileCopy, service: S3Service | None = None) -> None:
        """Give a filled copy its name and share its lock, unless its original changed meanwhile.

        Raises
        ------
        ExchangeError
            It changed.
        OSError
            It changed, or can't be read any more.
        """
        item = copy.item
        if item.is_remote and service is not None:
            service.check_unchanged(item.object)
        else:
            about = Path(item.path).stat()
            if (about.st_size, about.st_mtime_ns) != (item.size, item.mtime_ns):
                raise ExchangeError(f"{item.path} changed while it was staged")
        content = self.path / item.key
        if not copy.complete:
            os.fchmod(copy.file.fileno(), 0o400)
            (content / "part").rename(content / "data")
        if not share_content(self._locks[item.key]):
            raise ExchangeError(f"the copy of {item.path} was removed by another process")

    def release(self) -> None:
        """Give up the copies, and remove those that no other process needs."""
        for file in self._files:
            file.close()
        for lock in self._locks.values():
            os.close(lock)
        sweep(self.path)

    def explain(self, error: OSError) -> str:
        """Return an error of a file as a sentence."""
        if error.errno == errno.ENOSPC:
            return f"There is no space left in {'memory' if self.tier == 'memory' else self.path.parent}."
        return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 1 << 28 else f"{count / 2**20:.1f} MiB"
