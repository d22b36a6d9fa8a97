"""Read a segment stream as far as its messages go: what lies behind them may be of any length."""

import os
import struct

#: Files up to this length are read as they are.
_SMALL_BYTES = 64 << 20
_PIECE_BYTES = 16 << 20
#: Longer streams are not read whole: their samples would not fit into memory beside themselves.
_MOST_BYTES = 4 << 30
_MOST_HEAD_BYTES = 16 << 20
_MOST_BODY_BYTES = 64 << 20
_CONTINUES = 0xFFFFFFFF


def read_whole(descriptor: int) -> bytes | None:
    """Return a stream's bytes up to a little behind its last whole message; None where it is too long.

    The few bytes behind it show a reader of messages how the stream ends: with its mark, within a message, or
    with something else, such as the zeros that a crash of the machine leaves.
    """
    size = os.fstat(descriptor).st_size
    pieces: list[bytes] = []
    reached = 0
    edge = 0
    while reached < size:
        if reached >= _MOST_BYTES:
            return None
        piece = os.pread(descriptor, _PIECE_BYTES, reached)
        if not piece:
            break
        pieces.append(piece)
        reached += len(piece)
        if size > _SMALL_BYTES:
            following = _walk(descriptor, edge, reached)
            if following is None:
                break
            edge = following
    return b"".join(pieces)


def _walk(descriptor: int, edge: int, reached: int) -> int | None:
    """Return where the first message begins that is not before `reached`; None where none follows."""
    while edge + 8 <= reached:
        mark, head = struct.unpack("<Ii", os.pread(descriptor, 8, edge).ljust(8, b"\0"))
        if mark != _CONTINUES or not 0 < head <= _MOST_HEAD_BYTES:
            return None
        body = _body(os.pread(descriptor, head, edge + 8))
        if body is None:
            return None
        edge += 8 + head + body
    return edge


def _body(head: bytes) -> int | None:
    """Return the length of a message's body: the fourth field of the table that a message's head is."""
    try:
        (table,) = struct.unpack_from("<I", head, 0)
        fields = table - struct.unpack_from("<i", head, table)[0]
        if fields < 0 or struct.unpack_from("<H", head, fields)[0] < 12:
            return 0
        (place,) = struct.unpack_from("<H", head, fields + 10)
        length: int = struct.unpack_from("<q", head, table + place)[0] if place else 0
    except struct.error:
        return None
    return length if 0 <= length <= _MOST_BODY_BYTES else None
