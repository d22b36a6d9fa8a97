"""The members of a zip file by its central directory, without what a damaged or a hostile one may lie about.

Python's zipfile refuses wrong checksums and flags that PyTorch's reader ignores, so that a scanner built on
it sees nothing of what is then loaded. Here checksums and flags don't matter, and each entry counts, also a
second one of the same name. Source: APPNOTE.TXT of PKWARE, 4.3 and 4.5.3.
"""

import io
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from .streams import Budget, NotUnderstoodError, Window, decompress

_END, _ENTRY, _LOCAL = b"PK\x05\x06", b"PK\x01\x02", b"PK\x03\x04"
_END64, _LOCATOR64 = b"PK\x06\x06", b"PK\x06\x07"
_MAX_DIRECTORY_BYTES = 64 << 20
_FULL = 0xFFFFFFFF
_STORED, _DEFLATED, _BZIP2 = 0, 8, 12


class Member(NamedTuple):
    """An entry; ``offset`` is that of its local header."""

    name: str
    method: int
    size: int
    offset: int


def has_directory(file: BinaryIO) -> bool:
    """Return whether a zip directory ends the file, regardless of its beginning."""
    return _find_end(file) is not None


def before_archive(file: BinaryIO) -> int:
    """Return the bytes before the archive that ends a file: another archive, where several were joined."""
    found = _find_end(file)
    return 0 if found is None else max(0, found[2])


def members(file: BinaryIO, budget: Budget) -> Iterator[tuple[Member, io.BufferedReader | str]]:
    """Yield each member with a stream of its uncompressed content, or why it can't be read.

    Programs differ in where they look for the directory of an archive with data before it: where both places
    hold one, the members of both count.

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
        # At the recorded offset, as PyTorch's reader takes it.
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
    """Return offset and size of the directory, and by how much all offsets are shifted."""
    length = file.seek(0, io.SEEK_END)
    tail_start = max(0, length - 22 - (1 << 16))
    tail = _read_at(file, tail_start, length - tail_start)
    # A mark that is cut off at the end is not an end record: readers continue to search before it.
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
    # With data before the archive, all offsets are short by its length.
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
    """Return the values of an entry, those that are full taken from its zip64 field."""
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
