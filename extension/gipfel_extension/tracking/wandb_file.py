"""Scalars of W&B's offline files, ``wandb/offline-run-*/run-ID.wandb``.

A file is a log of LevelDB with another header and checksum: 7 bytes ``:W&B``, 0xBEE1, version 0; blocks of
32 KiB; fragments of CRC-32 (of type and data), length, type (whole, first, middle or last) and data. A record
is a protobuf ``Record`` whose field 2 is ``HistoryRecord``: 1 items (1 ``key``, 2 ``nested_key``, 16
``value_json``) and 2 the step. Sources: wandb/sdk/internal/datastore.py of wandb 0.19,
wandb/proto/wandb_internal.proto.
"""

import json
import math
import struct
import zlib
from pathlib import Path

from .growing_file import GrowingFile
from .scalar import Names, Scalar, nanoseconds, number, step_number
from .tensorboard import fields, varint

_MAGIC = b":W&B\xe1\xbe\x00"
_BLOCK = 32 << 10
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
#: Longer records are tables, images and console output.
_MAX_RECORD_BYTES = 1 << 20
_MAX_DIGITS = 40
_HISTORY = b"\x12"
_NANS = (b"NaN", b'"NaN"')
_DIGITS = frozenset(b"0123456789-")


class WandbReader:
    """Reader of one offline file.

    Where a checksum is wrong, the rest of its block is dropped, as LevelDB does. Names that begin with ``_``
    are W&B's own; nested ones are joined by dots, as its pages show them.
    """

    def __init__(self, file: GrowingFile, rank: int | None = None) -> None:
        self._file = file
        self._rank = rank
        self._names = Names()
        self._restarts = 0
        self._expected = 0
        self._broken = False
        #: Fragments of an unfinished record; None where it is too long or its beginning is lost.
        self._record: bytearray | None = None
        self.damaged = 0

    def read(self, *, last: bool = False) -> list[Scalar] | None:  # noqa: ARG002 - cut records have no value
        """Return the scalars of the next piece; None where there is nothing more for now."""
        piece = self._file.read()
        if self._restarts != self._file.restarts:
            self._restarts, self._broken, self._record, self._expected = self._file.restarts, False, None, 0
        if self._broken or not piece:
            return None
        position, offset = 0, self._file.offset
        if offset == 0:
            if len(piece) < len(_MAGIC):
                return None
            if not piece.startswith(_MAGIC):
                self._broken, self.damaged = True, self.damaged + 1
                return None
            position = len(_MAGIC)
        elif offset != self._expected:
            # A hole of the file was skipped.
            position = min(-offset % _BLOCK, len(piece))
            self.damaged, self._record = self.damaged + 1, None
        found: list[Scalar] = []
        end = self._fragments(piece, position, offset, found)
        if not end:
            return None
        self._file.advance(end, piece)
        self._expected = self._file.offset
        return found

    def _fragments(self, piece: bytes, position: int, offset: int, found: list[Scalar]) -> int:
        """Read the whole fragments of a piece; return where they end."""
        size, unpack, crc32 = len(piece), _HEADER.unpack_from, zlib.crc32
        while True:
            left = _BLOCK - (offset + position) % _BLOCK
            if left < _HEADER.size:
                if position + left > size:
                    return position
                position += left
                continue
            if position + _HEADER.size > size:
                return position
            checksum, length, kind = unpack(piece, position)
            end = position + _HEADER.size + length
            if _HEADER.size + length > left or not _FULL <= kind <= _LAST:
                position = self._drop_block(position + left, size)
                if position < 0:
                    return size
                continue
            if end > size:
                return position
            if crc32(piece[position + 6 : end]) != checksum:
                position = self._drop_block(position + left, size)
                if position < 0:
                    return size
                continue
            self._add_fragment(kind, piece[position + _HEADER.size : end], found)
            position = end

    def _drop_block(self, end: int, size: int) -> int:
        """Count damage; return where the next block begins, -1 where that is beyond the piece."""
        self.damaged, self._record = self.damaged + 1, None
        return end if end <= size else -1

    def _add_fragment(self, kind: int, data: bytes, found: list[Scalar]) -> None:
        if kind == _FULL:
            self._record = None
            self._add(data, found)
            return
        if kind == _FIRST:
            self._record = bytearray(data)
        elif self._record is not None:
            self._record += data
            if len(self._record) > _MAX_RECORD_BYTES:
                self._record = None
            elif kind == _LAST:
                record, self._record = bytes(self._record), None
                self._add(record, found)

    def _add(self, record: bytes, found: list[Scalar]) -> None:
        # Fields are written in the order of their numbers, after the record's own number.
        try:
            position = 0
            if record[:1] == b"\x08":
                _, position = varint(record, 1)
            if record[position : position + 1] != _HISTORY:
                return
            length, position = varint(record, position + 1)
            self._add_history(record[position : position + length], found)
        except ValueError:
            self.damaged += 1

    def _add_history(self, history: bytes, found: list[Scalar]) -> None:
        step: int | None = None
        time_ns: int | None = None
        values: list[tuple[str, float]] = []
        position, end = 0, len(history)
        while position < end:
            tag = history[position]
            if tag not in (0x0A, 0x12):
                raise ValueError("this field is not of a history")
            if position + 1 < end and history[position + 1] < 0x80:
                start = position + 2
                position = start + history[position + 1]
            else:
                length, start = varint(history, position + 1)
                position = start + length
            if position > end:
                raise ValueError("an item is cut off")
            if tag == 0x12:
                step = step_number(
                    {each: value for each, _, value in fields(history[start:position])}.get(1, 0)
                )
                continue
            key, text = _item(history[start:position])
            if key[:1] == b"_":
                if key == b"_timestamp":
                    time_ns = nanoseconds(_number(text))
                elif key == b"_step":
                    step = step_number(_number(text))
                continue
            value = _number(text)
            if not math.isnan(value) or text in _NANS:
                name = self._names.get(key)
                if name is None:
                    self.damaged += 1
                else:
                    values.append((name, value))
        rank = self._rank
        found += [Scalar(name, step, time_ns, value, rank) for name, value in values]


def open_wandb(path: Path, rank: int | None = None) -> WandbReader:
    """Return a reader of an offline file."""
    return WandbReader(GrowingFile(path), rank)


def _item(item: bytes) -> tuple[bytes, bytes]:
    """Return the key and the JSON of an item of a history."""
    # The usual item: a short key, or a nested key of one part, and a short value.
    if len(item) < 128 and item[:1] in (b"\x0a", b"\x12"):
        end = 2 + item[1]
        if item[end : end + 2] == b"\x82\x01" and end + 3 + item[end + 2] == len(item):
            return item[2:end], item[end + 3 :]
    key, nested, text = b"", [], b""
    for field, kind, value in fields(item):
        if kind == 2 and isinstance(value, bytes):
            if field == 1:
                key = value
            elif field == 2:
                nested.append(value)
            elif field == 16:
                text = value
    return key or b".".join(nested), text


def _number(text: bytes) -> float:
    """Return a number of JSON; NaN for everything else."""
    try:
        if not text or len(text) > _MAX_DIGITS:
            return math.nan
        if text[0] in _DIGITS:
            return float(text)
        value = json.loads(text)
    except (ValueError, RecursionError):
        return math.nan
    if value in ("Infinity", "-Infinity"):
        return float(value)
    found = number(value)
    return math.nan if found is None else found
