"""Read a SquashFS 4.0 image without mounting it, with bounded memory: blocks, tables, entries and contents.

`SquashfsFile` opens an image, checks its superblock, and returns decompressed metadata, fragments and data
blocks. `walk` yields all entries: a directory's in the image's order, then those of its subdirectories; names
are bytes, as in the image. It refuses an image with circular directories, with names that lead out of the
image, or with too many entries. Every length and position is from an untrusted file and checked before use.
Source: https://dr-emann.github.io/squashfs/squashfs.html
"""

import io
import lzma
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
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
MAX_ENTRIES = 5_000_000
MAX_DEPTH = 256

_KINDS = ("", "directory", "file", "symlink", "block device", "character device", "fifo", "socket")
_HEADER = struct.Struct("<4H2I")
_DIRECTORY = struct.Struct("<2I2HI")
_LARGE_DIRECTORY = struct.Struct("<4I2HI")
_FILE = struct.Struct("<4I")
_LARGE_FILE = struct.Struct("<3Q4I")
_SYMLINK = struct.Struct("<2I")
_LISTING_HEADER = struct.Struct("<3I")
_LISTING_ENTRY = struct.Struct("<HhHH")
_NO_FRAGMENT = 0xFFFFFFFF
_EMPTY_LISTING = 3  # bytes that a directory's size counts for "." and ".."
_MAX_TARGET_BYTES = 65_535
_MAX_LISTED = 256


class Superblock(NamedTuple):
    """The first 96 bytes of an image; positions and sizes in bytes, `modified` in seconds since 1970."""

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
    """The storage returned an error while an image was read, so it is unknown if the image is damaged."""

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
        """Return `count` bytes of a table, and the block and offset of the byte after them.

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
            raise self.damaged("a position in it lies beyond its end")
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
    # The codec's own decompress() needs the exact length, which an image does not contain.
    stream = pyarrow.CompressedInputStream(pyarrow.BufferReader(data), "zstd")
    found = io.BytesIO()
    while found.tell() < limit and (part := stream.read(limit - found.tell())):
        found.write(part)
    return found.getvalue()


@dataclass(frozen=True, slots=True)
class Node:
    """An entry of an image."""

    path: bytes
    kind: str
    mode: int
    inode: int
    size: int = 0
    target: bytes = b""
    first_block: int = 0
    fragment: int = _NO_FRAGMENT
    fragment_offset: int = 0
    #: Position of a file's list of block sizes in the inode table, or of a directory's listing in its table.
    block: int = 0
    offset: int = 0


def walk(image: SquashfsFile) -> Iterator[Node]:
    """Yield every entry below the root, parents first.

    Raises
    ------
    GipfelError
        The image is damaged or exceeds the limits.
    """
    root = _node(image, b"", image.superblock.root)
    if root.kind != "directory":
        raise image.damaged("its root is not a directory")
    seen = {root.inode}
    waiting = [(root, 0)]
    count = 0
    while waiting:
        directory, depth = waiting.pop()
        below = []
        for name, reference in _listing(image, directory):
            node = _node(image, directory.path + b"/" + name if directory.path else name, reference)
            count += 1
            if count > MAX_ENTRIES:
                raise image.damaged(f"it has more than {MAX_ENTRIES} entries")
            if node.kind == "directory":
                if node.inode in seen or depth >= MAX_DEPTH:
                    raise image.damaged("its directories contain each other or are nested too deeply")
                seen.add(node.inode)
                below.append((node, depth + 1))
            yield node
        waiting += reversed(below)


def root_mode(image: SquashfsFile) -> int:
    """Return the mode of the root directory."""
    return _node(image, b"", image.superblock.root).mode


def read_blocks(image: SquashfsFile, node: Node) -> Iterator[bytes]:
    """Yield the content of a regular file in pieces of at most the image's block size."""
    size = image.superblock.block_size
    has_fragment = node.fragment != _NO_FRAGMENT
    whole = node.size // size
    blocks = whole if has_fragment else -(-node.size // size)
    table, block, offset = image.superblock.inode_table, node.block, node.offset
    position, left = node.first_block, node.size
    for _ in range(blocks):
        word, block, offset = image.read_metadata(table, block, offset, 4)
        number = int.from_bytes(word, "little")
        yield image.read_data(position, number, min(size, left))
        position += number & 0xFFFFFF
        left -= min(size, left)
    if has_fragment and left:
        fragment = image.read_fragment(node.fragment)[node.fragment_offset :][:left]
        if len(fragment) != left:
            raise image.damaged("the end of a file is missing")
        yield fragment


def _node(image: SquashfsFile, path: bytes, reference: int) -> Node:
    table = image.superblock.inode_table
    raw, block, offset = image.read_metadata(table, reference >> 16, reference & 0xFFFF, _HEADER.size)
    number, mode, _, _, _, inode = _HEADER.unpack(raw)
    if not 1 <= number <= 14:
        raise image.damaged("an inode has an unknown type")
    kind, is_large = _KINDS[(number - 1) % 7 + 1], number > 7
    mode &= 0o7777
    if kind == "directory":
        layout = _LARGE_DIRECTORY if is_large else _DIRECTORY
        fields = layout.unpack(image.read_metadata(table, block, offset, layout.size)[0])
        if is_large:
            _, size, first, _, _, start, _ = fields
        else:
            first, _, size, start, _ = fields
        return Node(path, kind, mode, inode, size, block=first, offset=start)
    if kind == "file":
        layout = _LARGE_FILE if is_large else _FILE
        raw, block, offset = image.read_metadata(table, block, offset, layout.size)
        if is_large:
            first, size, _, _, fragment, start, _ = layout.unpack(raw)
        else:
            first, fragment, start, size = layout.unpack(raw)
        return Node(path, kind, mode, inode, size, b"", first, fragment, start, block, offset)
    if kind == "symlink":
        raw, block, offset = image.read_metadata(table, block, offset, _SYMLINK.size)
        _, length = _SYMLINK.unpack(raw)
        if length > _MAX_TARGET_BYTES:
            raise image.damaged("a symbolic link is too long")
        return Node(path, kind, mode, inode, length, image.read_metadata(table, block, offset, length)[0])
    return Node(path, kind, mode, inode)


def _listing(image: SquashfsFile, directory: Node) -> Iterator[tuple[bytes, int]]:
    """Yield the name and inode reference of each entry of a directory."""
    table = image.superblock.directory_table
    left = directory.size - _EMPTY_LISTING
    block, offset = directory.block, directory.offset
    while left > 0:
        raw, block, offset = image.read_metadata(table, block, offset, _LISTING_HEADER.size)
        count, start, _ = _LISTING_HEADER.unpack(raw)
        left -= len(raw)
        if count >= _MAX_LISTED:
            raise image.damaged("a directory is not valid")
        for _ in range(count + 1):
            raw, block, offset = image.read_metadata(table, block, offset, _LISTING_ENTRY.size)
            position, _, _, length = _LISTING_ENTRY.unpack(raw)
            name, block, offset = image.read_metadata(table, block, offset, length + 1)
            left -= len(raw) + len(name)
            if length >= _MAX_LISTED or name in {b".", b".."} or b"/" in name or b"\0" in name:
                raise image.damaged("a name is not valid")
            yield name, start << 16 | position
