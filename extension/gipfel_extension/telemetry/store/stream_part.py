"""Read the bytes of a segment stream: the part that holds a time range, or the whole up to its last message.

A stream has no index. But its batches are alike, so that their messages begin with the same bytes: from any
place the next one is found by them, and its time tells where to search next.
"""

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

#: What is read at a place of which nothing is known; at least so many batches.
_GLANCE_BYTES, _GLANCE_BATCHES = 1 << 14, 4
#: Shorter streams, in glances, are read whole.
_SHORT = 16
#: So many batches before and after the range may be read with it.
_NEAR = 4
#: So many probes assume that batches come evenly.
_EVEN_PROBES = 8
#: A place that is not found by so many probes is in a stream of another kind.
_MOST_PROBES = 48
#: Clocks that went apart by less were slewed, not set; so much is read beyond the range.
_SLACK_NS = 10**9
#: What a stream raises that can't be read, or whose columns or batches are not as ours are.
_NOT_OURS = (
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

#: Files up to this length are read as they are.
_SMALL_BYTES = 64 << 20
_PIECE_BYTES = 16 << 20
#: Longer streams are not read whole: their samples would not fit into memory beside themselves.
_MOST_BYTES = 4 << 30
_MOST_HEAD_BYTES = 16 << 20
_MOST_BODY_BYTES = 64 << 20
_CONTINUES = 0xFFFFFFFF


def read_part(descriptor: int, since_ns: int | None, until_ns: int | None) -> bytes | None:
    """Return a stream's schema, its batches of a time range, and its end as it is; None for "read it whole".

    Parameters
    ----------
    since_ns, until_ns
        UTC time of the first sample that is wanted and of the last; None for all.

    Returns
    -------
    bytes or None
        None for a short stream, for one whose clock was set while it was written, where order and time
        disagree, and for one that can't be read or is not as ours are.
    """
    if since_ns is None and until_ns is None:
        return None
    try:
        stream = _Stream(descriptor)
        begin, end = stream.bounds(since_ns, until_ns)
    except _NOT_OURS:
        return None
    if end >= stream.last:
        return stream.schema + _read(descriptor, begin, stream.size)
    part = _read(descriptor, begin, end)
    return b"".join([stream.schema, part, _read(descriptor, stream.last, stream.size)])


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


@dataclass(frozen=True)
class _MessageShape:
    """Beginning of a batch's message: the bytes up to its body's length, and the length of its head."""

    start: bytes
    head: int

    @classmethod
    def of(cls, message: bytes) -> "_MessageShape":
        """Return that of one message, whose metadata are a flatbuffer: the fourth field is the length."""
        (length, root) = struct.unpack_from("<II", message, 4)
        table = 8 + root
        fields = table - struct.unpack_from("<i", message, table)[0]
        place = table + struct.unpack_from("<H", message, fields + 10)[0]
        shape = cls(message[:place], 8 + length)
        # The fields' offsets must lie before the length, and the length be that of this message.
        if not 8 <= fields < table or table >= place or shape.size(message, 0) != len(message):
            raise ValueError("it begins in another way")
        return shape

    def size(self, data: bytes, place: int) -> int | None:
        """Return the bytes of the message that begins at a place; None where none does."""
        end = place + len(self.start)
        if data[place:end] != self.start or end + 8 > len(data):
            return None
        body: int = struct.unpack_from("<q", data, end)[0]
        return self.head + body if 0 <= body < 2**31 else None

    def first(self, data: bytes) -> int:
        """Return where the first message begins that another one follows, or the end of the data.

        Raises
        ------
        ValueError
            There is none.
        """
        place = data.find(self.start)
        while place >= 0:
            size = self.size(data, place)
            if size is not None and (place + size == len(data) or self.size(data, place + size) is not None):
                return place
            place = data.find(self.start, place + 1)
        raise ValueError("no batch begins here")

    def walk(self, data: bytes, place: int) -> Iterator[int]:
        """Yield where the messages begin that are whole, from a place on."""
        while (size := self.size(data, place)) is not None and place + size <= len(data):
            yield place
            place += size


@dataclass(frozen=True)
class _Batch:
    """A batch: its offset, and its first and last time."""

    place: int
    first_ns: int
    last_ns: int


class _Stream:
    """A stream of batches that are alike, and the offsets of its first and its last one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        head = _read(descriptor, 0, _GLANCE_BYTES)
        self.schema, begin, first = _opening(head)
        self._shape = _MessageShape.of(first)
        self._step = len(first)
        self._glance = max(_GLANCE_BYTES, _GLANCE_BATCHES * self._step)
        if self.size < _SHORT * self._glance:
            raise ValueError("it is short")
        self._apart: int | None = None
        self._first = self._batch(begin, first)
        tail_at = self.size - self._glance
        tail = _read(descriptor, tail_at, self.size)
        places = list(self._shape.walk(tail, self._shape.first(tail)))
        whole = tail[places[-1] : places[-1] + (self._shape.size(tail, places[-1]) or 0)]
        self._last = self._batch(tail_at + places[-1], whole)
        if self._last.first_ns < self._first.last_ns:
            raise ValueError("its time went back")

    @property
    def last(self) -> int:
        """Offset of the last whole batch."""
        return self._last.place

    def bounds(self, since_ns: int | None, until_ns: int | None) -> tuple[int, int]:
        """Return where a batch begins before which, and one from which on, nothing is wanted."""
        begin, end = self._first.place, self.last
        if since_ns is not None:
            begin = self._around(since_ns - _SLACK_NS, lambda found, time_ns: found.last_ns < time_ns)[
                0
            ].place
        if until_ns is not None:
            end = self._around(until_ns + _SLACK_NS, lambda found, time_ns: found.first_ns <= time_ns)[
                1
            ].place
        return begin, max(begin, end)

    def _around(self, time_ns: int, before: Callable[[_Batch, int], bool]) -> tuple[_Batch, _Batch]:
        """Return two neighboring batches, one before a time and one not, or twice one at the stream's end."""
        low, high = self._first, self._last
        if not before(low, time_ns):
            return low, low
        if before(high, time_ns):
            return high, high
        reach = high.place
        for probe in range(_MOST_PROBES):
            between = reach - low.place
            if between <= 2 * _NEAR * self._step:
                return low, high
            # Where it would be if batches came evenly, now before that, now after it; then by halves.
            even = (time_ns - low.last_ns) / max(1, high.first_ns - low.last_ns)
            share = even if probe < _EVEN_PROBES else 0.5
            aside = (_NEAR // 2) * self._step * (1 if probe % 2 else -1)
            place = low.place + min(max(int(share * between) + aside, self._step), between - self._step)
            found = self._look(place, high.place)
            if found is None:
                reach = place
                continue
            if not low.first_ns <= found.first_ns <= high.first_ns:
                raise ValueError("its time went back")
            if before(found, time_ns):
                low = found
            else:
                high, reach = found, found.place
        raise ValueError("its batches are of many sizes")

    def _look(self, place: int, before: int) -> _Batch | None:
        """Return the first batch that begins at a place or after it; None where that is a known one."""
        data = _read(self._descriptor, place, min(self.size, place + self._glance))
        begin = self._shape.first(data)
        size = self._shape.size(data, begin) or 0
        if place + begin >= before:
            return None
        whole = data[begin : begin + size]
        if place + begin + size > self.size:
            raise ValueError("it is longer than its file")
        if len(whole) < size:
            whole = _read(self._descriptor, place + begin, place + begin + size)
        return self._batch(place + begin, whole)

    def _batch(self, place: int, message: bytes) -> _Batch:
        """Return the times of one batch; refuse it where the clock was set since the first one."""
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=[0, 1])
        with pa.ipc.open_stream(pa.py_buffer(self.schema + message), options=options) as stream:
            batch = stream.read_next_batch()
        batch.validate(full=True)
        times, clock = (
            np.asarray(column.to_numpy(zero_copy_only=False), np.int64) for column in batch.columns
        )
        apart = int(times[0]) - int(clock[0])
        self._apart = apart if self._apart is None else self._apart
        if abs(apart - self._apart) > _SLACK_NS // 2:
            raise ValueError("its clock was set")
        return _Batch(place, int(times.min()), int(times.max()))


def _opening(head: bytes) -> tuple[bytes, int, bytes]:
    """Return the schema's message, and place and bytes of the first batch that holds samples."""
    source = pa.BufferReader(head)
    reader = pa.ipc.MessageReader.open_stream(source)
    reader.read_next_message()
    schema = head[: source.tell()]
    options = pa.ipc.IpcReadOptions(use_threads=False)
    while True:
        begin = source.tell()
        message = reader.read_next_message()
        if message.type != "record batch":
            raise ValueError("it holds something else than samples")
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
