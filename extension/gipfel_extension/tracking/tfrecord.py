"""Frames of TFRecord files, and the fields of the protobuf messages in them, without a schema.

A frame is length (8 bytes), its CRC (4), data, their CRC (4). The format is documented in TensorFlow's
guide "TFRecord and tf.train.Example". CRCs are CRC-32C (Castagnoli, polynomial 0x82F63B78 reversed),
rotated right by 15 bits plus 0xA282EAD8. Source of the wire format of messages: protobuf.dev, "Encoding".
Groups, which are obsolete, are not read.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

#: Longer records are images, graphs or histograms, and no scalars: they are skipped without being read.
MAX_RECORD_BYTES = 1 << 20
#: Longer records among these are rare, and their CRC is not computed.
_MAX_CHECKED_BYTES = 4096
_HEADER = struct.Struct("<QI")
_FRAME_BYTES = 16


def _table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table.astype(np.uint32)


_TABLE = _table()


def masked_crcs(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the masked CRC-32C of each row of bytes, shape (n, length)."""
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crc = _TABLE[(crc ^ column) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    crc = ~crc
    rotated: NDArray[np.uint32] = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return rotated + np.uint32(0xA282EAD8)


class Frames:
    """Result of :func:`split_frames`.

    Attributes
    ----------
    records
        Data of the whole records whose CRCs are right.
    consumed
        Bytes up to the end of the last whole record, longer than the piece where that one is skipped.
    damaged
        Records with a wrong CRC of their data.
    broken
        True where the CRC of a length is wrong: nothing after it can be read.
    """

    __slots__ = ("broken", "consumed", "damaged", "records")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.consumed = 0
        self.damaged = 0
        self.broken = False


def split_frames(piece: bytes) -> Frames:
    """Return the records in a piece of a file that begins with a frame."""
    found = Frames()
    starts, lengths, begun = _walk(piece)
    if not begun:
        return found
    array = np.frombuffer(piece, np.uint8)
    sound = _count_sound(array, begun)
    found.broken = sound < len(begun)
    starts, lengths = starts[:sound], lengths[:sound]
    if not starts:
        return found
    found.consumed = starts[-1] + lengths[-1] + _FRAME_BYTES
    wrong = _wrong_data(array, starts, lengths)
    found.damaged = len(wrong)
    found.records = [
        piece[start + 12 : start + 12 + length]
        for start, length in zip(starts, lengths, strict=True)
        if start not in wrong and start + 12 + length <= len(piece)
    ]
    return found


def _walk(piece: bytes) -> tuple[list[int], list[int], list[int]]:
    """Return starts and lengths of the whole frames, and the starts of these and of an unfinished one."""
    starts: list[int] = []
    lengths: list[int] = []
    position, end = 0, len(piece)
    unpack = _HEADER.unpack_from
    while position + 12 <= end:
        length = unpack(piece, position)[0]
        whole = position + length + _FRAME_BYTES
        if whole > end and length <= MAX_RECORD_BYTES:
            return starts, lengths, [*starts, position]
        starts.append(position)
        lengths.append(length)
        position = whole
    return starts, lengths, starts


def _count_sound(array: NDArray[np.uint8], starts: list[int]) -> int:
    """Return how many frames come before the first with a wrong CRC of its length."""
    headers = array[np.array(starts)[:, None] + np.arange(12)]
    said = headers[:, 8:].copy().view("<u4").ravel()
    wrong = np.flatnonzero(masked_crcs(headers[:, :8]) != said)
    return int(wrong[0]) if len(wrong) else len(starts)


def _wrong_data(array: NDArray[np.uint8], starts: list[int], lengths: list[int]) -> set[int]:
    """Return the starts of the frames whose data have another CRC than was written."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for start, length in zip(starts, lengths, strict=True):
        if length <= _MAX_CHECKED_BYTES:
            by_length[length].append(start)
    wrong: set[int] = set()
    for length, found in by_length.items():
        at = np.array(found)
        rows = array[at[:, None] + np.arange(12, 12 + length + 4)]
        said = rows[:, length:].copy().view("<u4").ravel()
        wrong.update(at[masked_crcs(rows[:, :length]) != said].tolist())
    return wrong


_MAX_VARINT_BYTES = 10


def fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, wire type (0, 1, 2 or 5) and value of each field: an integer, or the bytes of the others.

    Raises
    ------
    ValueError
        The message is cut off or is not in this format.
    """
    position, end = 0, len(message)
    while position < end:
        key, position = varint(message, position)
        kind = key & 7
        if kind == 0:
            value, position = varint(message, position)
            yield key >> 3, kind, value
            continue
        if kind == 2:
            length, position = varint(message, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"there is no wire type {kind}")
        if position + length > end:
            raise ValueError("a field is cut off")
        yield key >> 3, kind, message[position : position + length]
        position += length


def signed(value: int) -> int:
    """Return an int64 from the unsigned integer of its varint."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


def varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned integer at a position, and where it ends; raise ValueError if it is cut off."""
    result = shift = 0
    for offset in range(_MAX_VARINT_BYTES):
        if position + offset >= len(message):
            break
        byte = message[position + offset]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position + offset + 1
        shift += 7
    raise ValueError("an integer is cut off or too long")
