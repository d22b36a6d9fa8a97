"""Bounded reading: a window of a file, decompression without a limit on trust, and the budget of one scan."""

import bz2
import io
import lzma
import tempfile
import time
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

_CHUNK = 1 << 16
_LZMA_MEMORY = 128 << 20


class NotUnderstoodError(Exception):
    """A file that can't be judged; the message says why."""


class Budget:
    """Limits for scanning one file: time, members of archives, bytes read out of compressed data, depth.

    Parameters
    ----------
    seconds
        Limit for the whole file, archives included.
    """

    def __init__(
        self,
        *,
        seconds: float = 60.0,
        members: int = 100_000,
        decompressed: int = 4 << 30,
        spooled: int = 256 << 20,
        depth: int = 6,
    ) -> None:
        self._end = time.monotonic() + seconds
        self._members = members
        self._decompressed = decompressed
        self.spooled = spooled
        self.depth = depth

    def check_time(self) -> None:
        """Raise if the time is over."""
        if time.monotonic() > self._end:
            raise NotUnderstoodError("scanning it takes too long")

    def take_member(self) -> None:
        """Count a member of an archive."""
        self.check_time()
        self._members -= 1
        if self._members < 0:
            raise NotUnderstoodError("it has too many members")

    def take_bytes(self, count: int) -> None:
        """Count bytes that came out of compressed data."""
        self.check_time()
        self._decompressed -= count
        if self._decompressed < 0:
            raise NotUnderstoodError("it unpacks to too many bytes")


class Window(io.RawIOBase):
    """Bytes `start` to `start + size` of a seekable file, as a separate file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, max(0, size), 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position inside the window."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer."""
        count = max(0, min(len(buffer), self._size - self._at))
        self._file.seek(self._start + self._at)
        content = self._file.read(count)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


class Decompressed(io.RawIOBase):
    """The content of a compressed stream, read forward in constant memory."""

    def __init__(self, file: BinaryIO, make: Callable[[], Any], budget: Budget, follows: bytes) -> None:
        self._file, self._make, self._budget, self._follows = file, make, budget, follows
        self._decompressor = make()
        self._pending = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer; data that is broken ends with :class:`NotUnderstoodError`."""
        limit = min(len(buffer), _CHUNK)
        while True:
            if self._decompressor.eof and not self._next_stream():
                return 0
            if not self._pending:
                self._pending = self._file.read(_CHUNK)
            ended = not self._pending
            try:
                content = self._decompress(limit)
            except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
                raise NotUnderstoodError("its compressed data is broken") from error
            if content:
                self._budget.take_bytes(len(content))
                buffer[: len(content)] = content
                return len(content)
            if ended and not self._decompressor.eof:
                raise NotUnderstoodError("its compressed data is cut off")

    def _decompress(self, limit: int) -> bytes:
        content: bytes = self._decompressor.decompress(self._pending, limit)
        # zlib returns what it has not used; the others keep it.
        self._pending = getattr(self._decompressor, "unconsumed_tail", b"")
        return content

    def _next_stream(self) -> bool:
        """Start the stream that follows in the same file, as gzip, bzip2 and xz allow."""
        rest = self._decompressor.unused_data or self._file.read(_CHUNK)
        if not self._follows or not rest.startswith(self._follows):
            return False
        self._decompressor, self._pending = self._make(), rest
        return True


def _raw_deflate() -> Any:
    return zlib.decompressobj(-zlib.MAX_WBITS)


def _lzma() -> Any:
    return lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)


#: First bytes of another stream in the same file.
_FOLLOWS = {"gzip": b"\x1f\x8b", "bzip2": b"BZh", "xz": b"\xfd7zXZ"}
#: Decompressors by the name of their format.
DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "deflate": _raw_deflate,
    "zlib": zlib.decompressobj,
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "bzip2": bz2.BZ2Decompressor,
    "xz": _lzma,
}


def decompress(file: BinaryIO, name: str, budget: Budget) -> io.BufferedReader:
    """Return a stream of the uncompressed content."""
    return io.BufferedReader(Decompressed(file, DECOMPRESSORS[name], budget, _FOLLOWS.get(name, b"")))


def seekable(file: BinaryIO, budget: Budget) -> BinaryIO:
    """Return a file that can seek: the file itself, or a temporary copy of bounded size."""
    if file.seekable():
        return file
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - the caller reads it and lets it go
    taken = 0
    while content := file.read(_CHUNK):
        taken += len(content)
        if taken > budget.spooled:
            raise NotUnderstoodError(f"an archive inside it is larger than {budget.spooled >> 20} MiB")
        copy.write(content)
    copy.seek(0)
    return copy


def skip(file: BinaryIO, count: int) -> bool:
    """Move forward by `count` bytes; False if the file ends before."""
    if file.seekable():
        size = file.seek(0, io.SEEK_CUR) + count
        return file.seek(0, io.SEEK_END) >= size and file.seek(size) == size
    while count:
        content = file.read(min(count, _CHUNK))
        if not content:
            return False
        count -= len(content)
    return True
