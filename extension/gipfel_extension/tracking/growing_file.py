"""Incremental reading of a file that another program appends to, rewrites or replaces.

:class:`TextLines` reads its whole lines; :class:`LineReader` is the base class of readers of text files.
"""

import errno
import os
from pathlib import Path
from typing import BinaryIO

from ..telemetry.files import open_regular
from .scalar import Names

#: Bytes per read: tens of thousands of scalars.
PIECE_BYTES = 4 << 20
#: Number of bytes before the offset that are compared at each read, to notice a rewritten file.
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
        """Move the offset by `count` bytes; `read` is :meth:`read`'s result if it has all of them."""
        last = read[max(0, count - _REMEMBERED) : count]
        self._before = (self._before + last)[-_REMEMBERED:] if count <= len(read) else b""
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
        """Move the offset to the next data, because a hole in a sparse file may be terabytes long."""
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


#: Longer lines hold no metrics; they are dropped and counted. Shorter than a piece of the file.
MAX_LINE_BYTES = 1 << 20


class TextLines:
    """Reader of the lines of a file; an unfinished last line is left for later.

    Attributes
    ----------
    dropped
        Number of lines that were too long.
    """

    def __init__(self, file: GrowingFile) -> None:
        self._file = file
        self._skipping = False
        self._restarts = 0
        self.dropped = 0

    @property
    def restarts(self) -> int:
        """Number of times that the file was replaced, truncated or rewritten."""
        return self._file.restarts

    def read(self, *, last: bool = False) -> list[bytes] | None:
        """Return the next lines without their ends; None where there are no more for now.

        Parameters
        ----------
        last
            True where the file will not grow any more: its unfinished last line is a line.
        """
        piece = self._file.read()
        if self._file.restarts != self._restarts:
            self._restarts, self._skipping = self._file.restarts, False
        if not piece:
            return None
        end = piece.rfind(b"\n") + 1
        at_end = self._file.offset + len(piece) >= self._file.size
        if last and at_end:
            end = len(piece)
        elif not end:
            if len(piece) <= MAX_LINE_BYTES:
                return None
            # The middle of a line that is too long.
            self.dropped += not self._skipping
            self._skipping, end = True, len(piece)
            self._file.advance(end, piece)
            return []
        self._file.advance(end, piece)
        lines = piece[:end].split(b"\n")
        if self._skipping:
            lines, self._skipping = lines[1:], False
        kept = [line for line in lines if line and len(line) <= MAX_LINE_BYTES]
        self.dropped += sum(len(line) > MAX_LINE_BYTES for line in lines)
        return kept


class LineReader:
    """Base class of readers of text files: the file's lines, its names, and what was dropped."""

    def __init__(self, file: GrowingFile, rank: int | None = None) -> None:
        self._lines = TextLines(file)
        self._rank = rank
        self._names = Names()
        self._bad = 0

    @property
    def damaged(self) -> int:
        """Number of lines, cells and names that were dropped."""
        return self._bad + self._lines.dropped
