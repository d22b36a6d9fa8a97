"""Checks of storage: read and write rates, mounts, quota; with functions for their temporary files."""

import contextlib
import os
import statistics
import tempfile
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, OneLine

from ..check import CheckContext, MissingRequirement
from ..model import Finding, Scope, Verdict
from ..quantities import Quantity, with_unit
from .gpus import failed, passed

#: Bytes of a block. All blocks differ, so that deduplication on the way has no effect.
BLOCK_BYTES = 4 * 2**20
#: Advice where the time limit was reached.
SLOW_ADVICE = "Storage is slow now. Wait, or raise the check's time_limit."
Access = Literal["read", "write"]


@contextlib.contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield a new file in a directory, open for writing and reading; delete it at the end.

    Raises
    ------
    MissingRequirement
        The directory does not exist or can't be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=".gipfel-vet-", dir=folder)
    except OSError as error:
        fix = "Check whether it is mounted, and whether you may write to it."
        raise MissingRequirement(f"{folder} can't be written: {error.strerror}.", fix) from error
    try:
        yield descriptor, Path(name)
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            Path(name).unlink()


def fill(descriptor: int, size: int, deadline: float) -> tuple[int, float]:
    """Write `size` bytes and sync them to the disk; return the bytes written and the seconds.

    It stops early at the deadline (monotonic seconds), and raises OSError where there is no space.
    """
    block = bytearray(os.urandom(min(BLOCK_BYTES, size)))
    written, start = 0, time.monotonic()
    while written < size and time.monotonic() < deadline:
        block[:8] = written.to_bytes(8, "little")
        # os.write may write less than requested.
        written += os.write(descriptor, memoryview(block)[: size - written])
    os.fsync(descriptor)
    return written, max(time.monotonic() - start, 1e-9)


def resolve_directory(path: str, context: CheckContext) -> Path:
    """Return the directory of a path, which may begin with an environment variable ``$NAME`` or ``${NAME}``.

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


def file_system_usage(folder: Path) -> os.statvfs_result:
    """Return the free space and free files of the file system of a directory.

    Raises
    ------
    MissingRequirement
        The file system can't be examined.
    """
    try:
        return os.statvfs(folder)
    except OSError as error:
        raise MissingRequirement(
            f"{folder} can't be examined: {error.strerror}.", "Check whether it is mounted."
        ) from error


def lacks_space(folder: Path, free: float, least_free: float, fix: str) -> Finding:
    """Return the finding on a file system with fewer free bytes than required."""
    problem = f"{folder} has {with_unit(free, 'B')} free, not {with_unit(least_free, 'B')}."
    return failed(problem, fix, free, "B")


class StorageCheck(Frozen):
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

    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 60.0
    #: The measured operation, for the reason.
    operation: ClassVar[str]

    folder: OneLine
    bytes: Annotated[Quantity, Field(ge=4096, le=2**36)] = 64.0 * 2**20
    samples: Annotated[int, Field(ge=5, le=100)] = 5

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        folder = resolve_directory(self.folder, context)
        measured = self.measure(folder, int(self.bytes), time.monotonic() + context.time_limit_s * 0.9)
        if isinstance(measured, Finding):
            return [measured]
        rates = tuple(measured[1:])
        rate = statistics.median(rates)
        reason = f"{self.operation} {folder}: {with_unit(rate, 'B/s')}."
        return [Finding(verdict=Verdict.PASS, reason=reason, measurement=rate, unit="B/s", samples=rates)]

    @abstractmethod
    def measure(self, folder: Path, size: int, deadline: float) -> list[float] | Finding:
        """Return `samples` + 1 rates in bytes per second, or a finding if that fails before the deadline."""


class StorageRead(StorageCheck):
    """Bytes per second of reading a file, whose blocks are verified; each sample reads it once."""

    type: ClassVar[str] = "storage_read"
    operation: ClassVar[str] = "Reading from"

    def measure(self, folder: Path, size: int, deadline: float) -> list[float] | Finding:
        """Write one file and read it repeatedly."""
        rates = []
        with temporary_file(folder) as (descriptor, _path):
            written, _ = fill(descriptor, size, deadline)
            for _ in range(self.samples + 1):
                if written < size or time.monotonic() > deadline:
                    return failed(f"{folder} is too slow for its time limit.", SLOW_ADVICE)
                rate, is_correct = _read(descriptor, size)
                if not is_correct:
                    fix = "Don't store data there, and tell the operators."
                    return failed(f"{folder} returns other bytes than were written.", fix)
                rates.append(rate)
        return rates


def _read(descriptor: int, size: int) -> tuple[float, bool]:
    """Return the bytes per second, and whether each block is the one that was written."""
    # Otherwise the page cache is read; some file systems ignore this advice.
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_DONTNEED)
    position, is_correct, start = 0, True, time.monotonic()
    while position < size:
        block = os.pread(descriptor, min(BLOCK_BYTES, size - position), position)
        if not block:
            return 1.0, False
        if position % BLOCK_BYTES == 0 and len(block) >= 8:
            is_correct = is_correct and block[:8] == position.to_bytes(8, "little")
        position += len(block)
    return size / max(time.monotonic() - start, 1e-9), is_correct


class StorageWrite(StorageCheck):
    """Bytes per second of writing with fsync, as for a checkpoint; each sample writes a new file."""

    type: ClassVar[str] = "storage_write"
    operation: ClassVar[str] = "Writing to"

    def measure(self, folder: Path, size: int, deadline: float) -> list[float] | Finding:
        """Write one file for each sample."""
        rates = []
        for _ in range(self.samples + 1):
            with temporary_file(folder) as (descriptor, _path):
                written, seconds = fill(descriptor, size, deadline)
            if written < size:
                reason = f"Only {with_unit(written, 'B')} were written to {folder} within the time limit."
                return failed(reason, SLOW_ADVICE)
            rates.append(written / seconds)
        return rates


class Mounts(Frozen):
    """Each path exists, can be read or written, and is on the expected file system.

    Parameters
    ----------
    paths
        Paths (absolute, or beginning with ``$VARIABLE``) to the required access, "read" or "write".
    kinds
        Paths to the required type of their file system, such as lustre or nfs4, to detect a missing mount.
    """

    type: ClassVar[str] = "mounts"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 30.0

    paths: Mapping[OneLine, Access] = Field(min_length=1)
    kinds: Mapping[OneLine, OneLine] = Field(default_factory=dict)

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        for name, access in self.paths.items():
            path = resolve_directory(name, context)
            if problem := _access_problem(path, access):
                fix = "Check whether it is mounted on this node and in the container, and its permissions."
                return [failed(problem, fix)]
        for name, kind in self.kinds.items():
            path = resolve_directory(name, context)
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
    """Return the type of a path's file system from ``/proc/self/mountinfo``; empty where it is not listed."""
    real = Path(os.path.realpath(path))
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        parts = fields.split()
        if len(parts) < 5 or not rest:
            continue
        mount_point = Path(parts[4].replace("\\040", " ").replace("\\011", "\t"))
        # A later mount hides an earlier one at the same path.
        if (real == mount_point or mount_point in real.parents) and len(mount_point.parts) >= best:
            best, kind = len(mount_point.parts), rest.split()[0]
    return kind


