"""Reading of a segment stream's bytes: the part for a time range, or everything up to its last message.

A stream has no index. Its batches have the same layout, so that their messages start with the same bytes.
A search for these bytes finds the next batch from any offset, and the batch's time directs the search.
"""

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

#: Bytes that one probe reads; at least this many batches.
_PROBE_BYTES, _PROBE_BATCHES = 1 << 14, 4
#: Streams shorter than this many probes are read completely.
_MIN_PROBES = 16
#: Number of batches before and after the time range that may be read in addition.
_NEAR = 4
#: Number of probes, at first, whose offset is interpolated as if batches were evenly spaced.
_EVEN_PROBES = 8
#: A search that needs more probes is given up: the stream does not have the expected layout.
_MAX_PROBES = 48
#: If wall clock and monotonic clock diverged by less than this, the clock was slewed, not set; this much is
#: read beyond the range.
_SLACK_NS = 10**9
#: Errors of a stream that is damaged or does not have the layout of a segment.
_LAYOUT_ERRORS = (
    pa.ArrowException,
    struct.error,
    OSError,
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    StopIteration,
    MemoryError,
)

#: Files up to this size are read without looking for the last message.
_SMALL_BYTES = 64 << 20
_PIECE_BYTES = 16 << 20
#: Larger streams are not read completely: bytes and samples would not fit into memory together.
_MAX_BYTES = 4 << 30
_MAX_HEAD_BYTES = 16 << 20
_MAX_BODY_BYTES = 64 << 20
_CONTINUATION_MARK = 0xFFFFFFFF


def read_part(descriptor: int, since_ns: int | None, until_ns: int | None) -> bytes | None:
    """Return the bytes of a stream's schema, of its batches in a time range, and of its end.

    Parameters
    ----------
    since_ns, until_ns
        UTC time range, both ends included; None for all.

    Returns
    -------
    bytes or None
        None where the stream must be read completely: it is short, its clock was set while it was written, or
        it cannot be read or does not have the layout of a segment.
    """
    if since_ns is None and until_ns is None:
        return None
    try:
        stream = _Stream(descriptor)
        begin, end = stream.bounds(since_ns, until_ns)
    except _LAYOUT_ERRORS:
        return None
    if end >= stream.last:
        return stream.schema + _read(descriptor, begin, stream.size)
    part = _read(descriptor, begin, end)
    return b"".join([stream.schema, part, _read(descriptor, stream.last, stream.size)])


def read_whole(descriptor: int) -> bytes | None:
    """Return a stream's bytes up to shortly after its last complete message; None where it is too large.

    The few bytes after it show how the stream ends: with its end mark, within a message, or with other bytes,
    such as the zeros that a machine crash leaves.
    """
    size = os.fstat(descriptor).st_size
    pieces: list[bytes] = []
    reached = 0
    edge = 0
    while reached < size:
        if reached >= _MAX_BYTES:
            return None
        piece = os.pread(descriptor, _PIECE_BYTES, reached)
        if not piece:
            break
        pieces.append(piece)
        reached += len(piece)
        if size > _SMALL_BYTES:
            following = _next_message(descriptor, edge, reached)
            if following is None:
                break
            edge = following
    return b"".join(pieces)


