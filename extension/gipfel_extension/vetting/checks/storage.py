"""Checks of storage: read and write rates, mounts, quota; and the files that checks write and read."""

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

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext, Missing
from ..model import Finding, Scope, Verdict
from ..quantities import Quantity, with_unit
from .gpus import failed, passed

#: Written block by block; no two blocks are alike, so that nothing on the way stores them once.
BLOCK = 4 * 2**20
#: What to do where the time limit came first.
SLOW = "Storage is slow now: wait, or give the check more time."
Access = Literal["read", "write"]


@contextlib.contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield a new file in a directory, open for writing and reading; it is removed in the end.

    Raises
    ------
    Missing
        The folder isn't there or can't be written into.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=".gipfel-vet-", dir=folder)
    except OSError as error:
        fix = "See whether it is mounted, and writable for you."
        raise Missing(f"{folder} can't be written into: {error.strerror}.", fix) from error
    try:
        yield descriptor, Path(name)
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            Path(name).unlink()


def fill(descriptor: int, size: int, deadline: float) -> tuple[int, float]:
    """Write so many bytes and sync them to the disk; return bytes and seconds.

    Stops early at the deadline (monotonic seconds). OSError where there is no space.
    """
    block = bytearray(os.urandom(min(BLOCK, size)))
    written, start = 0, time.monotonic()
    while written < size and time.monotonic() < deadline:
        block[:8] = written.to_bytes(8, "little")
        # A pipe-like file system may take less than it is given.
        written += os.write(descriptor, memoryview(block)[: size - written])
    os.fsync(descriptor)
    return written, max(time.monotonic() - start, 1e-9)


def folder_of(path: str, context: CheckContext) -> Path:
    """Return a directory of the protocol, which may begin with ``$NAME`` or ``${NAME}`` of the user's.

    Raises
    ------
    Missing
        The variable is not set, or the path is not absolute.
    """
    first, slash, rest = path.partition("/")
    if first.startswith("$"):
        name = first[1:].removeprefix("{").removesuffix("}")
        value = context.environment.get(name, "")
        if not value:
            raise Missing(f"${name} is not set.", "Set it, or name the folder in the protocol.")
        path = value + slash + rest
    if not path.startswith("/") or "\0" in path:
        raise Missing(f"{path[:200]!r} is not an absolute path.", "Write the whole path.")
    return Path(path)


def file_system_of(folder: Path) -> os.statvfs_result:
    """Return the free space and files of the file system of a directory.

    Raises
    ------
    Missing
        It can't be looked at.
    """
    try:
        return os.statvfs(folder)
    except OSError as error:
        raise Missing(
            f"{folder} can't be looked at: {error.strerror}.", "See whether it is mounted."
        ) from error


class StorageCheck(Frozen):
    """Base class of checks that measure bytes per second of a directory.

    Parameters
    ----------
    folder
        Absolute, or beginning with ``$VARIABLE``.
    bytes
        Of a file.
    samples
        How often it is measured; once more at the beginning, which is dropped.
    """

    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 60.0
    #: What the folder does so fast, as a verb.
    verb: ClassVar[str]

    folder: Line
    bytes: Annotated[Quantity, Field(ge=4096, le=2**36)] = 64.0 * 2**20
    samples: Annotated[int, Field(ge=5, le=100)] = 5

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        folder = folder_of(self.folder, context)
        measured = self.measure(folder, int(self.bytes), time.monotonic() + context.time_limit_s * 0.9)
        if isinstance(measured, Finding):
            return [measured]
        rates = tuple(measured[1:])
        figure = statistics.median(rates)
        reason = f"{folder} {self.verb} {with_unit(figure, 'B/s')}."
        return [Finding(verdict=Verdict.PASS, reason=reason, figure=figure, unit="B/s", samples=rates)]

    @abstractmethod
    def measure(self, folder: Path, size: int, deadline: float) -> list[float] | Finding:
        """Return bytes per second, `samples` + 1 of them; or a finding, as at the deadline (monotonic s)."""


class StorageRead(StorageCheck):
    """Bytes per second of a file that was just written, its blocks compared; each sample reads it once."""

    type: ClassVar[str] = "storage_read"
    verb: ClassVar[str] = "gives"

    def measure(self, folder: Path, size: int, deadline: float) -> list[float] | Finding:
        """Write one file, and read it again and again."""
        rates = []
        with temporary_file(folder) as (descriptor, _path):
            written, _ = fill(descriptor, size, deadline)
            for _ in range(self.samples + 1):
                if written < size or time.monotonic() > deadline:
                    return failed(f"{folder} is too slow for its time limit.", SLOW)
                rate, right = _read(descriptor, size)
                if not right:
                    fix = "Don't store anything there, and tell the operators."
                    return failed(f"{folder} gives back other bytes than were written.", fix)
                rates.append(rate)
        return rates


