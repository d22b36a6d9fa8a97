"""Exchange chunks between the nodes of a staging: each chunk is read once and passed on along a tree.

The nodes take turns as the root of a chunk's tree, which reads the chunk from the shared file system; every
other node gets it from its parent in the tree. So each of N nodes reads 1/N of the data, and sends and
receives about as many bytes as the data has. If a parent is lost or slow, this node leaves it out of its
trees and gets the chunk from the next node, or reads it itself.
"""

import contextlib
import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from ..manifest import root_of
from ..s3 import S3Service
from .model import StageItem
from .wire import CHUNK_BYTES, Channel, WireError

_READERS, _FETCHERS = 4, 4
_CONNECT_S = 10.0
#: Seconds for which a node waits for a requested chunk before it replies that it does not have it yet.
_HOLD_S = 2.0
_IDLE_S = 3600.0
_FANOUT = 2


class ExchangeError(Exception):
    """A file can't be copied to this node."""


class FileCopy:
    """The copy of one file, whose chunks arrive in any order.

    Parameters
    ----------
    file
        The open copy, of its final size.
    complete
        Whether the copy already has all of its content.
    """

    def __init__(self, item: StageItem, file: BinaryIO, *, complete: bool) -> None:
        self.item, self.file, self.complete = item, file, complete
        self.count = -(-item.size // CHUNK_BYTES)
        self.digests: list[str] = list(item.chunks) if complete and item.chunks else [""] * self.count

    def size_of(self, index: int) -> int:
        """Return the bytes of a chunk."""
        return min(CHUNK_BYTES, self.item.size - index * CHUNK_BYTES)

    @property
    def root_hash(self) -> str:
        """Return the root hash of all chunks; empty while some are missing."""
        return root_of(self.item.size, self.digests) if all(self.digests) else ""


class Peer:
    """A node of the staging, this one included: its address, and the files that it had at the beginning."""

    def __init__(self, address: tuple[str, int], complete: frozenset[int]) -> None:
        self.address, self.complete = address, complete


class Exchange:
    """Fills the copies of this node, and serves their chunks to other nodes.

    Parameters
    ----------
    rank
        This node's key in the `peers` of `fill`.
    patience_s
        Seconds after which a parent that delivers nothing is left out.
    notify
        Called with a node's rank and a clause on what is wrong with it.
    service
        The S3 service for files that are S3 objects; None if there are none.
    """

    def __init__(
        self,
        copies: Sequence[FileCopy],
        key: bytes,
        *,
        rank: int,
        patience_s: float,
        notify: Callable[[int, str], None],
        service: S3Service | None = None,
    ) -> None:
        self._copies, self._key, self._rank = copies, key, rank
        self._patience_s, self._notify, self._service = patience_s, notify, service
        self._changed = threading.Condition()
        self._left_out: set[int] = set()
        self._peers: dict[int, Peer] = {}
        self._errors: list[BaseException] = []
        self.read = self.received = 0
        self.done = sum(each.item.size for each in copies if each.complete)
        self._listener = socket.create_server(("", 0), backlog=1024)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Return the port on which this node serves chunks."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop accepting connections."""
        self._listener.close()

    def fill(self, peers: dict[int, Peer]) -> None:
        """Get all missing chunks.

        Raises
        ------
        ExchangeError
            A file can't be read or written, or its content does not match the hashes in its summary.
        """
        self._peers = peers
        mine: list[tuple[int, int]] = []
        others: list[tuple[int, int]] = []
        for number, copy in enumerate(self._copies):
            if not copy.complete:
                for index in range(copy.count):
                    first = self._order(number, index)[0] == self._rank
                    (mine if first else others).append((number, index))
        work = [(_Queue(mine), _READERS), (_Queue(others), _FETCHERS)]
        threads = [
            threading.Thread(target=self._work, args=(queue,), daemon=True)
            for queue, count in work
            for _ in range(count)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if self._errors:
            raise ExchangeError(_reason(self._errors[0])) from self._errors[0]
        for copy in self._copies:
            if copy.item.root and not copy.complete and copy.root_hash != copy.item.root:
                raise ExchangeError(f"{copy.item.path} does not match the hashes in {_summary(copy)}")

    def _work(self, queue: "_Queue") -> None:
        channels: dict[int, Channel] = {}
        try:
            while not self._errors and (task := queue.next()) is not None:
                self._get(*task, channels)
        except (OSError, ExchangeError) as error:
            self._errors.append(error)
        finally:
            for each in channels.values():
                each.close()

    def _order(self, number: int, index: int) -> list[int]:
        """Return the nodes of a chunk's tree, parents first, without nodes that this node leaves out."""
        ranks = sorted(self._peers)
        complete = [rank for rank in ranks if number in self._peers[rank].complete]
        owners = complete or ranks
        turn = index % len(owners)
        rest = [rank for rank in ranks if rank not in set(owners)]
        order = owners[turn:] + owners[:turn] + rest
        return [rank for rank in order if rank not in self._left_out or rank == self._rank]

    def _get(self, number: int, index: int, channels: dict[int, Channel]) -> None:
        """Get one chunk from the parent in its tree, or from the shared file system if there is no parent."""
        began = time.monotonic()
        while True:
            order = self._order(number, index)
            place = order.index(self._rank)
            if not place:
                self._read(number, index)
                return
            parent = order[(place - 1) // _FANOUT]
            try:
                if self._fetch(number, index, parent, channels):
                    return
                problem = "does not have its chunks yet"
            except OSError as error:
                problem = f"is lost: {_reason(error)}"
                # Long ago: a parent without a connection is left out at once.
                began = 0.0
                if channel := channels.pop(parent, None):
                    channel.close()
            if time.monotonic() - began > self._patience_s and parent not in self._left_out:
                self._left_out.add(parent)
                self._notify(parent, problem)
                began = time.monotonic()

    def _fetch(self, number: int, index: int, parent: int, channels: dict[int, Channel]) -> bool:
        """Request a chunk from a node; return whether the node had it."""
        if parent not in channels:
            address = self._peers[parent].address
            # A node that hangs may accept connections and then never answer.
            limit_s = max(_HOLD_S + 1, min(_CONNECT_S, self._patience_s))
            channels[parent] = Channel.connect(address, self._key, limit_s)
        channel, copy = channels[parent], self._copies[number]
        channel.send({"file": number, "chunk": index})
        answer, data = channel.receive()
        if not data and copy.size_of(index):
            return False
        if len(data) != copy.size_of(index):
            raise WireError("a chunk has the wrong size")
        self._store(copy, index, data, str(answer["sha256"]))
        with self._changed:
            self.received += len(data)
        return True

    def _read(self, number: int, index: int) -> None:
        copy = self._copies[number]
        size, offset = copy.size_of(index), index * CHUNK_BYTES
        if copy.item.is_remote and self._service is not None:
            content = self._service.read(copy.item.object, offset, size)
        else:
            content = _read_file(copy.item.path, offset, size)
        if len(content) != size:
            raise ExchangeError(f"{copy.item.path} became shorter while it was read")
        with self._changed:
            self.read += size
        self._store(copy, index, content, hashlib.sha256(content).hexdigest())

    def _store(self, copy: FileCopy, index: int, data: "bytes | memoryview", digest: str) -> None:
        if copy.item.chunks and copy.item.chunks[index] != digest:
            raise ExchangeError(
                f"{copy.item.path} is damaged: chunk {index} does not match its hash in {_summary(copy)}"
            )
        done, offset = 0, index * CHUNK_BYTES
        while done < len(data):
            done += os.pwrite(copy.file.fileno(), data[done:], offset + done)
        with self._changed:
            copy.digests[index] = digest
            self.done += len(data)
            self._changed.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        # A peer disconnects when it has everything or is lost; any other client fails the handshake.
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError, IndexError):
            channel = Channel(connected, self._key, accepted=True, timeout_s=_CONNECT_S)
            connected.settimeout(_IDLE_S)
            try:
                while True:
                    self._answer(channel)
            finally:
                channel.close()

    def _answer(self, channel: Channel) -> None:
        message, _ = channel.receive()
        number, index = int(message["file"]), int(message["chunk"])
        if number < 0 or index < 0:
            raise IndexError
        copy = self._copies[number]
        size = copy.size_of(index)
        if copy.complete and not copy.digests[index]:
            content = os.pread(copy.file.fileno(), size, index * CHUNK_BYTES)
            copy.digests[index] = hashlib.sha256(content).hexdigest()
        with self._changed:
            self._changed.wait_for(lambda: copy.digests[index], _HOLD_S)
            digest = copy.digests[index]
        if digest:
            channel.send({"sha256": digest}, copy.file, index * CHUNK_BYTES, size)
        else:
            channel.send({"wait": True})


def _summary(copy: FileCopy) -> str:
    return f"its summary {copy.item.path}.json"


def _read_file(path: str, offset: int, size: int) -> bytes:
    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # Otherwise the kernel would read ahead into a chunk that another node reads.
        os.posix_fadvise(source, offset, size, os.POSIX_FADV_RANDOM)
        return os.pread(source, size, offset)
    finally:
        os.close(source)


class _Queue:
    """Chunks to get, in order; several threads take chunks from it."""

    def __init__(self, tasks: list[tuple[int, int]]) -> None:
        self._tasks = iter(tasks)
        self._lock = threading.Lock()

    def next(self) -> tuple[int, int] | None:
        with self._lock:
            return next(self._tasks, None)


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    name = getattr(error, "filename", None)
    return f"{text} ({Path(str(name))})" if name else text