@dataclass(frozen=True)
class _MessageShape:
    """Start of a batch's message: the bytes up to its body's length, and the length of its header."""

    start: bytes
    head: int

    @classmethod
    def of(cls, message: bytes) -> "_MessageShape":
        """Return the shape of a message, whose header is a flatbuffer with the length as fourth field."""
        (length, root) = struct.unpack_from("<II", message, 4)
        table = 8 + root
        fields = table - struct.unpack_from("<i", message, table)[0]
        offset = table + struct.unpack_from("<H", message, fields + 10)[0]
        shape = cls(message[:offset], 8 + length)
        # The field offsets must be before the length, and the length must be that of this message.
        if not 8 <= fields < table or table >= offset or shape.size(message, 0) != len(message):
            raise ValueError("it starts differently")
        return shape

    def size(self, data: bytes, offset: int) -> int | None:
        """Return the size of the message at an offset; None where no message starts there."""
        end = offset + len(self.start)
        if data[offset:end] != self.start or end + 8 > len(data):
            return None
        body: int = struct.unpack_from("<q", data, end)[0]
        return self.head + body if 0 <= body < 2**31 else None

    def first(self, data: bytes) -> int:
        """Return the offset of the first message that is followed by another one or by the end of the data.

        Raises
        ------
        ValueError
            There is no such message.
        """
        offset = data.find(self.start)
        while offset >= 0:
            size = self.size(data, offset)
            if size is not None and (
                offset + size == len(data) or self.size(data, offset + size) is not None
            ):
                return offset
            offset = data.find(self.start, offset + 1)
        raise ValueError("no batch starts here")

    def walk(self, data: bytes, offset: int) -> Iterator[int]:
        """Yield the offsets of consecutive complete messages, starting at an offset."""
        while (size := self.size(data, offset)) is not None and offset + size <= len(data):
            yield offset
            offset += size


@dataclass(frozen=True)
class _Batch:
    """Offset, first time and last time of a batch."""

    offset: int
    first_ns: int
    last_ns: int


class _Stream:
    """A stream of batches with the same layout, and its first and last batch."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        head = _read(descriptor, 0, _PROBE_BYTES)
        self.schema, begin, first = _opening(head)
        self._shape = _MessageShape.of(first)
        self._first_size = len(first)
        self._probe_bytes = max(_PROBE_BYTES, _PROBE_BATCHES * self._first_size)
        if self.size < _MIN_PROBES * self._probe_bytes:
            raise ValueError("it is short")
        self._clock_offset: int | None = None
        self._first = self._batch(begin, first)
        tail_at = self.size - self._probe_bytes
        tail = _read(descriptor, tail_at, self.size)
        offsets = list(self._shape.walk(tail, self._shape.first(tail)))
        whole = tail[offsets[-1] : offsets[-1] + (self._shape.size(tail, offsets[-1]) or 0)]
        self._last = self._batch(tail_at + offsets[-1], whole)
        if self._last.first_ns < self._first.last_ns:
            raise ValueError("its time went back")

    @property
    def last(self) -> int:
        """Offset of the last complete batch."""
        return self._last.offset

    def bounds(self, since_ns: int | None, until_ns: int | None) -> tuple[int, int]:
        """Return the offsets of batches between which all samples of a time range lie."""
        begin, end = self._first.offset, self.last
        if since_ns is not None:
            start, _ = self._neighbors(since_ns - _SLACK_NS, lambda batch, time_ns: batch.last_ns < time_ns)
            begin = start.offset
        if until_ns is not None:
            _, stop = self._neighbors(until_ns + _SLACK_NS, lambda batch, time_ns: batch.first_ns <= time_ns)
            end = stop.offset
        return begin, max(begin, end)

    def _neighbors(self, time_ns: int, before: Callable[[_Batch, int], bool]) -> tuple[_Batch, _Batch]:
        """Return the last batch before a time and the next one; at the stream's ends, one batch twice."""
        low, high = self._first, self._last
        if not before(low, time_ns):
            return low, low
        if before(high, time_ns):
            return high, high
        search_end = high.offset
        for probe in range(_MAX_PROBES):
            between = search_end - low.offset
            if between <= 2 * _NEAR * self._first_size:
                return low, high
            # Probe alternately before and after the interpolated offset; later bisect.
            even = (time_ns - low.last_ns) / max(1, high.first_ns - low.last_ns)
            share = even if probe < _EVEN_PROBES else 0.5
            margin = (_NEAR // 2) * self._first_size * (1 if probe % 2 else -1)
            distance = max(int(share * between) + margin, self._first_size)
            offset = low.offset + min(distance, between - self._first_size)
            found = self._next_batch(offset, high.offset)
            if found is None:
                search_end = offset
                continue
            if not low.first_ns <= found.first_ns <= high.first_ns:
                raise ValueError("its time went back")
            if before(found, time_ns):
                low = found
            else:
                high, search_end = found, found.offset
        raise ValueError("its batches have too many sizes")

    def _next_batch(self, offset: int, end: int) -> _Batch | None:
        """Return the first batch at or after an offset; None where it starts at `end` or later."""
        data = _read(self._descriptor, offset, min(self.size, offset + self._probe_bytes))
        begin = self._shape.first(data)
        size = self._shape.size(data, begin) or 0
        if offset + begin >= end:
            return None
        whole = data[begin : begin + size]
        if offset + begin + size > self.size:
            raise ValueError("it is longer than its file")
        if len(whole) < size:
            whole = _read(self._descriptor, offset + begin, offset + begin + size)
        return self._batch(offset + begin, whole)

    def _batch(self, offset: int, message: bytes) -> _Batch:
        """Return offset and times of one batch; raise ValueError if the clock was set since the first."""
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=[0, 1])
        with pa.ipc.open_stream(pa.py_buffer(self.schema + message), options=options) as stream:
            batch = stream.read_next_batch()
        batch.validate(full=True)
        times, clock = (
            np.asarray(column.to_numpy(zero_copy_only=False), np.int64) for column in batch.columns
        )
        clock_offset = int(times[0]) - int(clock[0])
        self._clock_offset = clock_offset if self._clock_offset is None else self._clock_offset
        if abs(clock_offset - self._clock_offset) > _SLACK_NS // 2:
            raise ValueError("its clock was set")
        return _Batch(offset, int(times.min()), int(times.max()))


