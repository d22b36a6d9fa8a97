"""Files that checks write and read: really written, and gone afterwards."""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ..check import CheckContext, Missing

#: Written block by block; no two blocks are alike, so that nothing on the way stores them once.
BLOCK = 4 * 2**20


@contextlib.contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[int, Path]]:
    """A new file in a folder, open for writing and reading; it is removed in the end.

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
    """Write so many bytes, and what the file system keeps of them to the disk; bytes and seconds.

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
    """A folder of the protocol: ``$NAME`` or ``${NAME}`` at its beginning is a variable of the user's.

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
        raise Missing(f"{path[:200]!r} is no absolute path.", "Write the whole path.")
    return Path(path)


def file_system_of(folder: Path) -> os.statvfs_result:
    """What the file system of a folder has left.

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
