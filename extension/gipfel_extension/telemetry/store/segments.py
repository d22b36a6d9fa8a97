"""Writing and reading of segments: append-only Arrow IPC streams in a run folder's ``telemetry``.

A segment is written by one process, and no other process appends to it. Flushed samples are readable even if
the writer was killed, because a truncated stream is intact up to its last complete record batch. Values whose
sensors are coarser are rounded to 13 significant bits: a fraction is then at most 0.00006 off and a rate
0.012 %, and an hour of a GPU takes a fifth of the space. Intermediate results of the score are rounded to 12
bits, an error of at most 0.012 of 100 points. The difference of wall clock and monotonic clock is rounded to
microseconds, because the clocks are read one after the other. All values are rounded before they are written,
so that a run has the same values while it is live and after it was closed.
"""

import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..metric_table import SCORE_PARTS, unit_of
from ..sample import Provenance, Sample, SampleTable, SegmentState
from .parquet import read_parquet, write_parquet
from .segment_files import CLOSED, PARQUET, SUFFIX, SegmentFile, current_path, segment_files, segment_prefix
from .segment_stream import metadata_of, read_stream
from .summaries import LEVELS, SummaryWriter, WholeWrites

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

#: Units of estimated values, which are rounded. Sizes, counters and masks are exact.
_ESTIMATED = frozenset({"1", "B/s", "1/s", "W", "cores"})
#: Numbers of mantissa bits, out of 52, that are dropped from metrics and from parts of the score.
_DROPPED_BITS, _DROPPED_BITS_OF_PARTS = 40, 41

_SCHEMA = [
    pa.field("time_ns", pa.int64(), nullable=False),
    pa.field("monotonic_ns", pa.int64(), nullable=False),
    pa.field("device", pa.int16(), nullable=False),
    pa.field("values", pa.list_(pa.float64()), nullable=False),
]

#: Number of Parquet files read in parallel: a shared file system answers many requests as fast as one.
_READERS = 4
#: Number of streams read in parallel: each needs the interpreter lock for half of its time.
_STREAM_READERS = 2
#: Up to this many files are read sequentially.
_FEW = 4
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


