"""Checks of storage: read and write rates, mounts, quota; with functions for their temporary files."""

import contextlib
import errno
import os
import statistics
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gipfel_cluster.model import OneLine

from ...telemetry.sources.file_systems import parse_mountinfo
from ..check import CheckContext, MissingRequirement, required
from ..model import Finding, Verdict, failed, passed
from ..threshold import Quantity, with_unit
from .gpus import BaseCheck

#: Bytes that are written and read at a time.
BLOCK_BYTES = 4 * 2**20
#: Each sector of a block has the block's number, since storage may deduplicate parts of any size.
_SECTOR_BYTES = 512
_SLOW_FIX = "Storage is slow now. Wait, or raise the check's time_limit."
_FULL_FIX = "Delete files that you don't need, or request more quota."
_FAULT_FIX = "Don't store data there, and tell the operators."
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
Access = Literal["read", "write"]


@contextlib.contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield a new file in a directory, open for writing and reading; delete it at the end.

    Raises
    ------
    MissingRequirement
        The directory does not exist or can't be written.
    """
    fix = "Check whether it is mounted, and whether you may write to it."
    with required(f"{folder} can't be written", fix):
        descriptor, name = tempfile.mkstemp(prefix=".gipfel-vet-", dir=folder)
    try:
        yield descriptor, Path(name)
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            Path(name).unlink()


class RandomContent:
    """Random content of a temporary file, of which no two sectors of 512 bytes are equal.

    Storage can't compress it, and can't deduplicate it in parts of 512 bytes or more.

    Parameters
    ----------
    size
        Bytes of the file.
    write
        Function with the interface of `os.write`, which may write fewer bytes than requested.
    """

    def __init__(self, size: int, write: Callable[[int, memoryview], int] = os.write) -> None:
        self._size, self._write = size, write
        self._random = bytearray(os.urandom(min(BLOCK_BYTES, size)))

    def _block(self, number: int) -> bytearray:
        """Return a block, which is valid until the next call."""
        # Four assignments with a step change 8192 sectors in 0.05 ms, so that rates include no computation.
        for index, byte in enumerate(number.to_bytes(4, "little")):
            sectors = len(range(index, len(self._random), _SECTOR_BYTES))
            self._random[index::_SECTOR_BYTES] = bytes([byte]) * sectors
        return self._random

    def write(self, descriptor: int, deadline: float) -> tuple[int, float]:
        """Write the content and sync it to the disk; return the bytes written and the seconds.

        It stops early at the deadline (monotonic seconds), and raises OSError if there is no space.
        """
        written, start = 0, time.monotonic()
        while written < self._size and time.monotonic() < deadline:
            number, offset = divmod(written, BLOCK_BYTES)
            # After a short write, write the rest of the block next.
            rest = memoryview(self._block(number))[offset : offset + self._size - written]
            written += self._write(descriptor, rest)
        os.fsync(descriptor)
        return written, max(time.monotonic() - start, 1e-9)

    def read(self, descriptor: int) -> tuple[float, bool]:
        """Read a file with this content; return the bytes per second, and whether all bytes are equal.

        The comparison is included in the time: it is the first use of the bytes, at the speed of memory.
        """
        # Drop the page cache, which would otherwise be read; some file systems ignore this advice.
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, 0, self._size, os.POSIX_FADV_DONTNEED)
        start, is_equal = time.monotonic(), True
        buffer = bytearray(len(self._random))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            for position in range(0, self._size, BLOCK_BYTES):
                length = min(BLOCK_BYTES, self._size - position)
                if file.readinto(memoryview(buffer)[:length]) < length:
                    return 1.0, False
                block = self._block(position // BLOCK_BYTES)
                is_equal = is_equal and (
                    buffer == block if length == len(block) else buffer[:length] == block[:length]
                )
        return self._size / max(time.monotonic() - start, 1e-9), is_equal


def resolve_path(path: str, context: CheckContext) -> Path:
    """Return the absolute path for a path that may begin with a variable ``$NAME`` or ``${NAME}``.

    Raises
    ------
    MissingRequirement
        The variable is not set, or the path is not absolute.
    """
    first, slash, rest = path.partition("/")
    if first.startswith("$"):
        name = first[1:].removeprefix("{").removesuffix("}")
        value = context.environment.get(name, "")
        if not value:
            raise MissingRequirement(
                f"${name} is not set.", "Set it, or write the directory in the protocol."
            )
        path = value + slash + rest
    if not path.startswith("/") or "\0" in path:
        raise MissingRequirement(f"{path[:200]!r} is not an absolute path.", "Write an absolute path.")
    return Path(path)


class StorageCheck(BaseCheck):
    """Base class of checks that measure the throughput of a directory, in bytes per second.

    Parameters
    ----------
    folder
        Absolute, or beginning with ``$VARIABLE``.
    bytes
        Size of a file.
    samples
        Number of samples; one more at the beginning is discarded.
    """

    time_limit_s: ClassVar[float] = 60.0
    #: First words of the reason, such as "Reading from".
    operation: ClassVar[str]

    folder: OneLine
    bytes: Annotated[Quantity, Field(ge=4096, le=2**36)] = 64.0 * 2**20
    samples: Annotated[int, Field(ge=5, le=100)] = 5

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        folder = resolve_path(self.folder, context)
        deadline = time.monotonic() + context.time_limit_s * 0.9
        try:
            measured = self.measure(folder, int(self.bytes), deadline)
        except OSError as error:
            fix = _FULL_FIX if error.errno in _FULL else _FAULT_FIX
            return [failed(f"{folder} can't be written and read: {error.strerror}.", fix)]
        if isinstance(measured, Finding):
            return [measured]
        rates = tuple(measured[1:])
        rate = statistics.median(rates)
        reason = f"{self.operation} {folder}: {with_unit(rate, 'B/s')}."
        return [passed(reason, rate, "B/s").model_copy(update={"samples": rates})]

    @abstractmethod
    def measure(self, folder: Path, size: int, deadline: float) -> list[float] | Finding:
        """Return `samples` + 1 rates in bytes per second, or a finding if there is no valid measurement.

        Raises
        ------
        OSError
            The file can't be written or read.
        """


class StorageRead(StorageCheck):
    """Bytes per second of reading a file, all bytes of which are verified; each sample reads it once."""

    operation: ClassVar[str] = "Reading from"

    def measure(self, folder: Path, size: int, deadline: float) -> list[float] | Finding:
        """Write one file and read it repeatedly."""
        rates = []
        with temporary_file(folder) as (descriptor, _path):
            content = RandomContent(size)
            written, _ = content.write(descriptor, deadline)
            for _ in range(self.samples + 1):
                if written < size or time.monotonic() > deadline:
                    return failed(f"{folder} is too slow for its time limit.", _SLOW_FIX)
                rate, is_equal = content.read(descriptor)
                if not is_equal:
                    return failed(f"{folder} returns other bytes than were written.", _FAULT_FIX)
                rates.append(rate)
        return rates


class StorageWrite(StorageCheck):
    """Bytes per second of writing with fsync, as for a checkpoint; each sample writes a new file."""

    operation: ClassVar[str] = "Writing to"

    def measure(self, folder: Path, size: int, deadline: float) -> list[float] | Finding:
        """Write one file for each sample."""
        rates = []
        for _ in range(self.samples + 1):
            with temporary_file(folder) as (descriptor, _path):
                written, seconds = RandomContent(size).write(descriptor, deadline)
            if written < size:
                reason = f"Only {with_unit(written, 'B')} were written to {folder} within the time limit."
                return failed(reason, _SLOW_FIX)
            rates.append(written / seconds)
        return rates


class Mounts(BaseCheck):
    """Check that each path exists, can be read or written, and is on the expected file system.

    Parameters
    ----------
    paths
        Paths (absolute, or beginning with ``$VARIABLE``) to the required access, "read" or "write".
    kinds
        Paths to the required type of their file system, such as lustre or nfs4, to detect a missing mount.
    """

    paths: Mapping[OneLine, Access] = Field(min_length=1)
    kinds: Mapping[OneLine, OneLine] = Field(default_factory=dict)

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        for name, access in self.paths.items():
            path = resolve_path(name, context)
            if problem := _access_problem(path, access):
                fix = "Check whether it is mounted on this node and in the container, and its permissions."
                return [failed(problem, fix)]
        for name, kind in self.kinds.items():
            path = resolve_path(name, context)
            found = file_system(path, context.host.text("/proc/self/mountinfo"))
            if found != kind:
                fix = "Use another node, or mount it: another file system is mounted at this path."
                return [failed(f"{path} is on {found or 'an unknown file system'}, not on {kind}.", fix)]
        return [passed(f"{len(self.paths)} path(s) can be used as required.")]


def _access_problem(path: Path, access: Access) -> str:
    try:
        path.stat()
        if access == "read":
            # Reading detects a mount whose server is down, which stat may not.
            if path.is_dir():
                with os.scandir(path) as entries:
                    next(entries, None)
            else:
                with path.open("rb") as file:
                    file.read(1)
            return ""
        if not path.is_dir():
            return "" if os.access(path, os.W_OK) else f"{path} can't be written."
        with temporary_file(path) as (descriptor, _):
            os.write(descriptor, b"gipfel")
    except MissingRequirement as error:
        return error.problem
    except OSError as error:
        return f"{path} can't be used: {error.strerror}."
    return ""


def file_system(path: Path, mountinfo: str) -> str:
    """Return the type of a path's file system from ``/proc/self/mountinfo``; empty if it is not listed."""
    mount = parse_mountinfo(mountinfo, virtual=True).of_path(os.path.realpath(path))
    return mount.kind if mount else ""


