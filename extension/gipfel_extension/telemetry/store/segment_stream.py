"""Reading of a segment's Arrow stream batch by batch, up to the last complete batch."""

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

#: Version of columns and metadata; a stream of another version is unreadable.
FORMAT_VERSION = "1"

_State = Literal["closed", "open", "torn", "unreadable"]

#: Up to this many consecutive batches are read without probing some of them first.
_STRIDE = 8


def metadata_of(provenance: Provenance) -> dict[str, str]:
    """Return a segment's schema metadata: provenance, and the metrics in a row's list by kind of device."""
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
        The file cannot be opened.
    """
    with open_regular(path, follow=True) as file:
        part = read_part(file.fileno(), since_ns, until_ns)
        if part is not None:
            table = _table(path, pa.py_buffer(part), None, None, metrics)
            # To tell the state of a damaged stream, the whole stream must be read.
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
        metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
        provenance = Provenance.from_metadata(metadata)
        batches, ending = _read_batches(data, since_ns, until_ns)
        table = _decode(batches, _metrics_of(schema, metadata), provenance, metrics)
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError):
        return SampleTable(columns={}, segments=(state,))
    if ending == "unreadable":
        return SampleTable(columns={}, segments=(state,))
    if ending == "open" and path.name.endswith(CLOSED) and _ended(data):
        ending = "closed"
    described = SegmentState(path.name, ending, table.rows, table.last_ns, provenance)
    return replace(table, segments=(described,))


def _metrics_of(schema: pa.Schema, metadata: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the metrics in a row's list by kind of device."""
    if metadata.get("version") != FORMAT_VERSION:
        raise ValueError("its format version is not supported")
    metrics = json.loads(metadata.get("metrics", "{}"))
    if schema.names != ["time_ns", "monotonic_ns", "device", "values"] or not isinstance(metrics, dict):
        raise ValueError("its columns are not those of a segment")
    return {kind: [str(name) for name in metrics.get(kind, [])] for kind in METRICS}


def _decode(
    batches: Sequence[pa.RecordBatch],
    metrics: Mapping[str, Sequence[str]],
    provenance: Provenance,
    selected: Collection[str] | None,
) -> SampleTable:
    """Return the samples of some batches, whose values are lists, as columns."""
    # Combine the batches first: each holds so few samples that its overhead dominates.
    joined = pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []
    parts = [_parts(batch) for batch in joined] or [_parts(None)]
    time_ns, monotonic_ns, device_indices, lengths, values = (
        np.concatenate([part[i] for part in parts]) for i in range(5)
    )
    starts = np.cumsum(lengths) - lengths
    columns: dict[str, Columns] = {}
    for index, device in enumerate(provenance.devices):
        names = metrics[device.kind]
        rows = np.flatnonzero((device_indices == index) & (lengths == len(names)))
        block = values[starts[rows][:, None] + np.arange(len(names))].T
        known = {name: np.ascontiguousarray(own) for name, own in zip(names, block, strict=True)}
        missing = dict.fromkeys(METRICS[device.kind], np.full(len(rows), np.nan))
        columns[device.uuid] = {"time_ns": time_ns[rows], "monotonic_ns": monotonic_ns[rows]} | {
            name: own for name, own in (missing | known).items() if selected is None or name in selected
        }
    return SampleTable(provenance.devices, columns, provenance.source, provenance.interval)


def _parts(batch: pa.RecordBatch | None) -> tuple[NDArray[Any], ...]:
    """Return times, monotonic times, device indices, list lengths and the lists' values, NaN for null."""
    if batch is None:
        empty = np.zeros(0, np.int64)
        return empty, empty, empty, empty, np.zeros(0)
    time_ns, monotonic_ns, device_indices, lists = batch.columns
    values = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    lengths = np.diff(lists.offsets.to_numpy(zero_copy_only=False).astype(np.int64))
    numbers = (column.to_numpy(zero_copy_only=False).astype(np.int64) for column in (time_ns, monotonic_ns))
    return (*numbers, device_indices.to_numpy(zero_copy_only=False).astype(np.int64), lengths, values)


