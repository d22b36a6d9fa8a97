"""Write and read segments: append-only Arrow IPC streams in a run folder's ``telemetry``, the run's truth.

One process writes a segment once and no other appends to it. What was flushed reads back even if the writer
was killed, because a stream cut anywhere is whole up to its last full record batch. Values are kept to 13
significant bits where a sensor is coarser than that: a fraction is then at most 0.00006 off and a rate
0.012 %, and an hour of a GPU takes a fifth of the disk. They are rounded before anything is written, so
that a closed run holds what was read from the live one.
"""

import errno
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..metric_table import unit_of
from ..sample import Provenance, Sample, SampleTable, SegmentState
from .parquet import read_parquet, write_parquet
from .segment_files import CLOSED, PARQUET, SUFFIX, SegmentFile, current_path, segment_begin, segment_files
from .segment_stream import metadata_of, read_stream
from .summaries import LEVELS, SummaryWriter

__all__ = [
    "CLOSED",
    "PARQUET",
    "SUFFIX",
    "Provenance",
    "SegmentWriter",
    "read_parquet",
    "read_samples",
    "read_segment",
    "write_parquet",
]

#: Units of what is estimated, not counted. Sizes, counters and masks are kept as they are.
_ESTIMATED = frozenset({"1", "B/s", "1/s", "W", "cores"})
#: Of the 52 bits after the leading one, those that are dropped.
_DROPPED_BITS = 40

_SCHEMA = [
    pa.field("time_ns", pa.int64(), nullable=False),
    pa.field("monotonic_ns", pa.int64(), nullable=False),
    pa.field("device", pa.int16(), nullable=False),
    pa.field("values", pa.list_(pa.float64()), nullable=False),
]

#: Files that are read at a time: a shared file system answers many as fast as one.
_READERS = 4
#: Streams that are: each needs the interpreter for half of its time.
_STREAM_READERS = 2
#: So few are read one after the other.
_FEW = 4
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


