"""Read a segment's Arrow stream batch by batch, as far as it is whole."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..files import open_regular
from ..metric_table import METRICS
from ..sample import Columns, Provenance, SampleTable, SegmentState
from .segment_files import CLOSED
from .stream_part import read_part, read_whole

#: Of the columns and of the metadata; a stream of another version is unreadable.
FORMAT_VERSION = "1"

_Numbers = NDArray[np.int64]
_State = Literal["closed", "open", "torn", "unreadable"]

#: So many batches, one after the other, are read without probing some of them.
_STRIDE = 8


def metadata_of(provenance: Provenance) -> dict[str, str]:
    """Return a segment's schema metadata: provenance, and the metrics of a row's list by kind of device."""
    metrics = json.dumps(provenance.metrics)
    return {"version": FORMAT_VERSION, "metrics": metrics, **provenance.to_metadata()}


def read_stream(
    path: Path,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    metrics: Collection[str] | None = None,
) -> SampleTable:
    """Read the samples of one stream; see :func:`segments.read_segment`.

    Raises
    ------
    OSError
        The file can't be opened.
    """
    with open_regular(path, follow=True) as file:
        part = read_part(file.fileno(), since_ns, until_ns)
        if part is not None:
            table = _table(path, pa.py_buffer(part), None, None, metrics)
            # A damaged stream is judged as a whole.
            if table.segments[0].state in ("open", "closed"):
                return table
        content = read_whole(file.fileno())
    if content is None:
        return SampleTable(columns={}, segments=(SegmentState(path.name, "unreadable"),))
    data = pa.py_buffer(content)
    return _table(path, data, since_ns, until_ns, metrics)


def _table(
    path: Path,
    data: pa.Buffer,
    since_ns: int | None,
    until_ns: int | None,
    metrics: Collection[str] | None,
) -> SampleTable:
    """Return the samples of a stream's bytes."""
    state = SegmentState(path.name, "unreadable")
    try:
        with pa.ipc.open_stream(pa.BufferReader(data)) as stream:
            schema = stream.schema
        given = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
        provenance = Provenance.from_metadata(given)
        rows = _Rows(schema, given, provenance, metrics)
        found, ending = _messages(data, since_ns, until_ns)
        table = rows.table(found)
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError):
        return SampleTable(columns={}, segments=(state,))
    if ending == "unreadable":
        return SampleTable(columns={}, segments=(state,))
    if ending == "open" and path.name.endswith(CLOSED) and _ended(data):
        ending = "closed"
    described = SegmentState(
        path.name,
        ending,
        table.rows,
        provenance.node,
        provenance.recorder,
        provenance.source,
        provenance.interval,
        table.last_ns,
        provenance.devices,
    )
    return replace(table, segments=(described,))


class _Rows:
    """Decoder of a segment's rows, whose values are lists, into columns."""

    def __init__(
        self,
        schema: pa.Schema,
        given: Mapping[str, str],
        provenance: Provenance,
        wanted: Collection[str] | None,
    ) -> None:
        if given.get("version") != FORMAT_VERSION:
            raise ValueError("it is of another version")
        metrics = json.loads(given.get("metrics", "{}"))
        if schema.names != ["time_ns", "monotonic_ns", "device", "values"] or not isinstance(metrics, dict):
            raise ValueError("it has other columns")
        self._metrics = {kind: [str(name) for name in metrics.get(kind, [])] for kind in METRICS}
        self._provenance = provenance
        self._wanted = wanted

    def table(self, batches: Sequence[pa.RecordBatch]) -> SampleTable:
        """Return the table of some batches."""
        # Together: a batch holds so few samples that handling each costs more than they do.
        joined = pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []
        parts = [_parts(batch) for batch in joined] or [_parts(None)]
        time_ns, monotonic_ns, owners, lengths, values = (
            np.concatenate([part[i] for part in parts]) for i in range(5)
        )
        starts = np.cumsum(lengths) - lengths
        columns: dict[str, Columns] = {}
        for place, device in enumerate(self._provenance.devices):
            names = self._metrics[device.kind]
            rows = np.flatnonzero((owners == place) & (lengths == len(names)))
            block = values[starts[rows][:, None] + np.arange(len(names))].T
            columns[device.uuid] = self._columns(device.kind, time_ns[rows], monotonic_ns[rows], names, block)
        origin = self._provenance
        return SampleTable(origin.devices, columns, origin.source, origin.interval)

    def _columns(
        self,
        kind: str,
        time_ns: _Numbers,
        monotonic_ns: _Numbers,
        names: Sequence[str],
        block: NDArray[np.float64],
    ) -> Columns:
        columns: Columns = {"time_ns": time_ns, "monotonic_ns": monotonic_ns}
        held = dict(zip(names, block, strict=True))
        for metric in dict.fromkeys((*METRICS[kind], *names)):
            if self._wanted is not None and metric not in self._wanted:
                continue
            known = held.get(metric)
            columns[metric] = (
                np.full(len(time_ns), np.nan) if known is None else np.ascontiguousarray(known, np.float64)
            )
        return columns


