"""Summaries: minimum, mean and maximum per 10 s and 60 s, in files beside the segments.

Long time ranges are drawn from them. They repeat the content of the segments: a missing or damaged summary
costs time, but no samples.

A file holds ``GIPFSUM1``, the length of the header as uint32, the header as JSON (provenance, level,
metrics), and then records of equal size, all little-endian: ``start_ns`` as int64; mean, minimum and maximum
of each device and metric as float32; their numbers of values as uint16. A truncated last record is ignored.
The summary of a closed segment is packed (``GIPFSUM2``): one compressed block per metric, so that a figure
unpacks only the metrics it shows.
"""

import errno
import io
import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..files import open_regular
from ..sample import Provenance, Sample

_PACKED_MAGIC = b"GIPFSUM2"
#: Number of mantissa bits, out of 23, that are dropped in packed files: the error is at most 0.05 %.
_DROPPED_BITS = 13
#: Maximum number of records: a day in buckets of 10 ms.
_MAX_RECORDS = 10_000_000
#: Maximum values of one metric: a day of 1 900 devices in buckets of 10 s.
_MAX_CELLS = 1 << 24
#: Levels: bucket lengths in seconds, coarsest last.
LEVELS = (10, 60)
_PLAIN_MAGIC = b"GIPFSUM1"
#: Maximum bytes of a header; that of 1 000 devices has 200 kB.
_MAX_HEAD = 16 * 2**20
#: Of a larger unpacked file, only the end is read. This size holds a month of ten GPUs in buckets of 10 s.
_MAX_RECORD_BYTES = 1 << 30
#: Maximum of uint16; 60 s of samples at 100 Hz are 6 000.
_MAX_COUNT = 65535


def summary_path(stem: Path, level: int) -> Path:
    """Return the path of a summary; `stem` is the segment's path without ``.arrows``."""
    return stem.with_name(f"{stem.name}.{level}s.summary")


@dataclass(frozen=True)
class Summary:
    """Content of one summary file.

    Parameters
    ----------
    series
        Device and metric of each column in the four arrays.
    start_ns
        UTC start of each record's bucket, a multiple of the level since the epoch. Several records may belong
        to one bucket; then each is a part of it.
    mean, low, high
        Arrays of records by series; NaN where a bucket has no value.
    count
        Number of values in each bucket.
    """

    provenance: Provenance
    level: int
    series: tuple[tuple[str, str], ...]
    start_ns: NDArray[np.int64]
    mean: NDArray[np.float32]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    count: NDArray[np.uint16]


class SummaryWriter:
    """Writer of the summaries of one segment.

    Parameters
    ----------
    stem
        The segment's path without ``.arrows``.

    Raises
    ------
    OSError
        A file cannot be created or written.
    """

    def __init__(self, stem: Path, provenance: Provenance, *, levels: Sequence[int] = LEVELS) -> None:
        self._series = _series_of(provenance, provenance.metrics)
        #: First column and metrics of each device.
        self._layout: dict[str, tuple[int, tuple[str, ...]]] = {}
        first_column = 0
        for device in provenance.devices:
            metrics = provenance.metrics[device.kind]
            self._layout[device.uuid] = (first_column, metrics)
            first_column += len(metrics)
        self._buckets: list[_Bucket] = []
        try:
            for level in levels:
                self._buckets.append(_Bucket(summary_path(stem, level), provenance, level, self._series))
        except OSError:
            self.abandon()
            for level in levels[: len(self._buckets)]:
                summary_path(stem, level).unlink(missing_ok=True)
            raise

    def add(self, samples: Sequence[Sample]) -> None:
        """Add samples and write the buckets that are complete; samples of unknown devices are dropped."""
        rows: dict[int, NDArray[np.float64]] = {}
        for sample in samples:
            if sample.device not in self._layout:
                continue
            first, metrics = self._layout[sample.device]
            row = rows.get(sample.time_ns)
            if row is None:
                row = rows[sample.time_ns] = np.full(len(self._series), np.nan)
            row[first : first + len(metrics)] = [
                np.nan if (value := sample.values.get(metric)) is None else value for metric in metrics
            ]
        for time_ns, row in rows.items():
            for bucket in self._buckets:
                bucket.add(time_ns, row)
        for bucket in self._buckets:
            bucket.flush()

    def close(self) -> None:
        """Write the incomplete buckets and close the files."""
        for bucket in self._buckets:
            bucket.end()
            bucket.flush()
            bucket.file.close()

    def abandon(self) -> None:
        """Close the files without writing the incomplete buckets, after an error."""
        for bucket in self._buckets:
            bucket.file.close()


class WholeWrites(io.FileIO):
    """An unbuffered file whose writes are complete or raise; written data survive the process."""

    def write(self, data: Any) -> int:
        """Write all data or raise: a partial batch or record would hide every one after it."""
        size = memoryview(data).nbytes
        if super().write(data) != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return size