class SegmentWriter:
    """One segment while it is written, and its summaries.

    A column per metric would cost more bytes in each batch than its few samples: a row holds its device's
    values as one list, in the order that the schema's metadata names.

    Parameters
    ----------
    folder
        The run folder's ``telemetry``, which must be there.
    start_ns
        UTC time for the file's name.
    summaries
        Whether there are summaries beside it.

    Raises
    ------
    OSError
        The file can't be made or written; the segment is then torn, and a new one must be begun.
    """

    def __init__(
        self, folder: Path, provenance: Provenance, *, start_ns: int, summaries: bool = True
    ) -> None:
        self._places = {device.uuid: place for place, device in enumerate(provenance.devices)}
        self._metrics = provenance.metrics
        self._kinds = {device.uuid: device.kind for device in provenance.devices}
        self._rounded = {kind: rounded_metrics(names) for kind, names in self._metrics.items()}
        self._schema = pa.schema(_SCHEMA, metadata=metadata_of(provenance))
        # Made before the file is: a reader finds it empty for as short a time as can be.
        devices = self._batch([])
        self.path, handle = _create(folder, provenance, start_ns)
        self._file = _WholeWrites(handle, self.path)
        try:
            self._stream = pa.ipc.new_stream(self._file, self._schema, options=_OPTIONS)
            # Readers learn the devices before the first sample.
            self._stream.write_batch(devices)
            self._summaries = SummaryWriter(_stem(self.path), provenance, levels=LEVELS if summaries else ())
        except BaseException:
            # A disk that is full would be filled with beginnings.
            self._file.close()
            self.path.unlink(missing_ok=True)
            raise

    def write(self, samples: list[Sample]) -> None:
        """Append one record batch; samples of devices that the segment doesn't name are left out."""
        known = [sample for sample in samples if sample.device in self._places]
        if known:
            self._stream.write_batch(self._batch(known))
            self._summaries.add(known)

    def close(self) -> Path:
        """Write the end mark and put ``.closed`` into the name, which is returned."""
        self._stream.close()
        self._summaries.close()
        self._file.sync()
        self._file.close()
        closed = _stem(self.path).with_name(_stem(self.path).name + CLOSED)
        self.path.rename(closed)
        return closed

    def abandon(self) -> None:
        """Let go of the files as they are, after an error."""
        self._file.close()
        self._summaries.abandon()

    def _batch(self, samples: list[Sample]) -> pa.RecordBatch:
        rows = [self._values(sample) for sample in samples]
        offsets = np.cumsum([0, *map(len, rows)])
        flat = np.concatenate(rows) if rows else np.zeros(0)
        columns = [
            pa.array([sample.time_ns for sample in samples], pa.int64()),
            pa.array([sample.monotonic_ns for sample in samples], pa.int64()),
            pa.array([self._places[sample.device] for sample in samples], pa.int16()),
            pa.ListArray.from_arrays(
                pa.array(offsets, pa.int32()), pa.array(flat, pa.float64(), from_pandas=True)
            ),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _values(self, sample: Sample) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        kind = self._kinds[sample.device]
        given = [sample.values.get(metric) for metric in self._metrics[kind]]
        return round_values(np.array(given, np.float64), self._rounded[kind])


def read_samples(
    folder: Path,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    simulated: bool | None = None,
    metrics: Collection[str] | None = None,
) -> SampleTable:
    """Return every sample in a telemetry folder, as far as its segments can be read.

    Parameters
    ----------
    since_ns, until_ns
        UTC time of the first sample that is wanted and of the last; None for all. Segments of other times are
        not opened.
    simulated
        True for simulated devices alone, False for real ones alone, None for both.
    metrics
        The only ones that are wanted; others may be missing. None for all.

    Returns
    -------
    SampleTable
        Empty where the folder is missing or holds no segment; its ``segments`` say what was open or torn.
    """
    wanted = [file for file in segment_files(folder) if file.within(since_ns, until_ns)]

    def read(file: SegmentFile) -> SampleTable:
        return read_segment(file.path, since_ns=since_ns, until_ns=until_ns, metrics=metrics)

    packed = [file for file in wanted if file.path.name.endswith(PARQUET)]
    streams = [file for file in wanted if not file.path.name.endswith(PARQUET)]
    ready: dict[SegmentFile, SampleTable] = {}
    for files, at_a_time in ((packed, _READERS), (streams, _STREAM_READERS)):
        if len(files) <= _FEW:
            ready |= {file: read(file) for file in files}
            continue
        with ThreadPoolExecutor(at_a_time) as readers:
            ready |= dict(zip(files, readers.map(read, files), strict=True))
    parts = [ready[file] for file in wanted]
    if simulated is not None:
        parts = [_only(part, simulated=simulated) for part in parts]
    table = SampleTable.union(parts, metrics=metrics)
    if until_ns is not None:
        table = _until(table, until_ns)
    return table if since_ns is None else table.since(since_ns)


def read_segment(
    path: Path,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    metrics: Collection[str] | None = None,
) -> SampleTable:
    """Return the samples of one segment up to its last whole batch; a damaged one has a state, no error.

    Parameters
    ----------
    since_ns, until_ns
        What is not from this time on, or until it, may be left out.
    metrics
        The only ones that are wanted; None for all.

    Raises
    ------
    OSError
        The file can't be opened.
    """
    for _ in range(3):
        try:
            return _read(path, since_ns, until_ns, metrics)
        except FileNotFoundError:
            # Closed or made Parquet since the listing, and so renamed.
            path = current_path(path)
    return _read(path, since_ns, until_ns, metrics)


def rounded_metrics(metrics: Sequence[str]) -> NDArray[np.bool_]:
    """Return which of some metrics are rounded."""
    return np.array([unit_of(metric) in _ESTIMATED for metric in metrics], np.bool_)


def round_values(values: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the values, the chosen ones to 13 significant bits; NaN stays NaN.

    Parameters
    ----------
    values
        Along the last axis as long as `chosen`.
    """
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    half = np.int64(1) << (_DROPPED_BITS - 1)
    nearest = ((bits + half) >> _DROPPED_BITS) << _DROPPED_BITS
    keep = ~chosen | ~np.isfinite(values)
    result: NDArray[np.float64] = np.where(keep, bits, nearest).view(np.float64)
    return result


class _WholeWrites:
    """A file in which a write is whole or an error; unbuffered, so that what is written outlives us."""

    def __init__(self, handle: int, path: Path) -> None:
        self._handle: int | None = handle
        self._path = path

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._handle is None

    def write(self, data: bytes) -> int:
        """Write all of it, or raise: half a batch would hide every batch after it."""
        if self._handle is None:
            raise OSError(errno.EBADF, "closed", str(self._path))
        size = memoryview(data).nbytes
        if os.write(self._handle, data) != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        return size

    def flush(self) -> None:
        """Do nothing: nothing waits."""

    def sync(self) -> None:
        """Wait for the disk."""
        if self._handle is not None:
            os.fsync(self._handle)

    def close(self) -> None:
        """Close it; twice is once."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _read(
    path: Path, since_ns: int | None, until_ns: int | None, metrics: Collection[str] | None
) -> SampleTable:
    if path.name.endswith(PARQUET):
        try:
            return read_parquet(path, since_ns=since_ns, until_ns=until_ns, metrics=metrics)
        except (pa.ArrowException, ValueError, MemoryError):
            stream = path.with_name(path.name.removesuffix(PARQUET) + CLOSED)
            if not stream.exists():
                return SampleTable(columns={}, segments=(SegmentState(path.name, "unreadable"),))
            path = stream
    return read_stream(path, since_ns=since_ns, until_ns=until_ns, metrics=metrics)


def _create(folder: Path, provenance: Provenance, start_ns: int) -> tuple[Path, int]:
    begin = segment_begin(provenance.node, provenance.recorder)
    number = 0
    while True:
        path = folder / f"{begin}-{start_ns}-{number}{SUFFIX}"
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            number += 1


def _stem(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(SUFFIX))


def _until(table: SampleTable, until_ns: int) -> SampleTable:
    kept = {}
    for device, columns in (table.columns or {}).items():
        end = int(np.searchsorted(columns["time_ns"], until_ns, side="right"))
        kept[device] = {name: column[:end] for name, column in columns.items()}
    return replace(table, columns=kept)


def _only(table: SampleTable, *, simulated: bool) -> SampleTable:
    kept = tuple(device for device in table.devices if device.simulated is simulated)
    return replace(table, devices=kept, columns={device.uuid: table.of(device.uuid) for device in kept})
