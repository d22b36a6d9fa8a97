"""Files and directories of a SquashFS image, in the order of their paths, and their content.

Names are bytes, as in the image. `walk` refuses an image whose directories contain each other, whose names
leave the image, or that has more than `MAX_ENTRIES` entries.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from .squashfs import SquashfsFile

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


@dataclass(frozen=True, slots=True)
class Node:
    """An entry of an image; `block` and `offset` are where its inode's own fields continue."""

    path: bytes
    kind: str
    mode: int
    inode: int
    size: int = 0
    target: bytes = b""
    first_block: int = 0
    fragment: int = _NO_FRAGMENT
    fragment_offset: int = 0
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
    """Yield name and inode reference of a directory's entries."""
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