class SegmentWriter:
    """Writer of one segment and of its summaries.

    A row holds its device's values as one list, in the order of the schema's metadata: in batches of a few
    samples, a column per metric would need more bytes than the values.

    Parameters
    ----------
    folder
        The run folder's ``telemetry``, which must exist.
    start_ns
        UTC time for the file's name.
    summaries
        True to write summaries too.

    Raises
    ------
    OSError
        The file cannot be created or written; the segment is then torn, and a new one is needed.
    """

    def __init__(
        self, folder: Path, provenance: Provenance, *, start_ns: int, summaries: bool = True
    ) -> None:
        self._device_index = {device.uuid: index for index, device in enumerate(provenance.devices)}
        self._metrics = provenance.metrics
        self._kinds = {device.uuid: device.kind for device in provenance.devices}
        self._dropped = {kind: dropped_bits(names) for kind, names in self._metrics.items()}
        self._schema = pa.schema(_SCHEMA, metadata=metadata_of(provenance))
        # Created before the file, so that the file is empty for as short a time as possible.
        devices = self._batch([])
        self.path, handle = _create(folder, provenance, start_ns)
        self._file = WholeWrites(handle, "wb")
        try:
            self._stream = pa.ipc.new_stream(self._file, self._schema, options=_OPTIONS)
            # Readers learn the devices before the first sample.
            self._stream.write_batch(devices)
            self._summaries = SummaryWriter(_stem(self.path), provenance, levels=LEVELS if summaries else ())
        except BaseException:
            # Otherwise retries on a full disk would leave many empty files.
            self._file.close()
            self.path.unlink(missing_ok=True)
            raise

    def write(self, samples: list[Sample]) -> None:
        """Append one record batch; samples of unknown devices are dropped."""
        known = [sample for sample in samples if sample.device in self._device_index]
        if known:
            self._stream.write_batch(self._batch(known))
            self._summaries.add(known)

    def close(self) -> Path:
        """Write the end mark, add ``.closed`` to the name, and return the new path."""
        self._stream.close()
        self._summaries.close()
        os.fsync(self._file.fileno())
        self._file.close()
        closed = _stem(self.path).with_name(_stem(self.path).name + CLOSED)
        self.path.rename(closed)
        return closed

    def abandon(self) -> None:
        """Close the files without completing them, after an error."""
        self._file.close()
        self._summaries.abandon()

    def _batch(self, samples: list[Sample]) -> pa.RecordBatch:
        rows = [self._values(sample) for sample in samples]
        offsets = np.cumsum([0, *map(len, rows)])
        flat = np.concatenate(rows) if rows else np.zeros(0)
        columns = [
            pa.array([sample.time_ns for sample in samples], pa.int64()),
            pa.array([s.time_ns - round(s.time_ns - s.monotonic_ns, -3) for s in samples], pa.int64()),
            pa.array([self._device_index[sample.device] for sample in samples], pa.int16()),
            pa.ListArray.from_arrays(
                pa.array(offsets, pa.int32()), pa.array(flat, pa.float64(), from_pandas=True)
            ),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _values(self, sample: Sample) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        kind = self._kinds[sample.device]
        values = [sample.values.get(metric) for metric in self._metrics[kind]]
        return round_values(np.array(values, np.float64), self._dropped[kind])


def read_samples(
    folder: Path,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    simulated: bool | None = None,
    metrics: Collection[str] | None = None,
) -> SampleTable:
    """Return every readable sample in a telemetry directory.

    Parameters
    ----------
    since_ns, until_ns
        UTC time range, both ends included; None for all. Segments outside it are not opened.
    simulated
        True for simulated devices only, False for real ones only, None for both.
    metrics
        Metrics to read; others may be missing. None for all.

    Returns
    -------
    SampleTable
        Empty where the directory is missing or has no segment; ``segments`` has the state of each file.
    """
    selected = [file for file in segment_files(folder) if file.overlaps(since_ns, until_ns)]

    def read(file: SegmentFile) -> SampleTable:
        return read_segment(file.path, since_ns=since_ns, until_ns=until_ns, metrics=metrics)

    parquet = [file for file in selected if file.path.name.endswith(PARQUET)]
    streams = [file for file in selected if not file.path.name.endswith(PARQUET)]
    ready: dict[SegmentFile, SampleTable] = {}
    for files, parallel in ((parquet, _READERS), (streams, _STREAM_READERS)):
        if len(files) <= _FEW:
            ready |= {file: read(file) for file in files}
            continue
        with ThreadPoolExecutor(parallel) as readers:
            ready |= dict(zip(files, readers.map(read, files), strict=True))
    parts = [ready[file] for file in selected]
    if simulated is not None:
        parts = [_only(part, simulated=simulated) for part in parts]
    table = SampleTable.union(parts, metrics=metrics)
    return table.between(since_ns, None if until_ns is None else until_ns + 1)


def read_segment(
    path: Path,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    metrics: Collection[str] | None = None,
) -> SampleTable:
    """Return the samples of one segment up to its last complete batch; `segments` has its state.

    Parameters
    ----------
    since_ns, until_ns
        UTC time range; samples outside it may be missing.
    metrics
        Metrics to read; None for all.

    Raises
    ------
    OSError
        The file cannot be opened.
    """
    for _ in range(3):
        try:
            return _read(path, since_ns, until_ns, metrics)
        except FileNotFoundError:
            # Renamed since the listing: closed or converted to Parquet.
            path = current_path(path)
    return _read(path, since_ns, until_ns, metrics)


def dropped_bits(metrics: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of mantissa bits of each metric's values that are not kept; 0 for exact values."""
    return np.array(
        [
            _DROPPED_BITS_OF_PARTS
            if metric in SCORE_PARTS
            else _DROPPED_BITS * (unit_of(metric) in _ESTIMATED)
            for metric in metrics
        ],
        np.int64,
    )


def round_values(values: NDArray[np.float64], dropped: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the values rounded to fewer significant bits; NaN stays NaN.

    Parameters
    ----------
    values
        Array whose last axis has the length of `dropped`.
    dropped
        Number of mantissa bits, out of 52, that are dropped from the values of each metric.
    """
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    half = (np.int64(1) << dropped) >> 1
    nearest = ((bits + half) >> dropped) << dropped
    result: NDArray[np.float64] = np.where(np.isfinite(values), nearest, bits).view(np.float64)
    return result


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
    begin = segment_prefix(provenance.node, provenance.recorder)
    number = 0
    while True:
        path = folder / f"{begin}-{start_ns}-{number}{SUFFIX}"
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            number += 1


def _stem(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(SUFFIX))


def _only(table: SampleTable, *, simulated: bool) -> SampleTable:
    kept = tuple(device for device in table.devices if device.simulated is simulated)
    return replace(table, devices=kept, columns={device.uuid: table[device.uuid] for device in kept})