class _Bucket:
    """The current bucket of one level, and the file of the previous ones."""

    def __init__(
        self, path: Path, provenance: Provenance, level: int, series: tuple[tuple[str, str], ...]
    ) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.file = WholeWrites(handle, "wb")
        self.file.write(_head(provenance, level))
        self._span = level * 10**9
        self._type = _record(len(series))
        self._start: int | None = None
        self._ready = bytearray()
        self._sum = np.zeros(len(series))
        self._low = np.zeros(len(series))
        self._high = np.zeros(len(series))
        self._count = np.zeros(len(series), np.int64)

    def add(self, time_ns: int, row: NDArray[np.float64]) -> None:
        start = time_ns // self._span * self._span
        if start != self._start:
            self.end()
            self._start = start
            self._sum[:] = 0.0
            self._count[:] = 0
            self._low[:] = np.inf
            self._high[:] = -np.inf
        known = np.isfinite(row)
        self._count += known
        self._sum[known] += row[known]
        self._low[known] = np.minimum(self._low, row)[known]
        self._high[known] = np.maximum(self._high, row)[known]

    def end(self) -> None:
        """Append the bucket to the records that :meth:`flush` writes."""
        if self._start is None:
            return
        empty = self._count == 0
        record = np.zeros((), self._type)
        record["start_ns"] = self._start
        with np.errstate(over="ignore"):
            record["mean"] = np.where(empty, np.nan, self._sum / np.maximum(self._count, 1))
            record["low"] = np.where(empty, np.nan, self._low)
            record["high"] = np.where(empty, np.nan, self._high)
        record["count"] = np.minimum(self._count, _MAX_COUNT)
        self._ready += record.tobytes()
        self._start = None

    def flush(self) -> None:
        if self._ready:
            # A single call, so that readers see complete records.
            self.file.write(self._ready)
            self._ready.clear()


def read_summary(path: Path, *, last: int | None = None, metrics: Iterable[str] | None = None) -> Summary:
    """Read the complete records of a summary.

    Parameters
    ----------
    last
        Number of records to read from the end; None for all.
    metrics
        Metrics to read from a packed file, which may omit others; None for all.

    Raises
    ------
    OSError
        The file cannot be opened.
    ValueError
        The file is not a summary.
    """
    with open_regular(path) as file:
        magic, head, provenance, level, series = _read_head(file)
        if magic == _PACKED_MAGIC:
            series, arrays = _unpack(file, head, series, metrics, last)
        else:
            arrays = _read_records(file, len(series), last)
    return Summary(provenance, level, series, *arrays)


def pack_summary(path: Path, replace_content: Callable[[Path, bytes], None]) -> None:
    """Pack a summary whose segment is closed; do nothing where it is packed already.

    Parameters
    ----------
    replace_content
        Function that replaces the content of a file atomically.

    Raises
    ------
    OSError, ValueError
        As :func:`read_summary`.
    """
    with open_regular(path) as file:
        magic, head = _read_head(file)[:2]
    if magic == _PACKED_MAGIC:
        return
    summary = read_summary(path)
    blocks = [zlib.compress(np.diff(summary.start_ns, prepend=0).astype("<i8").tobytes(), 9)]
    for columns in _columns(summary.series).values():
        floats = [_shuffled_bytes(each[:, columns]) for each in (summary.mean, summary.low, summary.high)]
        counts = np.ascontiguousarray(summary.count[:, columns].T).astype("<u2").tobytes()
        blocks.append(zlib.compress(b"".join([*floats, counts]), 9))
    sizes = [len(block) for block in blocks]
    content = json.dumps({**head, "records": len(summary.start_ns), "sizes": sizes}).encode()
    whole = b"".join([_PACKED_MAGIC, len(content).to_bytes(4, "little"), content, *blocks])
    replace_content(path, whole)