class _Messages:
    """The record batches of a stream by index; the stream's first message is the schema."""

    def __init__(self, data: pa.Buffer) -> None:
        self._data = data
        self._head = 0
        #: Offsets at which each message starts and the last one ends.
        self._edges: list[int] = []
        #: State of the stream's end.
        self.ending: _State = "open"
        source = pa.BufferReader(data)
        try:
            reader = pa.ipc.MessageReader.open_stream(source)
            reader.read_next_message()
            self._head = source.tell()
            self._edges.append(self._head)
            for message in reader:
                if message.type != "record batch":
                    self.ending = "torn"
                    break
                self._edges.append(source.tell())
            if source.tell() < data.size:
                # Zeros that a machine crash left look like the end mark but are not at the file's end.
                self.ending = "torn"
        except (pa.ArrowException, OSError, ValueError):
            self.ending = "torn"

    def __len__(self) -> int:
        return max(0, len(self._edges) - 1)

    def read(self, indices: Sequence[int], fields: Sequence[int] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the batches at some indices in order; `fields` are the columns to read."""
        with self._open(indices, fields) as stream:
            for batch in stream:
                # Full validation: a list whose offsets exceed its values would read arbitrary memory.
                batch.validate(full=True)
                yield batch

    def read_all(self, indices: Sequence[int]) -> list[pa.RecordBatch]:
        """Return the batches at some indices, read without the interpreter lock; raise if any is damaged."""
        with self._open(indices, None) as stream:
            table = stream.read_all()
        table.validate(full=True)
        batches: list[pa.RecordBatch] = table.to_batches()
        return batches

    def _open(self, indices: Sequence[int], fields: Sequence[int] | None) -> Any:
        pieces = [self._data.slice(0, self._head)]
        for begin, end in _runs(indices):
            pieces.append(self._data.slice(self._edges[begin], self._edges[end] - self._edges[begin]))
        # Batches are small: threads would wait for each other longer than they work.
        options = pa.ipc.IpcReadOptions(
            use_threads=False, included_fields=None if fields is None else [*fields]
        )
        return pa.ipc.open_stream(pa.py_buffer(b"".join(pieces)), options=options)


def _read_batches(
    data: pa.Buffer, since_ns: int | None, until_ns: int | None
) -> tuple[list[pa.RecordBatch], _State]:
    """Return the batches that may overlap a time range, and the state of the stream's end."""
    messages = _Messages(data)
    if not messages:
        return [], "unreadable"
    ending, batches = messages.ending, list[pa.RecordBatch]()
    try:
        indices = list(_overlapping(messages, since_ns, until_ns))
    except (pa.ArrowException, OSError, ValueError, MemoryError):
        indices = list(range(len(messages)))
    with suppress(pa.ArrowException, OSError, ValueError, MemoryError):
        return messages.read_all(indices), ending
    try:
        # One at a time: keep the batches before a damaged one.
        batches.extend(messages.read(indices))
    except (pa.ArrowException, OSError, ValueError, MemoryError):
        ending = "torn" if batches else "unreadable"
    return batches, ending


def _runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive indices as half-open ranges."""
    begin = 0
    for n in range(1, len(indices) + 1):
        if n == len(indices) or indices[n] != indices[n - 1] + 1:
            yield indices[begin], indices[n - 1] + 1
            begin = n


def _overlapping(messages: _Messages, since_ns: int | None, until_ns: int | None) -> Iterator[int]:
    """Yield the indices of batches that may overlap a time range, found by bisection.

    Batches between two that are both before or both after the range are skipped, unless time goes backwards
    between them.
    """
    if (since_ns is None and until_ns is None) or len(messages) <= _STRIDE:
        yield from range(len(messages))
        return
    first = -(2**63) if since_ns is None else since_ns
    last = 2**63 - 1 if until_ns is None else until_ns
    time_ranges: dict[int, tuple[int, int] | None] = {}

    def time_range(index: int) -> tuple[int, int] | None:
        if index not in time_ranges:
            time_ranges[index] = _time_range(next(messages.read([index], [0])))
        return time_ranges[index]

    # A stack of the ranges of indices to search, the earliest on top.
    parts = [(0, len(messages) - 1)]
    while parts:
        begin, end = parts.pop()
        low, high = time_range(begin), time_range(end)
        if low and high and low[0] <= high[1] and (high[1] < first or low[0] > last):
            continue
        if end - begin <= _STRIDE:
            yield from range(begin, end + 1)
        else:
            middle = (begin + end) // 2
            parts += [(middle + 1, end), (begin, middle)]


def _time_range(batch: pa.RecordBatch) -> tuple[int, int] | None:
    times = batch.column(0).to_numpy(zero_copy_only=False)
    return (int(times.min()), int(times.max())) if len(times) else None


def _ended(data: pa.Buffer) -> bool:
    """Return whether the stream has its end mark."""
    return bytes(data.slice(max(0, data.size - 8)).to_pybytes()) == b"\xff\xff\xff\xff\0\0\0\0"
