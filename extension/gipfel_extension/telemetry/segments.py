"""Segments: the append-only Arrow IPC streams in a run folder's ``telemetry`` that are the truth of a run.

One process writes a segment once; nobody appends to another's. What was flushed reads back whatever became of
the writer, because a stream cut anywhere is whole up to its last full record batch.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from .sample import METRICS, Columns, Device, Sample, SampleTable, SegmentState

FORMAT_VERSION = "1"
SUFFIX = ".arrows"
CLOSED = ".closed.arrows"

#: Clocks of file server and node may differ by this much before a segment is left out for its age.
_SKEW_SECONDS = 60.0


@dataclass(frozen=True)
class Provenance:
    """Where the samples of a segment come from; travels in its schema's metadata."""

    node: str
    recorder: str
    source: str
    simulated: bool
    interval: float
    devices: tuple[Device, ...]


class SegmentWriter:
    """One segment while it is written.

    Parameters
    ----------
    folder
        The run folder's ``telemetry``, which must be there.
    start_ns
        UTC time for the file's name.

    Raises
    ------
    OSError
        The file can't be made or written; the segment is then torn, and a new one must be begun.
    """

    def __init__(self, folder: Path, provenance: Provenance, *, start_ns: int) -> None:
        self._kinds = {device.uuid: device.kind for device in provenance.devices}
        self._uuids = [device.uuid for device in provenance.devices]
        kinds = [kind for kind in METRICS if kind in self._kinds.values()]
        self._metrics = [metric for kind in kinds for metric in METRICS[kind]]
        self.path, handle = _create(folder, provenance, start_ns)
        # Unbuffered: what write_batch has written is the kernel's, and outlives this process.
        self._file = os.fdopen(handle, "wb", buffering=0)
        self._schema = _schema(self._metrics, provenance)
        self._stream = pa.ipc.new_stream(self._file, self._schema)
        # Readers learn the devices before the first sample.
        self._stream.write_batch(self._batch([]))

    def write(self, samples: list[Sample]) -> None:
        """Append one record batch; samples of devices that the segment doesn't name are left out."""
        known = [sample for sample in samples if sample.device in self._kinds]
        if known:
            self._stream.write_batch(self._batch(known))

    def close(self) -> Path:
        """Write the end mark and put ``.closed`` into the name, which is returned."""
        self._stream.close()
        os.fsync(self._file.fileno())
        self._file.close()
        closed = self.path.with_name(self.path.name.removesuffix(SUFFIX) + CLOSED)
        self.path.rename(closed)
        return closed

    def abandon(self) -> None:
        """Let go of the file as it is, after an error."""
        self._file.close()

    def _batch(self, samples: list[Sample]) -> pa.RecordBatch:
        indices = pa.array([self._uuids.index(sample.device) for sample in samples], pa.int16())
        columns = [
            pa.array([sample.time_ns for sample in samples], pa.int64()),
            pa.array([sample.monotonic_ns for sample in samples], pa.int64()),
            pa.DictionaryArray.from_arrays(indices, pa.array(self._uuids, pa.string())),
            *(pa.array([s.values.get(metric) for s in samples], pa.float64()) for metric in self._metrics),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def read_samples(folder: Path, *, since_ns: int | None = None, simulated: bool | None = None) -> SampleTable:
    """Every sample in a telemetry folder, as far as its segments can be read.

    Parameters
    ----------
    since_ns
        UTC time of the first sample that is wanted; None for all.
    simulated
        True for simulated devices alone, False for real ones alone, None for both.

    Returns
    -------
    SampleTable
        Empty where the folder is missing or holds no segment; its ``segments`` say what was open or torn.
    """
    parts = [read_segment(path) for path in _listing(folder, since_ns)]
    if simulated is not None:
        parts = [_only(part, simulated=simulated) for part in parts]
    table = SampleTable.union(parts)
    return table if since_ns is None else table.since(since_ns)


def read_segment(path: Path) -> SampleTable:
    """The samples of one segment up to its last whole batch; no error, but a state, where it is damaged.

    Raises
    ------
    OSError
        The file can't be opened.
    """
    data = pa.py_buffer(_content(path))
    batches, state = _batches(data, path)
    if not batches:
        return SampleTable(columns={}, segments=(state,))
    provenance = _provenance(batches[0].schema)
    table = _table(pa.Table.from_batches(batches), provenance)
    described = replace(
        state,
        rows=table.rows,
        node=provenance.node,
        recorder=provenance.recorder,
        source=provenance.source,
        interval=provenance.interval,
        last_ns=table.last_ns,
        devices=provenance.devices,
    )
    return replace(table, segments=(described,))


def write_parquet(table: SampleTable, path: Path) -> None:
    """A table as one Parquet file, which :func:`read_parquet` and replay read."""
    import pyarrow.parquet  # noqa: PLC0415 - slow to import, and no part of recording

    provenance = Provenance("", "", table.source, table.simulated, table.interval, table.devices)
    rows = []
    for device in table.devices:
        columns = table.of(device.uuid)
        length = len(columns["time_ns"])
        rows.append(
            pa.table(
                {
                    "device": [device.uuid] * length,
                    **{n: pa.array(c, from_pandas=True) for n, c in columns.items()},
                }
            )
        )
    whole = pa.concat_tables(rows, promote_options="default").replace_schema_metadata(_metadata(provenance))
    pyarrow.parquet.write_table(whole, path, compression="zstd")


def read_parquet(path: Path) -> SampleTable:
    """The table of :func:`write_parquet`.

    Raises
    ------
    ValueError
        No Parquet, or not of ours.
    """
    import pyarrow.parquet  # noqa: PLC0415 - slow to import, and no part of recording

    content = pyarrow.parquet.read_table(path)
    if content.schema.metadata is None or b"devices" not in content.schema.metadata:
        raise ValueError("it names no devices")
    return _table(content, _provenance(content.schema))


def _create(folder: Path, provenance: Provenance, start_ns: int) -> tuple[Path, int]:
    node = "".join(c if c.isalnum() or c in "._-" else "_" for c in provenance.node) or "node"
    prefix = "" if provenance.recorder == "job" else f"{provenance.recorder}-"
    number = 0
    while True:
        path = folder / f"{prefix}{node}-{start_ns}-{number}{SUFFIX}"
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            number += 1


def _schema(metrics: list[str], provenance: Provenance) -> pa.Schema:
    fields = [
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("monotonic_ns", pa.int64(), nullable=False),
        pa.field("device", pa.dictionary(pa.int16(), pa.string()), nullable=False),
        *(pa.field(metric, pa.float64()) for metric in metrics),
    ]
    return pa.schema(fields, metadata=_metadata(provenance))


def _metadata(provenance: Provenance) -> dict[str, str]:
    return {
        "version": FORMAT_VERSION,
        "node": provenance.node,
        "recorder": provenance.recorder,
        "source": provenance.source,
        "simulated": "true" if provenance.simulated else "false",
        "interval": repr(provenance.interval),
        "devices": json.dumps([device.to_json() for device in provenance.devices]),
    }


def _provenance(schema: pa.Schema) -> Provenance:
    given = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    devices = tuple(Device.from_json(device) for device in json.loads(given.get("devices", "[]")))
    return Provenance(
        given.get("node", ""),
        given.get("recorder", ""),
        given.get("source", ""),
        given.get("simulated") == "true",
        float(given.get("interval", 0.0)),
        devices,
    )


def _listing(folder: Path, since_ns: int | None) -> Iterator[Path]:
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            written = path.stat().st_mtime
        except FileNotFoundError:
            # It was closed, and so renamed, since the listing.
            path = path.with_name(path.name.removesuffix(SUFFIX) + CLOSED)  # noqa: PLW2901
            written = path.stat().st_mtime
        if since_ns is None or written + _SKEW_SECONDS >= since_ns / 1e9:
            yield path


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return path.with_name(path.name.removesuffix(SUFFIX) + CLOSED).read_bytes()


def _batches(data: pa.Buffer, path: Path) -> tuple[list[pa.RecordBatch], SegmentState]:
    batches: list[pa.RecordBatch] = []
    reader = pa.BufferReader(data)
    state: Literal["closed", "open", "torn", "unreadable"] = "open"
    try:
        with pa.ipc.open_stream(reader) as stream:
            for batch in stream:
                batch.validate()
                batches.append(batch)
            if reader.tell() < data.size:
                # Zeros after a crash of the machine look like the end mark, but are no end of the file.
                state = "torn"
            elif path.name.endswith(CLOSED):
                state = "closed"
    except (pa.ArrowException, OSError, ValueError):
        state = "torn" if batches else "unreadable"
    return batches, SegmentState(path.name, state)


def _table(content: pa.Table, provenance: Provenance) -> SampleTable:
    names = content.column("device").combine_chunks()
    names = names.dictionary_decode() if pa.types.is_dictionary(names.type) else names
    owners = np.asarray(names.to_numpy(zero_copy_only=False), object)
    columns: dict[str, Columns] = {}
    for device in provenance.devices:
        chosen = np.flatnonzero(owners == device.uuid)
        columns[device.uuid] = {
            "time_ns": _numbers(content, "time_ns", np.int64)[chosen],
            "monotonic_ns": _numbers(content, "monotonic_ns", np.int64)[chosen],
        }
        for metric in METRICS[device.kind]:
            columns[device.uuid][metric] = _numbers(content, metric, np.float64)[chosen]
    return SampleTable(provenance.devices, columns, provenance.source, provenance.interval)


def _numbers(content: pa.Table, name: str, kind: Any) -> Any:
    if name not in content.column_names:
        return np.full(content.num_rows, np.nan)
    return content.column(name).to_numpy().astype(kind)


def _only(table: SampleTable, *, simulated: bool) -> SampleTable:
    kept = tuple(device for device in table.devices if device.simulated is simulated)
    return replace(table, devices=kept, columns={device.uuid: table.of(device.uuid) for device in kept})
