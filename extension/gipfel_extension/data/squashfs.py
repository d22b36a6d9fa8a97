"""Read the blocks and tables of a SquashFS 4.0 image, without mounting it and within bounds.

`SquashfsFile` opens an image, checks its superblock, and returns decompressed metadata, fragments and data
blocks; `tree` reads inodes and directories from them. Every length and position comes from an untrusted file
and is checked before use. Source: https://dr-emann.github.io/squashfs/squashfs.html
"""

import io
import lzma
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple, Self

import pyarrow

from gipfel_cluster.model import GipfelError

from ..telemetry.files import open_regular

SUFFIX = ".sqsh"

_MAGIC = b"hsqs"
_METADATA_BYTES = 8192
_METADATA_UNCOMPRESSED = 0x8000
_DATA_UNCOMPRESSED = 1 << 24
_FRAGMENTS_PER_BLOCK = 512
_CACHED_BLOCKS = 2048
_BLOCK_SIZES = range(4096, (1 << 20) + 1)
_READABLE = frozenset(("gzip", "xz", "zstd"))
_COMPRESSORS = {1: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}
_SUPERBLOCK = struct.Struct("<4s4I6H8Q")
_FRAGMENT = struct.Struct("<QII")


class Superblock(NamedTuple):
    """First 96 bytes of an image; positions and sizes in bytes."""

    magic: bytes
    inodes: int
    modified: int
    block_size: int
    fragments: int
    compressor: int
    block_log: int
    flags: int
    ids: int
    major: int
    minor: int
    root: int
    bytes_used: int
    id_table: int
    xattr_table: int
    inode_table: int
    directory_table: int
    fragment_table: int
    export_table: int


