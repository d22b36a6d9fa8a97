"""Scalars of TensorBoard event files, ``events.out.tfevents.*``.

A file is a sequence of TFRecord frames, each a protobuf ``Event`` (tensorboard/compat/proto/event.proto):
1 ``wall_time``, 2 ``step``, 5 ``summary``. A summary holds values: 1 ``tag``, 2 ``simple_value``,
8 ``tensor``, 9 ``metadata``. Writers of TF2, and torch's with ``new_style=True``, write a tensor without
dimensions in place of ``simple_value``.
"""

import math
import re
import struct
from pathlib import Path

from .growing_file import GrowingFile
from .scalar import Names, Scalar, nanoseconds
from .tfrecord import fields, signed, split_frames, varint

#: The usual event, one ``simple_value`` of a short tag: wall_time, step, length of the summary, of the value,
#: of the tag; tag; value.
_ONE_VALUE = re.compile(
    rb"\x09(.{8})(?:\x10([\x80-\xff]{0,9}[\x00-\x7f]))?\x2a(.)\x0a(.)\x0a(.)(.{1,120})\x15(.{4})", re.DOTALL
)
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
#: Number of the field that holds the values of a tensor, by dtype, and the format of its raw content
#: (tensorflow/core/framework/types.proto and tensor.proto).
_DTYPES = {1: (5, "<f"), 2: (6, "<d"), 3: (7, "<i"), 9: (10, "<q"), 19: (13, "<e"), 14: (13, "bfloat16")}
_VARINTS = (7, 10, 13)


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
            # The end of a long record is not written yet: come back to it then.
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
            # Only the first event of a tag need say which plugin draws it.
            self._plugins.setdefault(name, _plugin(metadata))
        if simple is None and tensor is not None and self._plugins.get(name, b"scalars") == b"scalars":
            simple = _only_element(tensor)
        return None if simple is None else (name, simple)


def open_tensorboard(path: Path, rank: int | None = None) -> TensorBoardReader:
    """Return a reader of an event file."""
    return TensorBoardReader(GrowingFile(path), rank)


def _last_long(piece: bytes) -> int:
    """Return where the record begins that reaches beyond the piece."""
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
    """Return the value of a TensorProto without dimensions; None where it has some or is not a number."""
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