def _unpack(
    file: BinaryIO,
    head: dict[str, Any],
    series: Sequence[tuple[str, str]],
    metrics: Iterable[str] | None,
    last: int | None,
) -> tuple[tuple[tuple[str, str], ...], tuple[NDArray[Any], ...]]:
    """Read the series and arrays of some metrics from the blocks after the header.

    Parameters
    ----------
    metrics, last
        As for :func:`read_summary`.

    Raises
    ------
    ValueError
        A block is damaged.
    """
    try:
        records, sizes = int(head["records"]), [int(size) for size in head["sizes"]]
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError("its header lacks the sizes of its blocks") from error
    columns_by_metric = _columns(series)
    if not 0 <= records <= _MAX_RECORDS or len(sizes) != 1 + len(columns_by_metric) or min(sizes) < 0:
        raise ValueError("the sizes of its blocks are invalid")
    start_ns = np.cumsum(np.frombuffer(_read_block(file, sizes[0], 8 * records), "<i8"))
    selected = set(columns_by_metric) if metrics is None else set(metrics)
    found: list[tuple[str, str]] = []
    blocks: list[list[NDArray[Any]]] = [[], [], [], []]
    for (metric, columns), size in zip(columns_by_metric.items(), sizes[1:], strict=True):
        if metric not in selected:
            file.seek(size, 1)
            continue
        cells = records * len(columns)
        if cells > _MAX_CELLS:
            raise ValueError("a block of it is too large")
        content = _read_block(file, size, 14 * cells)
        for array in range(3):
            floats = np.frombuffer(content, np.uint8, 4 * cells, 4 * cells * array).reshape(4, cells)
            values = np.ascontiguousarray(floats.T).view("<f4").reshape(len(columns), records)
            blocks[array].append(values.T)
        counts = np.frombuffer(content, "<u2", cells, 12 * cells).reshape(len(columns), records)
        blocks[3].append(counts.T)
        found += [series[column] for column in columns]
    arrays = [np.concatenate(block, axis=1) if block else np.zeros((records, 0)) for block in blocks]
    first = 0 if last is None else max(0, records - last)
    return tuple(found), tuple(array[first:] for array in (start_ns, *arrays))


def _columns(series: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
    """Return the column indices of each metric."""
    found: dict[str, list[int]] = {}
    for column, (_, metric) in enumerate(series):
        found.setdefault(metric, []).append(column)
    return found


def _shuffled_bytes(values: NDArray[np.float32]) -> bytes:
    """Return rounded columns with bytes of equal significance adjacent, which compress better."""
    bits = np.ascontiguousarray(values.T, "<f4").view(np.uint32)
    half = np.uint32(1 << (_DROPPED_BITS - 1))
    rounded = ((bits + half) >> np.uint32(_DROPPED_BITS)) << np.uint32(_DROPPED_BITS)
    kept = np.where(np.isfinite(values.T), rounded, bits)
    return np.ascontiguousarray(kept.view(np.uint8).reshape(-1, 4).T).tobytes()


def _read_block(file: BinaryIO, size: int, length: int) -> bytes:
    try:
        # Limit both sizes: a small block can be crafted to unpack endlessly, and compressed data are hardly
        # ever longer than their content.
        packed = file.read(min(size, length + (length >> 8) + 64))
        content = zlib.decompressobj().decompress(packed, length + 1)
    except zlib.error as error:
        raise ValueError("a block of it is damaged") from error
    if len(content) != length:
        raise ValueError("a block of it is damaged")
    return content


def _read_records(file: BinaryIO, series: int, last: int | None) -> tuple[NDArray[Any], ...]:
    kind = _record(series)
    start = file.tell()
    whole = max(0, os.fstat(file.fileno()).st_size - start) // kind.itemsize
    count = min(whole if last is None else last, whole, _MAX_RECORD_BYTES // kind.itemsize)
    file.seek(start + (whole - count) * kind.itemsize)
    content = file.read(count * kind.itemsize)
    records = np.frombuffer(content, kind, len(content) // kind.itemsize)
    # Zeros that a machine crash left are not records.
    records = records[records["start_ns"] > 0]
    numbers = tuple(records[name] for name in ("mean", "low", "high", "count"))
    return (records["start_ns"].astype(np.int64), *numbers)


def _read_head(file: BinaryIO) -> tuple[bytes, dict[str, Any], Provenance, int, tuple[tuple[str, str], ...]]:
    """Return the magic number, the header, and what it names: provenance, level and series."""
    magic, length = file.read(len(_PLAIN_MAGIC)), int.from_bytes(file.read(4), "little")
    if magic not in (_PLAIN_MAGIC, _PACKED_MAGIC) or not 0 < length <= _MAX_HEAD:
        raise ValueError("it is not a summary")
    try:
        head: dict[str, Any] = json.loads(file.read(length))
        level = int(head["level"])
        provenance = Provenance.from_metadata(head["provenance"])
        metrics = {kind: [str(name) for name in names] for kind, names in head["metrics"].items()}
        series = _series_of(provenance, metrics)
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError("its header is invalid") from error
    if not 1 <= level <= 86400 or not series:
        raise ValueError("its bucket length is invalid")
    return magic, head, provenance, level, series


def _series_of(provenance: Provenance, metrics: Mapping[str, Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((device.uuid, metric) for device in provenance.devices for metric in metrics[device.kind])


def _record(series: int) -> np.dtype[Any]:
    numbers = [(name, "<f4", (series,)) for name in ("mean", "low", "high")]
    return np.dtype([("start_ns", "<i8"), *numbers, ("count", "<u2", (series,))])


def _head(provenance: Provenance, level: int) -> bytes:
    head = {"provenance": provenance.to_metadata(), "level": level, "metrics": provenance.metrics}
    content = json.dumps(head).encode()
    return _PLAIN_MAGIC + len(content).to_bytes(4, "little") + content
