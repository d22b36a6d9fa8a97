"""Frames of TFRecord files: length (8 bytes), its CRC (4), data, their CRC (4).

The format is documented in TensorFlow's guide "TFRecord and tf.train.Example". CRCs are CRC-32C (Castagnoli,
polynomial 0x82F63B78 reversed), rotated right by 15 bits plus 0xA282EAD8.
"""

import struct
from collections import defaultdict

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