def _read(descriptor: int, size: int) -> tuple[float, bool]:
    """Return bytes per second, and whether each block is the one that was written there."""
    # Otherwise the node's own memory answers; some file systems don't take the advice.
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_DONTNEED)
    place, right, start = 0, True, time.monotonic()
    while place < size:
        block = os.pread(descriptor, min(BLOCK, size - place), place)
        if not block:
            return 1.0, False
        if place % BLOCK == 0 and len(block) >= 8:
            right = right and block[:8] == place.to_bytes(8, "little")
        place += len(block)
    return size / max(time.monotonic() - start, 1e-9), right


class StorageWrite(StorageCheck):
    """Bytes per second with fsync, as a checkpoint needs them; each sample is a file of its own."""

    type: ClassVar[str] = "storage_write"
    verb: ClassVar[str] = "takes"

    def measure(self, folder: Path, size: int, deadline: float) -> list[float] | Finding:
        """Write file after file."""
        rates = []
        for _ in range(self.samples + 1):
            with temporary_file(folder) as (descriptor, _path):
                written, seconds = fill(descriptor, size, deadline)
            if written < size:
                return failed(f"{folder} took {with_unit(written, 'B')} only until the time limit.", SLOW)
            rates.append(written / seconds)
        return rates


class Mounts(Frozen):
    """Each path exists and can be read or written.

    Parameters
    ----------
    paths
        Absolute path, or one that begins with ``$VARIABLE``, to "read" or "write".
    kinds
        Path to the type of its file system, such as lustre or nfs4: notices a path that is mounted away.
    """

    type: ClassVar[str] = "mounts"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 30.0

    paths: Mapping[Line, Access] = Field(min_length=1)
    kinds: Mapping[Line, Line] = Field(default_factory=dict)

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        for name, access in self.paths.items():
            path = folder_of(name, context)
            if wrong := _wrong(path, access):
                fix = "See whether it is mounted on this node and into the container, and who may use it."
                return [failed(wrong, fix)]
        for name, kind in self.kinds.items():
            path = folder_of(name, context)
            found = file_system(path, context.host.text("/proc/self/mountinfo"))
            if found != kind:
                fix = "Take another node, or mount it: something else lies over this path."
                return [
                    failed(f"{path} is on {found or 'no file system that is listed'}, not on {kind}.", fix)
                ]
        return [passed(f"{len(self.paths)} path(s) are as they must be.")]


def _wrong(path: Path, access: Access) -> str:
    try:
        path.stat()
        if access == "read":
            # Looking into it notices a mount whose server is gone, as stat may not.
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
    except Missing as error:
        return error.problem
    except OSError as error:
        return f"{path} can't be used: {error.strerror}."
    return ""


def file_system(path: Path, mountinfo: str) -> str:
    """Return the type of a path's file system by ``/proc/self/mountinfo``; empty where none is listed."""
    real = Path(os.path.realpath(path))
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        parts = fields.split()
        if len(parts) < 5 or not rest:
            continue
        place = Path(parts[4].replace("\\040", " ").replace("\\011", "\t"))
        # A later mount lies over an earlier one at the same place.
        if (real == place or place in real.parents) and len(place.parts) >= best:
            best, kind = len(place.parts), rest.split()[0]
    return kind


class Quota(Frozen):
    """Space is free and can be written: a quota shows only on writing.

    Parameters
    ----------
    folder
        Absolute, or beginning with ``$VARIABLE``.
    least_free
        Bytes that the file system must have left.
    least_files
        Files that it must have left, where it counts them.
    write
        Bytes that are written and removed again.
    """

    type: ClassVar[str] = "quota"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 60.0

    folder: Line
    least_free: Annotated[Quantity, Field(ge=0)] = 10e9
    least_files: Annotated[int, Field(ge=0)] = 1000
    write: Annotated[Quantity, Field(ge=4096, le=2**36)] = 2.0**20

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        folder = folder_of(self.folder, context)
        disk = file_system_of(folder)
        free, fix = float(disk.f_bavail * disk.f_frsize), "Remove what is not needed, or ask for more quota."
        if free < self.least_free:
            return [
                failed(
                    f"{folder} has {with_unit(free, 'B')} left, not {with_unit(self.least_free, 'B')}.",
                    fix,
                    free,
                    "B",
                )
            ]
        if disk.f_files and disk.f_favail < self.least_files:
            return [failed(f"{folder} has room for {disk.f_favail} more files.", fix, free, "B")]
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
                Finding(verdict=Verdict.INCONCLUSIVE, reason=reason, fix="Give it more time, or write less.")
            ]
        return [passed(f"{folder} has {with_unit(free, 'B')} left.", free, "B")]
