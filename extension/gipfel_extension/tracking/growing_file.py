"""Incremental reading of a file that another program appends to, rewrites or replaces."""

import errno
import os
from pathlib import Path
from typing import BinaryIO

from ..telemetry.files import open_regular

#: Bytes per read: tens of thousands of scalars.
PIECE_BYTES = 4 << 20
#: The bytes before the offset are compared at each read, to notice a rewritten file.
_REMEMBERED = 64


class GrowingFile:
    """A file and the offset up to which it was read.

    Call :meth:`read` for the bytes that follow, then :meth:`advance` by the whole records among them.

    Parameters
    ----------
    path
        The file, which may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._before = b""
        self.offset = 0
        self.size = 0
        self.restarts = 0

    def read(self, count: int = PIECE_BYTES) -> bytes:
        """Return the bytes after the offset, at most `count`; from the beginning if the file was replaced.

        ``restarts`` counts how often it was replaced, truncated or rewritten.

        Raises
        ------
        OSError
            The file exists and cannot be read.
        """
        try:
            with open_regular(self._path) as file:
                return self._read(file, count)
        except FileNotFoundError:
            return b""

    def advance(self, count: int, read: bytes = b"") -> None:
        """Move the offset; `read` is what :meth:`read` returned, if all of `count` bytes are of it."""
        self._before = (self._before + read[:count])[-_REMEMBERED:] if count <= len(read) else b""
        self.offset += count

    def _read(self, file: BinaryIO, count: int) -> bytes:
        about = os.fstat(file.fileno())
        identity = about.st_dev, about.st_ino
        self.size = about.st_size
        if self._identity not in (None, identity) or not self._is_continued(file.fileno()):
            self.offset, self._before = 0, b""
            self.restarts += 1
        self._identity = identity
        self._skip_hole(file.fileno())
        return os.pread(file.fileno(), count, self.offset)

    def _skip_hole(self, handle: int) -> None:
        """Move the offset to the next data: a hole of terabytes costs its writer nothing."""
        try:
            data = os.lseek(handle, self.offset, os.SEEK_DATA)
        except OSError as error:
            # Another error: a file system that doesn't know holes.
            data = self.size if error.errno == errno.ENXIO else self.offset
        if data > self.offset:
            self.offset, self._before = data, b""

    def _is_continued(self, handle: int) -> bool:
        if self.size < self.offset:
            return False
        return os.pread(handle, len(self._before), self.offset - len(self._before)) == self._before
