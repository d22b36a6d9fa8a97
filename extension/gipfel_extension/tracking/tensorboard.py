"""Scalars of TensorBoard event files, and the frames of TFRecord files, which W&B writes too."""

import math
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .growing_file import GrowingFile
from .scalar import Names, Scalar, nanoseconds

#: Longer records are images, graphs or histograms, not scalars: they are skipped without being read.
MAX_RECORD_BYTES = 1 << 20
#: The CRC of longer records, which are rare, is not checked.
_MAX_CHECKED_BYTES = 4096
_HEADER = struct.Struct("<QI")
_FRAME_BYTES = 16
#: Bytes of the usual event with one ``simple_value`` and a short tag, in this order: wall_time, step, lengths
#: of the summary, the value and the tag, then tag and value.
_ONE_VALUE = re.compile(
    rb"\x09(.{8})(?:\x10([\x80-\xff]{0,9}[\x00-\x7f]))?\x2a(.)\x0a(.)\x0a(.)(.{1,120})\x15(.{4})", re.DOTALL
)
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
#: Number of the field that holds the values of a tensor, by dtype, and the format of its raw content
#: (tensorflow/core/framework/types.proto and tensor.proto).
_DTYPES = {1: (5, "<f"), 2: (6, "<d"), 3: (7, "<i"), 9: (10, "<q"), 19: (13, "<e"), 14: (13, "bfloat16")}
_VARINTS = (7, 10, 13)


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
        Bytes up to the end of the last whole record; more than the piece has if that record is skipped.
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
    """Return the starts of the frames whose data do not match their CRC."""
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


class TensorBoardReader:
    """Reader of one event file.

    A record with a wrong checksum is dropped; after a damaged length nothing more can be read.
    """

    def __init__(self, file: GrowingFile, rank: int | None = None) -> None:
        self._file = file
        self._rank = rank
        self._names = Names()
        self._plugins: dict[str, bytes] = {}
        self._restarts = 0
        self._broken = False
        self.damaged = 0

    def read(self, *, last: bool = False) -> list[Scalar] | None:  # noqa: ARG002 - cut records have no value
        """Return the scalars of the next piece, in the order of the file; None where there is no more."""
        piece = self._file.read()
        if self._restarts != self._file.restarts:
            self._restarts, self._broken = self._file.restarts, False
        if self._broken or not piece:
            return None
        frames = split_frames(piece)
        if frames.consumed > len(piece) and self._file.offset + frames.consumed > self._file.size:
            # The end of a long record is not written yet: read it again once it is.
            frames = split_frames(piece[: _last_long(piece)])
        self.damaged += frames.damaged + frames.broken
        self._broken = frames.broken
        if not frames.consumed:
            return None
        self._file.advance(frames.consumed, piece)
        found: list[Scalar] = []
        for record in frames.records:
            self._add(record, found)
        return found

    def _add(self, record: bytes, found: list[Scalar]) -> None:
        usual = _ONE_VALUE.fullmatch(record)
        if usual is not None:
            time, step, summary, value, length, tag, simple = usual.groups()
            if length[0] == len(tag) and value[0] == len(tag) + 7 and summary[0] == len(tag) + 9:
                name = self._names.get(tag)
                if name is None:
                    self.damaged += 1
                    return
                time_ns = nanoseconds(_DOUBLE.unpack(time)[0])
                number = signed(varint(step, 0)[0]) if step else 0
                found.append(Scalar(name, number, time_ns, _FLOAT.unpack(simple)[0], self._rank))
                return
        try:
            self._add_event(record, found)
        except ValueError:
            self.damaged += 1

    def _add_event(self, record: bytes, found: list[Scalar]) -> None:
        step, time_ns, summaries = 0, None, []
        for number, kind, value in fields(record):
            if number == 1 and kind == 1 and isinstance(value, bytes):
                time_ns = nanoseconds(_DOUBLE.unpack(value)[0])
            elif number == 2 and isinstance(value, int):
                step = signed(value)
            elif number == 5 and kind == 2 and isinstance(value, bytes):
                summaries.append(value)
        for summary in summaries:
            for number, kind, value in fields(summary):
                if number == 1 and kind == 2 and isinstance(value, bytes):
                    scalar = self._value(value)
                    if scalar is not None:
                        found.append(Scalar(scalar[0], step, time_ns, scalar[1], self._rank))

    def _value(self, message: bytes) -> tuple[str, float] | None:
        """Return tag and value of one value of a summary; None where it is not a scalar."""
        tag, simple, tensor, metadata = b"", None, None, None
        for number, kind, value in fields(message):
            if number == 2 and kind == 5 and isinstance(value, bytes):
                simple = _FLOAT.unpack(value)[0]
            elif kind == 2 and isinstance(value, bytes):
                if number == 1:
                    tag = value
                elif number == 8:
                    tensor = value
                elif number == 9:
                    metadata = value
        if simple is None and tensor is None:
            return None
        name = self._names.get(tag)
        if name is None:
            self.damaged += 1
            return None
        if metadata is not None:
            # Only the first event of a tag must contain the name of its plugin.
            self._plugins.setdefault(name, _plugin(metadata))
        if simple is None and tensor is not None and self._plugins.get(name, b"scalars") == b"scalars":
            simple = _only_element(tensor)
        return None if simple is None else (name, simple)


def open_tensorboard(path: Path, rank: int | None = None) -> TensorBoardReader:
    """Return a reader of an event file."""
    return TensorBoardReader(GrowingFile(path), rank)


def _last_long(piece: bytes) -> int:
    """Return the start of the record that extends beyond the piece."""
    position = 0
    while True:
        whole = position + int.from_bytes(piece[position : position + 8], "little") + 16
        if whole > len(piece):
            return position
        position = whole


def _plugin(metadata: bytes) -> bytes:
    """Return ``SummaryMetadata.plugin_data.plugin_name``."""
    for number, kind, value in fields(metadata):
        if number == 1 and kind == 2 and isinstance(value, bytes):
            for inner, inner_kind, name in fields(value):
                if inner == 1 and inner_kind == 2 and isinstance(name, bytes):
                    return name
    return b""


def _only_element(tensor: bytes) -> float | None:
    """Return the value of a TensorProto without dimensions; None if it has dimensions or is not a number."""
    parts = {number: value for number, _, value in fields(tensor)}
    dtype, shape, raw = parts.get(1, 0), parts.get(2, b""), parts.get(4, b"")
    if not isinstance(dtype, int) or dtype not in _DTYPES:
        return None
    if isinstance(shape, bytes) and any(number == 2 for number, _, _ in fields(shape)):
        return None
    place, layout = _DTYPES[dtype]
    content = parts.get(place, b"")
    if place in _VARINTS and content:
        whole = content if isinstance(content, int) else varint(content, 0)[0]
        if place == 13:
            raw = whole.to_bytes(4, "little")[:2] if whole < 1 << 16 else b""
        else:
            return float(signed(whole))
    elif content:
        raw = content
    if not isinstance(raw, bytes) or not raw:
        return None
    if layout == "bfloat16":
        layout, raw = "<f", b"\0\0" + raw if len(raw) == 2 else b""
    size = struct.calcsize(layout)
    return float(struct.unpack(layout, raw)[0]) if len(raw) == size else math.nan
