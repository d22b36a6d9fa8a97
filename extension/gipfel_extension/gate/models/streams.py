"""Bounded reading of untrusted files: windows, decompression, members of zip archives.

A `Budget` limits one scan. Zip members are found through the central directory. Python's zipfile refuses
wrong checksums and flags that PyTorch's reader ignores, so a scanner built on zipfile would miss content that
PyTorch then loads. Here checksums and flags are ignored, and every entry counts, even a second one with the
same name. Source: PKWARE's APPNOTE.TXT, 4.3 and 4.5.3.
"""

import bz2
import io
import lzma
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

from ..package_index import PackageIndex

_CHUNK = 1 << 16
_LZMA_MEMORY = 128 << 20


class NotUnderstoodError(Exception):
    """A file that can't be judged; the message says why."""


class Budget:
    """Limits for scanning one file: time, archive members, decompressed bytes, nesting depth.

    Parameters
    ----------
    seconds
        Time limit for the whole file, with all archives in it.
    decompressed
        Bytes that may come out of compressed data in all.
    spooled
        Largest temporary copy of a stream that must be made seekable, in bytes.
    depth
        Deepest nesting of archives.
    package_index
        Looks up packages that notebooks install, and collects what it could not judge.
    """

    def __init__(
        self,
        *,
        seconds: float = 60.0,
        members: int = 100_000,
        decompressed: int = 4 << 30,
        spooled: int = 256 << 20,
        depth: int = 6,
        package_index: PackageIndex | None = None,
    ) -> None:
        self._end = time.monotonic() + seconds
        self._members = members
        self._decompressed = decompressed
        self.spooled = spooled
        self.depth = depth
        self.package_index = package_index or PackageIndex()

    def check_time(self) -> None:
        """Raise NotUnderstoodError if the time limit has passed."""
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
        """Read the next bytes into a buffer; raise :class:`NotUnderstoodError` for broken data."""
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
        # zlib's decompressor returns the input that it has not used; the others keep it inside.
        self._pending = getattr(self._decompressor, "unconsumed_tail", b"")
        return content

    def _next_stream(self) -> bool:
        """Start the next compressed stream in the file, as gzip, bzip2 and xz allow; False without one."""
        rest = self._decompressor.unused_data or self._file.read(_CHUNK)
        if not self._follows or not rest.startswith(self._follows):
            return False
        self._decompressor, self._pending = self._make(), rest
        return True


def _raw_deflate() -> Any:
    return zlib.decompressobj(-zlib.MAX_WBITS)


def _lzma() -> Any:
    return lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)


#: First bytes by which another compressed stream in the same file is recognized.
_FOLLOWS = {"gzip": b"\x1f\x8b", "bzip2": b"BZh", "xz": b"\xfd7zXZ"}
#: Functions that make a decompressor, by format.
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
    """Return a seekable file: the file itself, or a temporary copy of bounded size."""
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


_END, _ENTRY, _LOCAL = b"PK\x05\x06", b"PK\x01\x02", b"PK\x03\x04"
_END64, _LOCATOR64 = b"PK\x06\x06", b"PK\x06\x07"
_MAX_DIRECTORY_BYTES = 64 << 20
_FULL = 0xFFFFFFFF
_STORED, _DEFLATED, _BZIP2 = 0, 8, 12


class Member(NamedTuple):
    """An entry of a zip archive; ``size`` is compressed, ``offset`` is that of the local header."""

    name: str
    method: int
    size: int
    offset: int


def has_zip_directory(file: BinaryIO) -> bool:
    """Return whether a file ends with zip's central directory, whatever it begins with."""
    return _find_end(file) is not None


def before_archive(file: BinaryIO) -> int:
    """Return the number of bytes before the last archive in a file; in joined files, an earlier archive."""
    found = _find_end(file)
    return 0 if found is None else max(0, found[2])