class ImageReadError(GipfelError):
    """The storage of an image returns an error, so it is unknown whether the image is whole."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"{path} can't be read: {error.strerror or error}.", "Check its storage, or read a copy."
        )


class SquashfsFile:
    """An open image: its superblock, and its blocks by position. Use it in a ``with`` statement.

    Raises
    ------
    GipfelError
        The file is missing, is not a SquashFS 4.0 image, or is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open_regular(path, follow=True)
        except OSError as error:
            raise GipfelError(
                f"{path} can't be read: {error.strerror or error}.", "Check the path."
            ) from error
        self._metadata: dict[int, tuple[bytes, int]] = {}
        self._last_fragment: tuple[int, bytes] = (-1, b"")
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self.superblock = self._read_superblock()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def compressor(self) -> str:
        """Return the name of the compressor, as ``mksquashfs -comp`` takes it."""
        return _COMPRESSORS[self.superblock.compressor]

    def damaged(self, reason: str) -> GipfelError:
        """Return the error for an image that is corrupt."""
        return GipfelError(f"{self.path} is damaged: {reason}.", "Copy or pack it again.")

    def read_metadata(self, table: int, block: int, offset: int, count: int) -> tuple[bytes, int, int]:
        """Return `count` bytes of a table, and block and offset of what follows them.

        Parameters
        ----------
        table
            Position of the table, in bytes.
        block
            Position of a metadata block within the table.
        offset
            Position within the decompressed block.
        """
        found = bytearray()
        while True:
            data, next_position = self._metadata_block(table + block)
            piece = data[offset : offset + count - len(found)]
            found += piece
            offset += len(piece)
            if len(found) == count:
                return bytes(found), block, offset
            if len(data) < _METADATA_BYTES:
                raise self.damaged("a table ends too early")
            block, offset = next_position - table, 0

    def read_data(self, position: int, size_word: int, size: int) -> bytes:
        """Return a data block of `size` bytes.

        Parameters
        ----------
        size_word
            Size on disk, with a bit that is set if the block is not compressed; 0 for a sparse block.
        """
        if size_word == 0:
            return bytes(size)
        data = self._read_block(position, size_word)
        if len(data) != size:
            raise self.damaged("a data block has the wrong length")
        return data

    def _read_block(self, position: int, size_word: int) -> bytes:
        """Return a data or fragment block of any length up to the image's block size."""
        stored = size_word & (_DATA_UNCOMPRESSED - 1)
        if size_word >= 2 * _DATA_UNCOMPRESSED or stored > self.superblock.block_size:
            raise self.damaged("a data block is too large")
        raw = self._read(position, stored)
        if size_word & _DATA_UNCOMPRESSED:
            return raw
        return self._decompress(raw, self.superblock.block_size)

    def read_fragment(self, index: int) -> bytes:
        """Return a fragment block, which holds the ends of several files."""
        if self._last_fragment[0] != index:
            if index >= self.superblock.fragments:
                raise self.damaged("a fragment does not exist")
            pointer = self.superblock.fragment_table + index // _FRAGMENTS_PER_BLOCK * 8
            table = int.from_bytes(self._read(pointer, 8), "little")
            offset = index % _FRAGMENTS_PER_BLOCK * _FRAGMENT.size
            position, size_word, _ = _FRAGMENT.unpack(self.read_metadata(table, 0, offset, _FRAGMENT.size)[0])
            data = self._read_block(position, size_word)
            self._last_fragment = index, data
        return self._last_fragment[1]

    def _read_superblock(self) -> Superblock:
        try:
            head = self._file.read(_SUPERBLOCK.size)
        except OSError as error:
            raise ImageReadError(self.path, error) from error
        if not head.startswith(_MAGIC):
            raise GipfelError(f"{self.path} is not a SquashFS file.", "Make one with `gipfel data pack`.")
        if len(head) < _SUPERBLOCK.size:
            raise GipfelError(f"{self.path} is cut off.", "Copy or pack it again.")
        found = Superblock(*_SUPERBLOCK.unpack(head))
        if found.major != 4 or found.minor != 0:
            raise GipfelError(
                f"{self.path} is a SquashFS of version {found.major}.{found.minor}, not 4.0.",
                "Pack it again.",
            )
        if found.bytes_used > self.size:
            raise GipfelError(
                f"{self.path} is cut off: {self.size} of {found.bytes_used} bytes are there.",
                "Copy or pack it again.",
            )
        if found.block_size not in _BLOCK_SIZES or found.block_size != 1 << min(found.block_log, 20):
            raise self.damaged("its block size is not valid")
        name = _COMPRESSORS.get(found.compressor, str(found.compressor))
        if name not in _READABLE:
            raise GipfelError(
                f"{self.path} is compressed with {name}, which gipfel can't read.", "Pack it again."
            )
        return found

    def _metadata_block(self, position: int) -> tuple[bytes, int]:
        """Return a decompressed metadata block and the position of the following one."""
        cached = self._metadata.get(position)
        if cached is None:
            header = int.from_bytes(self._read(position, 2), "little")
            stored = header & (_METADATA_UNCOMPRESSED - 1)
            if not 0 < stored <= _METADATA_BYTES:
                raise self.damaged("a metadata block is empty or too large")
            raw = self._read(position + 2, stored)
            data = raw if header & _METADATA_UNCOMPRESSED else self._decompress(raw, _METADATA_BYTES)
            cached = data, position + 2 + stored
            if len(self._metadata) >= _CACHED_BLOCKS:
                del self._metadata[next(iter(self._metadata))]
            self._metadata[position] = cached
        return cached

    def _read(self, position: int, count: int) -> bytes:
        if position + count > self.superblock.bytes_used:
            raise self.damaged("it points beyond its end")
        try:
            data = os.pread(self._file.fileno(), count, position)
        except OSError as error:
            raise ImageReadError(self.path, error) from error
        if len(data) != count:
            raise self.damaged("it ends too early")
        return data

    def _decompress(self, data: bytes, limit: int) -> bytes:
        """Return decompressed data; refuse more than `limit` bytes."""
        try:
            found = _decompress(self.compressor, data, limit + 1)
        except (zlib.error, lzma.LZMAError, OSError, ValueError) as error:
            raise self.damaged("a block can't be decompressed") from error
        if len(found) > limit:
            raise self.damaged("a block is too large when decompressed")
        return found


def _decompress(compressor: str, data: bytes, limit: int) -> bytes:
    if compressor == "gzip":
        return zlib.decompressobj().decompress(data, limit)
    if compressor == "xz":
        return lzma.LZMADecompressor(memlimit=256 << 20).decompress(data, limit)
    # The codec's own decompress() wants the exact length, which an image does not hold.
    stream = pyarrow.CompressedInputStream(pyarrow.BufferReader(data), "zstd")
    found = io.BytesIO()
    while found.tell() < limit and (part := stream.read(limit - found.tell())):
        found.write(part)
    return found.getvalue()