def _parts(batch: pa.RecordBatch | None) -> tuple[NDArray[Any], ...]:
    """Return times, monotonic times, devices, lengths of the lists, and their values, NaN for null."""
    if batch is None:
        whole = np.zeros(0, np.int64)
        return whole, whole, whole, whole, np.zeros(0)
    time_ns, monotonic_ns, owners, lists = batch.columns
    values = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    lengths = np.diff(lists.offsets.to_numpy(zero_copy_only=False).astype(np.int64))
    numbers = (column.to_numpy(zero_copy_only=False).astype(np.int64) for column in (time_ns, monotonic_ns))
    return (*numbers, owners.to_numpy(zero_copy_only=False).astype(np.int64), lengths, values)


class _Messages:
    """The record batches of a stream, by their places; `schema` is its first message, of `head` bytes."""

    def __init__(self, data: pa.Buffer) -> None:
        self._data = data
        self._head = 0
        #: Where each message begins, and where the last one ends.
        self._edges: list[int] = []
        #: How the stream ends after them.
        self.ending: _State = "open"
        source = pa.BufferReader(data)
        try:
            reader = pa.ipc.MessageReader.open_stream(source)
            reader.read_next_message()
            self._head = source.tell()
            self._edges.append(self._head)
            self._edges.extend(source.tell() for _ in _each(reader))
            if source.tell() < data.size:
                # Zeros after a crash of the machine look like the end mark, but don't end the file.
                self.ending = "torn"
        except (pa.ArrowException, OSError, ValueError):
            self.ending = "torn"

    def __len__(self) -> int:
        return max(0, len(self._edges) - 1)

    def read(self, places: Sequence[int], fields: Sequence[int] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the batches at some places, in their order; `fields` are the columns that are wanted."""
        with self._open(places, fields) as stream:
            for batch in stream:
                # In full: a list that reaches beyond its values would be read from anywhere.
                batch.validate(full=True)
                yield batch

    def read_all(self, places: Sequence[int]) -> list[pa.RecordBatch]:
        """Return the same at once, while other threads run; all or none."""
        with self._open(places, None) as stream:
            table = stream.read_all()
        table.validate(full=True)
        batches: list[pa.RecordBatch] = table.to_batches()
        return batches

    def _open(self, places: Sequence[int], fields: Sequence[int] | None) -> Any:
        pieces = [self._data.slice(0, self._head)]
        for begin, end in _runs(places):
            pieces.append(self._data.slice(self._edges[begin], self._edges[end] - self._edges[begin]))
        # A batch is small: threads would wait for one another longer than they work.
        options = pa.ipc.IpcReadOptions(
            use_threads=False, included_fields=None if fields is None else [*fields]
        )
        return pa.ipc.open_stream(pa.py_buffer(b"".join(pieces)), options=options)


def _messages(
    data: pa.Buffer, since_ns: int | None, until_ns: int | None
) -> tuple[list[pa.RecordBatch], _State]:
    """Return the batches that may hold something of a time range, and how the stream ends."""
    messages = _Messages(data)
    if not messages:
        return [], "unreadable"
    ending, batches = messages.ending, list[pa.RecordBatch]()
    try:
        places = list(_chosen(messages, since_ns, until_ns))
    except (pa.ArrowException, OSError, ValueError, MemoryError):
        places = list(range(len(messages)))
    with suppress(pa.ArrowException, OSError, ValueError, MemoryError):
        return messages.read_all(places), ending
    try:
        # One at a time: those before one that is damaged count.
        batches.extend(messages.read(places))
    except (pa.ArrowException, OSError, ValueError, MemoryError):
        ending = "torn" if batches else "unreadable"
    return batches, ending


def _each(reader: Any) -> Iterator[None]:
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type != "record batch":
            raise ValueError("it holds something else than samples")
        yield


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield places as ranges, their ends excluded."""
    begin = 0
    for n in range(1, len(places) + 1):
        if n == len(places) or places[n] != places[n - 1] + 1:
            yield places[begin], places[n - 1] + 1
            begin = n


def _chosen(messages: _Messages, since_ns: int | None, until_ns: int | None) -> Iterator[int]:
    """Yield places of batches to read: all, or without those between two both before or both after.

    A range in which the time goes back is read.
    """
    if (since_ns is None and until_ns is None) or len(messages) <= _STRIDE:
        yield from range(len(messages))
        return
    first = -(2**63) if since_ns is None else since_ns
    last = 2**63 - 1 if until_ns is None else until_ns
    spans: dict[int, tuple[int, int] | None] = {}

    def span(place: int) -> tuple[int, int] | None:
        if place not in spans:
            spans[place] = _span(next(messages.read([place], [0])))
        return spans[place]

    # The parts that are still to be looked at, the earliest on top.
    parts = [(0, len(messages) - 1)]
    while parts:
        begin, end = parts.pop()
        low, high = span(begin), span(end)
        if low and high and low[0] <= high[1] and (high[1] < first or low[0] > last):
            continue
        if end - begin <= _STRIDE:
            yield from range(begin, end + 1)
        else:
            middle = (begin + end) // 2
            parts += [(middle + 1, end), (begin, middle)]


def _span(batch: pa.RecordBatch) -> tuple[int, int] | None:
    times = batch.column(0).to_numpy(zero_copy_only=False)
    return (int(times.min()), int(times.max())) if len(times) else None


def _ended(data: pa.Buffer) -> bool:
    """Return whether the stream's end mark is there."""
    return bytes(data.slice(max(0, data.size - 8)).to_pybytes()) == b"\xff\xff\xff\xff\0\0\0\0"