class Quota(Frozen):
    """Enough space is free and can be written; a quota is only noticed when writing.

    Parameters
    ----------
    folder
        Absolute, or beginning with ``$VARIABLE``.
    least_free
        Required free bytes of the file system.
    least_files
        Required free inodes, where the file system counts them.
    write
        Bytes that the check writes and deletes.
    """

    type: ClassVar[str] = "quota"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 60.0

    folder: OneLine
    least_free: Annotated[Quantity, Field(ge=0)] = 10e9
    least_files: Annotated[int, Field(ge=0)] = 1000
    write: Annotated[Quantity, Field(ge=4096, le=2**36)] = 2.0**20

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        folder = resolve_directory(self.folder, context)
        disk = file_system_usage(folder)
        free, fix = (
            float(disk.f_bavail * disk.f_frsize),
            "Delete files that you don't need, or request more quota.",
        )
        if free < self.least_free:
            return [lacks_space(folder, free, self.least_free, fix)]
        if disk.f_files and disk.f_favail < self.least_files:
            return [failed(f"{folder} has only {disk.f_favail} free inodes.", fix, free, "B")]
        with temporary_file(folder) as (descriptor, _):
            try:
                written, _ = fill(descriptor, int(self.write), time.monotonic() + context.time_limit_s * 0.8)
            except OSError as error:
                return [failed(f"{folder} can't be written: {error.strerror}.", fix, free, "B")]
        if written < self.write:
            reason = (
                f"Only {with_unit(written, 'B')} of {with_unit(self.write, 'B')} could be written in time."
            )
            return [
                Finding(
                    verdict=Verdict.INCONCLUSIVE, reason=reason, fix="Raise time_limit, or reduce 'write'."
                )
            ]
        return [passed(f"{folder} has {with_unit(free, 'B')} free.", free, "B")]
