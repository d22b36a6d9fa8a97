"""Scalars of W&B's offline files, ``wandb/offline-run-*/run-ID.wandb``.

A file is a LevelDB log with its own header and checksum. It has a header of 7 bytes (``:W&B``, 0xBEE1,
version 0), and blocks of 32 KiB of fragments of CRC-32 (of type and data), length, type (whole, first, middle
or last) and data. A record is a protobuf ``Record``, see :mod:`.wandb_rows`. Source:
wandb/sdk/internal/datastore.py of wandb 0.19.
"""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from .growing_file import GrowingFile
from .scalar import Scalar
from .wandb_rows import HistoryRows

_MAGIC = b":W&B\xe1\xbe\x00"
_BLOCK = 32 << 10
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
#: Longer records are tables, images and console output, which are skipped.
_MAX_RECORD_BYTES = 1 << 20


#: Bytes per read: the columns of such a piece fit into a processor's cache.
_PIECE_BYTES = 1 << 20


class WandbReader:
    """Reader of one offline file.

    Where a checksum is wrong, the rest of its block is dropped, as LevelDB does. Names that begin with ``_``
    are W&B's own; nested ones are joined by dots, as its pages show them.
    """

    def __init__(self, file: GrowingFile, rank: int | None = None) -> None:
        self._file = file
        self._rows = HistoryRows(rank)
        self._restarts = 0
        self._expected = 0
        self._broken = False
        #: Fragments of an unfinished record; None where it is too long or its beginning is lost.
        self._record: bytearray | None = None
        self._damaged = 0

    @property
    def damaged(self) -> int:
        """Number of fragments, rows and values that were dropped."""
        return self._damaged + self._rows.damaged

    def read(self, *, last: bool = False) -> Sequence[Scalar] | None:  # noqa: ARG002 - cut records have no value
        """Return the scalars of the next piece; None where there is nothing more for now."""
        piece = self._file.read(_PIECE_BYTES)
        if self._restarts != self._file.restarts:
            self._restarts, self._broken, self._record, self._expected = self._file.restarts, False, None, 0
        if self._broken or not piece:
            return None
        position, offset = 0, self._file.offset
        if offset == 0:
            if len(piece) < len(_MAGIC):
                return None
            if not piece.startswith(_MAGIC):
                self._broken, self._damaged = True, self._damaged + 1
                return None
            position = len(_MAGIC)
        elif offset != self._expected:
            # A hole in the file was skipped.
            position = min(-offset % _BLOCK, len(piece))
            self._damaged, self._record = self._damaged + 1, None
        records: list[bytes] = []
        end = self._fragments(piece, position, offset, records)
        if not end:
            return None
        self._file.advance(end, piece)
        self._expected = self._file.offset
        return self._rows.read(records)

    def _fragments(self, piece: bytes, position: int, offset: int, records: list[bytes]) -> int:
        """Read the whole fragments of a piece, and add the records; return where they end."""
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
            fragment = piece[position + 6 : end]
            if crc32(fragment) != checksum:
                position = self._drop_block(position + left, size)
                if position < 0:
                    return size
                continue
            if kind == _FULL:
                self._record = None
                records.append(fragment)
            else:
                self._add_fragment(kind, fragment, records)
            position = end

    def _drop_block(self, end: int, size: int) -> int:
        """Count damage; return where the next block begins, -1 where that is beyond the piece."""
        self._damaged, self._record = self._damaged + 1, None
        return end if end <= size else -1

    def _add_fragment(self, kind: int, fragment: bytes, records: list[bytes]) -> None:
        """Add a fragment, which begins with its type; if it completes a record, add that to ``records``."""
        if kind == _FIRST:
            self._record = bytearray(fragment)
        elif self._record is not None:
            self._record += fragment[1:]
            if len(self._record) > _MAX_RECORD_BYTES:
                self._record = None
            elif kind == _LAST:
                records.append(bytes(self._record))
                self._record = None


def open_wandb(path: Path, rank: int | None = None) -> WandbReader:
    """Return a reader of an offline file."""
    return WandbReader(GrowingFile(path), rank)
