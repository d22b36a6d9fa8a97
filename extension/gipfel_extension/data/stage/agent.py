"""Staging on one node: ``python -m gipfel_extension.data.stage.agent DIRECTORY``, a task of a step.

It makes the copies and holds their locks until its supervisor ends or it gets a signal. Then it removes the
copies that no other process needs. `NodeStore` manages the copies: tier and space, locks, files, and removal.
"""

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic import TypeAdapter

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

from ...telemetry.files import read_regular
from ..s3 import S3Service
from .exchange import Exchange, ExchangeError, FileCopy, Peer
from .model import ITEMS, RENDEZVOUS, StageItem, StageSpec
from .wire import Channel, Rendezvous

_MAX_BYTES = 64 << 20
_FIND_S = 60.0
_BEAT_S = 0.5
_POLL_S = 0.2
#: No time limit for messages from the supervisor, which sends nothing while the copies are held.
_CONTROL_S = None
_ITEMS = TypeAdapter(tuple[StageItem, ...])
_DISK_SHARE, _MEMORY_SHARE = 0.9, 0.5


class Agent:
    """The staging of one node.

    Parameters
    ----------
    folder
        The workload's directory.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._spec = StageSpec.model_validate_json(read_regular(folder / "spec.json", _MAX_BYTES))
        self._items = _ITEMS.validate_json(read_regular(folder / ITEMS, _MAX_BYTES))
        self._rendezvous = Rendezvous.model_validate_json(read_regular(folder / RENDEZVOUS, _MAX_BYTES))
        self._rank = int(environment.get("GIPFEL_NODE_RANK", "0"))
        self._sending = threading.Lock()

    def run(self) -> int:
        """Stage the data, hold the copies until the end, and remove them; return the exit status."""
        channel = self._connect()
        self._send(channel, {"kind": "connected", "rank": self._rank})
        store = None
        try:
            service = S3Service(self._environment) if any(each.is_remote for each in self._items) else None
            store = NodeStore(self._spec, self._items, self._environment)
            self._stage(channel, store, service)
        except (ExchangeError, GipfelError, OSError) as error:
            known = isinstance(error, OSError) and store is not None
            problem = store.explain(error) if known and store and isinstance(error, OSError) else str(error)
            self._send(channel, {"kind": "failed", "problem": problem})
            return 1
        else:
            return 0
        finally:
            if store is not None:
                store.release()

    def _connect(self) -> Channel:
        key, end = bytes.fromhex(self._rendezvous.key), time.monotonic() + _FIND_S
        while True:
            for host in self._rendezvous.hosts:
                try:
                    channel = Channel.connect((host, self._rendezvous.port), key, _FIND_S)
                except OSError as error:
                    problem = error
                else:
                    channel.socket.settimeout(_CONTROL_S)
                    return channel
            if time.monotonic() > end:
                raise problem
            time.sleep(_POLL_S)

    def _stage(self, channel: Channel, store: "NodeStore", service: S3Service | None) -> None:
        copies = store.open()
        exchange = Exchange(
            copies,
            bytes.fromhex(self._rendezvous.key),
            rank=self._rank,
            patience_s=self._spec.silent_s / 4,
            notify=lambda rank, problem: self._send(
                channel, {"kind": "doubt", "rank": rank, "problem": problem}
            ),
            service=service,
        )
        complete = [number for number, each in enumerate(copies) if each.complete]
        hello = {"port": exchange.port, "complete": complete, "tier": store.tier}
        reused = sum(copies[number].item.size for number in complete)
        self._send(channel, {"kind": "hello", "reused": reused, **hello})
        plan, _ = channel.receive()
        peers = {
            int(rank): Peer((str(host), int(port)), frozenset(had))
            for rank, (host, port, had) in plan["peers"].items()
        }
        ended = threading.Event()
        reporter = threading.Thread(target=self._report, args=(channel, exchange, ended), daemon=True)
        reporter.start()
        try:
            exchange.fill(peers)
        finally:
            ended.set()
            reporter.join()
        for copy in copies:
            store.finish(copy, service)
        roots = [each.root_hash for each in copies]
        self._send(channel, {"kind": "staged", **_counts(exchange), "roots": roots})
        # Wait until the supervisor ends, or ends this staging.
        with contextlib.suppress(OSError):
            while channel.receive()[0].get("kind") != "end":
                continue
        exchange.close()

    def _report(self, channel: Channel, exchange: Exchange, ended: threading.Event) -> None:
        while not ended.wait(_BEAT_S):
            self._send(channel, {"kind": "progress", **_counts(exchange)})

    def _send(self, channel: Channel, message: dict[str, Any]) -> None:
        # If the supervisor is gone, this task ends anyway.
        with self._sending, contextlib.suppress(OSError):
            channel.send(message)


def _counts(exchange: Exchange) -> dict[str, int]:
    return {"done": exchange.done, "read": exchange.read, "received": exchange.received}


def main() -> int:
    """Stage on this node; SIGTERM ends the hold."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    try:
        return Agent(Path(sys.argv[1]), os.environ).run()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"gipfel: nothing can be staged here: {' '.join(str(error).split())[:300]}\n")
        return 1


class NodeStore:
    """Copies and their locks, in the first tier of this node that has enough space.

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
        """Return why the missing files don't fit, as a clause; empty if they fit."""
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
        """Return a copy per file: a complete one that is already there, or a new one with reserved space.

        This waits while another job of this user copies the same content.

        Raises
        ------
        OSError
            A file can't be created, or the disk is full.
        """
        # All jobs lock copies in the same order, so that two jobs don't wait for each other.
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
                # Reserve the space now, so that a full disk is noticed before the data is read.
                os.posix_fallocate(descriptor, 0, item.size)
            except OSError as error:
                if error.errno not in {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}:
                    raise
                os.ftruncate(descriptor, item.size)
        # Write the description now, while there is space; it is not read before the file `data` exists.
        describe_path(content, item.path, item.size, item.mtime_ns, self._job)
        return FileCopy(item, file, complete=complete)

    def _lock(self, content: Path, key: str) -> bool:
        """Lock a copy's directory, with a shared lock if the copy is complete; return whether it is."""
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
        """Rename a filled copy to its final name and make its lock shared, unless the original has changed.

        Raises
        ------
        ExchangeError
            The original has changed, or another process removed the copy.
        OSError
            The original can't be read any more, or an object of S3 has changed.
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
        """Release the locks, and remove the copies that no other process needs."""
        for file in self._files:
            file.close()
        for lock in self._locks.values():
            os.close(lock)
        sweep(self.path)

    def explain(self, error: OSError) -> str:
        """Return a sentence for an error with a file."""
        if error.errno == errno.ENOSPC:
            return f"There is no space left in {'memory' if self.tier == 'memory' else self.path.parent}."
        return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 1 << 28 else f"{count / 2**20:.1f} MiB"


if __name__ == "__main__":
    sys.exit(main())