def members(file: BinaryIO, budget: Budget) -> Iterator[tuple[Member, io.BufferedReader | str]]:
    """Yield each member with a stream of its uncompressed content, or with the reason why it can't be read.

    Programs look for the directory of an archive with data before it in different places. If both places
    contain a directory, the members of both are yielded.

    Raises
    ------
    NotUnderstoodError
        The directory is broken.
    """
    found = _find_end(file)
    if found is None:
        raise NotUnderstoodError("its zip directory is missing or cut off")
    start, size, shift = found
    if size > _MAX_DIRECTORY_BYTES:
        raise NotUnderstoodError("its zip directory is too large")
    places = [(start, shift)]
    if shift and start - shift >= 0 and _read_at(file, start - shift, 4) == _ENTRY:
        # Also at the recorded offset, where PyTorch's reader looks.
        places.append((start - shift, 0))
    for place, shift_there in places:
        for member in _entries(_read_at(file, place, size)):
            budget.take_member()
            if member.name.endswith("/"):
                continue
            try:
                content: io.BufferedReader | str = _content(file, member, shift_there, budget)
            except NotUnderstoodError as error:
                content = str(error)
            yield member, content


def _find_end(file: BinaryIO) -> tuple[int, int, int] | None:
    """Return offset and size of the directory, and the shift to add to all offsets; None without one."""
    length = file.seek(0, io.SEEK_END)
    tail_start = max(0, length - 22 - (1 << 16))
    tail = _read_at(file, tail_start, length - tail_start)
    # A truncated end mark at the very end is not an end record: readers continue searching before it.
    at = tail.rfind(_END, 0, max(0, len(tail) - 18))
    if at < 0:
        return None
    size, offset = struct.unpack_from("<II", tail, at + 12)
    end = tail_start + at
    if at >= 20 and tail[at - 20 : at - 16] == _LOCATOR64:
        (end64,) = struct.unpack_from("<Q", tail, at - 12)
        record = _read_at(file, end64, 56)
        if len(record) == 56 and record[:4] == _END64:
            size, offset = struct.unpack_from("<QQ", record, 40)
            end = end64
    start = end - size
    if start < 0:
        raise NotUnderstoodError("its zip directory is broken")
    # With data before the archive, all recorded offsets are too small by the length of that data.
    return start, size, start - offset


def _entries(directory: bytes) -> Iterator[Member]:
    at = 0
    while at < len(directory):
        if directory[at : at + 4] != _ENTRY or len(directory) - at < 46:
            raise NotUnderstoodError("its zip directory is broken")
        method, packed, size, name_length, extra_length, comment_length, offset = struct.unpack_from(
            "<10xH8xIIHHH8xI", directory, at
        )
        name = directory[at + 46 : at + 46 + name_length]
        extra = directory[at + 46 + name_length : at + 46 + name_length + extra_length]
        size, packed, offset = _large(extra, size, packed, offset)
        yield Member(name.decode(errors="replace"), method, packed if method else max(size, packed), offset)
        at += 46 + name_length + extra_length + comment_length


def _large(extra: bytes, *values: int) -> list[int]:
    """Return an entry's values, with those that are 0xFFFFFFFF replaced from its zip64 field."""
    found = list(values)
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        field = extra[at + 4 : at + 4 + length]
        if kind == 1:
            for place, value in enumerate(found):
                if value == _FULL and len(field) >= 8:
                    found[place] = int.from_bytes(field[:8], "little")
                    field = field[8:]
        at += 4 + length
    return found


def _content(file: BinaryIO, member: Member, shift: int, budget: Budget) -> io.BufferedReader:
    header = _read_at(file, member.offset + shift, 30)
    if len(header) < 30 or header[:4] != _LOCAL:
        raise NotUnderstoodError("a member is not where its zip directory says")
    start = member.offset + shift + 30 + sum(struct.unpack_from("<HH", header, 26))
    left = file.seek(0, io.SEEK_END) - start
    window: io.BufferedReader = io.BufferedReader(
        Window(file, start, left if member.method else min(member.size, left))
    )
    if member.method == _STORED:
        return window
    if member.method in (_DEFLATED, _BZIP2):
        return decompress(window, "deflate" if member.method == _DEFLATED else "bzip2", budget)
    raise NotUnderstoodError(f"a member is compressed by method {member.method}, which is not known")


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    if offset < 0:
        raise NotUnderstoodError("its zip directory is broken")
    file.seek(offset)
    return file.read(size)