class Quota(BaseCheck):
    """Check that enough space is free and can be written: an exceeded quota shows only when writing.

    Parameters
    ----------
    folder
        Absolute, or beginning with ``$VARIABLE``.
    min_free
        Required free bytes of the file system.
    min_inodes
        Required free inodes, where the file system counts them.
    write
        Bytes that the check writes and deletes.
    """

    time_limit_s: ClassVar[float] = 60.0
    fix: ClassVar[str] = _FULL_FIX
    #: Verdict if the bytes can't be written in time.
    slow_verdict: ClassVar[Verdict] = Verdict.INCONCLUSIVE

    folder: OneLine
    min_free: Annotated[Quantity, Field(ge=0)] = 10e9
    min_inodes: Annotated[int, Field(ge=0)] = 1000
    write: Annotated[Quantity, Field(ge=4096, le=2**36)] = 2.0**20

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        folder = resolve_path(self.folder, context)
        with required(f"{folder} can't be examined", "Check whether it is mounted."):
            disk = os.statvfs(folder)
        free = float(disk.f_bavail * disk.f_frsize)
        has_free = f"{folder} has {with_unit(free, 'B')} free"
        if free < self.min_free:
            return [failed(f"{has_free}, not {with_unit(self.min_free, 'B')}.", self.fix, free, "B")]
        if disk.f_files and disk.f_favail < self.min_inodes:
            return [failed(f"{folder} has only {disk.f_favail} free inodes.", self.fix, free, "B")]
        size = with_unit(self.write, "B")
        with temporary_file(folder) as (descriptor, _):
            try:
                deadline = time.monotonic() + context.time_limit_s * 0.8
                written, _ = RandomContent(int(self.write)).write(descriptor, deadline)
            except OSError as error:
                reason = f"{size} can't be written to {folder}: {error.strerror}."
                return [failed(reason, self.fix, free, "B")]
        if written < int(self.write):
            reason = f"Only {with_unit(written, 'B')} of {size} could be written to {folder} in time."
            fix = "Raise time_limit, or reduce 'write'."
            return [Finding(verdict=self.slow_verdict, reason=reason, fix=fix)]
        return [passed(f"{has_free}; {size} were written.", free, "B")]