def _opening(head: bytes) -> tuple[bytes, int, bytes]:
    """Return the schema's message, and offset and bytes of the first batch with samples."""
    source = pa.BufferReader(head)
    reader = pa.ipc.MessageReader.open_stream(source)
    reader.read_next_message()
    schema = head[: source.tell()]
    options = pa.ipc.IpcReadOptions(use_threads=False)
    while True:
        begin = source.tell()
        message = reader.read_next_message()
        if message.type != "record batch":
            raise ValueError("it holds other messages than record batches")
        whole = head[begin : source.tell()]
        with pa.ipc.open_stream(pa.py_buffer(schema + whole), options=options) as stream:
            if stream.read_next_batch().num_rows:
                return schema, begin, whole


def _read(descriptor: int, begin: int, end: int) -> bytes:
    data = os.pread(descriptor, max(0, end - begin), begin)
    while len(data) < end - begin and (
        more := os.pread(descriptor, end - begin - len(data), begin + len(data))
    ):
        data += more
    return data


def _next_message(descriptor: int, edge: int, reached: int) -> int | None:
    """Return the offset of the first message at or after `reached`; None where the messages end before it."""
    while edge + 8 <= reached:
        mark, head = struct.unpack("<Ii", os.pread(descriptor, 8, edge).ljust(8, b"\0"))
        if mark != _CONTINUATION_MARK or not 0 < head <= _MAX_HEAD_BYTES:
            return None
        body = _body_length(os.pread(descriptor, head, edge + 8))
        if body is None:
            return None
        edge += 8 + head + body
    return edge


def _body_length(head: bytes) -> int | None:
    """Return the length of a message's body, the fourth field of its header; None for a damaged header."""
    try:
        (table,) = struct.unpack_from("<I", head, 0)
        fields = table - struct.unpack_from("<i", head, table)[0]
        if fields < 0 or struct.unpack_from("<H", head, fields)[0] < 12:
            return 0
        (offset,) = struct.unpack_from("<H", head, fields + 10)
        length: int = struct.unpack_from("<q", head, table + offset)[0] if offset else 0
    except struct.error:
        return None
    return length if 0 <= length <= _MAX_BODY_BYTES else None
