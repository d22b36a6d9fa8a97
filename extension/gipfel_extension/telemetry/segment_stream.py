"""Read a segment's Arrow stream: batch by batch, as far as it is whole, also of former versions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .provenance import Provenance
from .sample import METRICS, Columns, SampleTable, SegmentState
from .segment_files import CLOSED
from .wide_table import table_of_wide

#: 1 had a column per metric, 2 has a list per row.
FORMAT_VERSION = "2"

_Numbers = NDArray[np.int64]
_State = Literal["closed", "open", "torn", "unreadable"]

#: Batches between two that are looked into to find those of a time range.
_STRIDE = 32


def metadata_of(provenance: Provenance) -> dict[str, str]:
    """A segment's schema metadata: provenance, and the metrics of a row's list by kind of device."""
    metrics = json.dumps(provenance.metrics)
    return {"version": FORMAT_VERSION, "metrics": metrics, **provenance.to_metadata()}


def read_stream(path: Path, *, since_ns: int | None = None, until_ns: int | None = None) -> SampleTable:
    """The samples of one stream; see :func:`segments.read_segment`.

    Raises
    ------
    OSError
        The file can't be opened.
    """
    data = pa.py_buffer(path.read_bytes())
    state = SegmentState(path.name, "unreadable")
    try:
        with pa.ipc.open_stream(pa.BufferReader(data)) as stream:
            schema = stream.schema
        given = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
        provenance = Provenance.from_metadata(given)
        if given.get("version") == FORMAT_VERSION:
            rows = _Rows(schema, given, provenance)
            found, ending = _messages(data, schema, since_ns, until_ns)
            table = rows.table(found)
        else:
            batches, ending = _batches(data)
            whole = pa.Table.from_batches(batches, schema)
            table = table_of_wide(whole, provenance)
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
    """Rows of lists, and how they become columns."""

    def __init__(self, schema: pa.Schema, given: Mapping[str, str], provenance: Provenance) -> None:
        metrics = json.loads(given.get("metrics", "{}"))
        if schema.names != ["time_ns", "monotonic_ns", "device", "values"] or not isinstance(metrics, dict):
            raise ValueError("it has other columns")
        self._metrics = {kind: [str(name) for name in metrics.get(kind, [])] for kind in METRICS}
        self._provenance = provenance

    def table(self, batches: Sequence[pa.RecordBatch]) -> SampleTable:
        """The table of some batches."""
        parts = [_parts(batch) for batch in batches] or [_parts(None)]
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

    @staticmethod
    def _columns(
        kind: str,
        time_ns: _Numbers,
        monotonic_ns: _Numbers,
        names: Sequence[str],
        block: NDArray[np.float64],
    ) -> Columns:
        columns: Columns = {"time_ns": time_ns, "monotonic_ns": monotonic_ns}
        held = dict(zip(names, block, strict=True))
        for metric in dict.fromkeys((*METRICS[kind], *names)):
            known = held.get(metric)
            columns[metric] = (
                np.full(len(time_ns), np.nan) if known is None else np.ascontiguousarray(known, np.float64)
            )
        return columns


def _parts(batch: pa.RecordBatch | None) -> tuple[NDArray[Any], ...]:
    """Times, monotonic times, devices, lengths of the lists, and their values, NaN for null."""
    if batch is None:
        whole = np.zeros(0, np.int64)
        return whole, whole, whole, whole, np.zeros(0)
    time_ns, monotonic_ns, owners, lists = batch.columns
    values = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    lengths = np.diff(lists.offsets.to_numpy(zero_copy_only=False).astype(np.int64))
    numbers = (column.to_numpy(zero_copy_only=False).astype(np.int64) for column in (time_ns, monotonic_ns))
    return (*numbers, owners.to_numpy(zero_copy_only=False).astype(np.int64), lengths, values)


def _messages(
    data: pa.Buffer, schema: pa.Schema, since_ns: int | None, until_ns: int | None
) -> tuple[list[pa.RecordBatch], _State]:
    """The batches that may hold something of a time range, and how the stream ends."""
    source = pa.BufferReader(data)
    messages: list[Any] = []
    ending: _State = "open"
    try:
        reader = pa.ipc.MessageReader.open_stream(source)
        reader.read_next_message()  # the schema
        messages.extend(_each(reader))
        if source.tell() < data.size:
            # Zeros after a crash of the machine look like the end mark, but are no end of the file.
            ending = "torn"
    except (pa.ArrowException, OSError, ValueError):
        ending = "torn"
    if not messages:
        return [], "unreadable"
    batches: list[pa.RecordBatch] = []
    try:
        # One at a time: those before one that is damaged count.
        batches.extend(_batch(messages[n], schema) for n in _chosen(messages, schema, since_ns, until_ns))
    except (pa.ArrowException, OSError, ValueError, MemoryError):
        ending = "torn" if batches else "unreadable"
    return batches, ending


def _each(reader: Any) -> Iterator[Any]:
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type != "record batch":
            raise ValueError("it holds something else than samples")
        yield message


def _batch(message: Any, schema: pa.Schema) -> pa.RecordBatch:
    batch = pa.ipc.read_record_batch(message, schema)
    # In full: a list that reaches beyond its values would be read from anywhere.
    batch.validate(full=True)
    return batch


def _chosen(
    messages: Sequence[Any], schema: pa.Schema, since_ns: int | None, until_ns: int | None
) -> Iterator[int]:
    """Places of batches to read: all, or without those between two that are both before or both after.

    A stretch in which the time goes back is read.
    """
    if (since_ns is None and until_ns is None) or len(messages) <= _STRIDE:
        yield from range(len(messages))
        return
    first = -(2**63) if since_ns is None else since_ns
    last = 2**63 - 1 if until_ns is None else until_ns
    marks = [*range(0, len(messages) - 1, _STRIDE), len(messages) - 1]
    spans = [_span(_batch(messages[mark], schema)) for mark in marks]
    for (begin, end), (low, high) in zip(pairwise(marks), pairwise(spans), strict=True):
        if low and high and low[0] <= high[1] and (high[1] < first or low[0] > last):
            continue
        yield from range(begin, end + (end == marks[-1]))


def _span(batch: pa.RecordBatch) -> tuple[int, int] | None:
    times = batch.column(0).to_numpy(zero_copy_only=False)
    return (int(times.min()), int(times.max())) if len(times) else None


def _ended(data: pa.Buffer) -> bool:
    """Whether the stream's end mark is there."""
    return bytes(data.slice(max(0, data.size - 8)).to_pybytes()) == b"\xff\xff\xff\xff\0\0\0\0"


def _batches(data: pa.Buffer) -> tuple[list[pa.RecordBatch], _State]:
    """The batches of version 1, whose devices are a dictionary that comes before them."""
    batches: list[pa.RecordBatch] = []
    reader = pa.BufferReader(data)
    state: _State = "open"
    try:
        with pa.ipc.open_stream(reader) as stream:
            for batch in stream:
                batch.validate(full=True)
                batches.append(batch)
            if reader.tell() < data.size:
                state = "torn"
    except (pa.ArrowException, OSError, ValueError):
        state = "torn" if batches else "unreadable"
    return batches, state if batches else "unreadable"
