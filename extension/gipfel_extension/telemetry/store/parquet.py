"""Samples as Parquet: the compact form of closed segments, ``gipfel export``, and input for replay.

A file is a wide table with a row per device and time and a column per metric.
"""

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..metric_table import GPU_METRICS, METRICS
from ..sample import Columns, Provenance, SampleTable, SegmentState, metric_names
from .segment_files import PARQUET

#: Time columns; ``clock_ns`` is ``time_ns`` minus the monotonic clock, which hardly changes.
TIMES = ("time_ns", "clock_ns")
_VERSION = "1"
#: Ending of temporary files.
PART = ".part"
#: Rows of all devices in a row group: half an hour of a node with four GPUs at 1 Hz. The metadata of a row
#: group take as much space as 300 rows.
_GROUP_ROWS = 10_000


def write_parquet(table: SampleTable, path: Path, *, provenance: Provenance | None = None) -> None:
    """Write a table as one Parquet file for :func:`read_parquet` and replay.

    A file has a row per device and time. ``time_ns`` is UTC, ``clock_ns`` is ``time_ns`` minus the monotonic
    clock, a missing value is null. Rows are sorted by time range, device and time.

    Parameters
    ----------
    provenance
        Metadata of the file; by default that of the table.
    """
    import pyarrow.parquet  # noqa: PLC0415 - slow to import, and not needed for recording

    if provenance is None:
        provenance = Provenance(
            source=table.source,
            simulated=table.simulated,
            interval=table.interval,
            devices=table.devices,
            extra=extra_metrics(table),
        )
    metadata = {"version": _VERSION, **provenance.to_metadata()}
    whole = to_wide_table(table).replace_schema_metadata(metadata)
    times = [name for name in whole.column_names if name in TIMES]
    metrics = [name for name in whole.column_names if name not in ("device", *times)]
    # The low bits of rounded values are zeros: split into byte streams they compress to almost nothing.
    with pyarrow.parquet.ParquetWriter(
        path,
        whole.schema,
        compression="zstd",
        compression_level=9,
        use_dictionary=["device"],
        write_statistics=["time_ns"],
        column_encoding={
            **dict.fromkeys(times, "DELTA_BINARY_PACKED"),
            **dict.fromkeys(metrics, "BYTE_STREAM_SPLIT"),
        },
    ) as file:
        for part in _time_ranges(whole):
            file.write_table(part, row_group_size=max(1, part.num_rows))


def read_parquet(
    path: Path,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    metrics: Collection[str] | None = None,
) -> SampleTable:
    """Read a file of :func:`write_parquet`; the table of a closed segment includes its state.

    Parameters
    ----------
    since_ns, until_ns
        UTC time range; groups of rows outside it are not read. None for all.
    metrics
        Metrics to read; None for all.

    Raises
    ------
    ValueError
        The file is not Parquet, or was not written by :func:`write_parquet`.
    """
    import pyarrow.parquet  # noqa: PLC0415 - slow to import, and not needed for recording

    # Open the file itself: read_table would turn names of parent directories into columns.
    with pyarrow.parquet.ParquetFile(os.fspath(path)) as file:
        schema = file.schema_arrow
        if schema.metadata is None or b"devices" not in schema.metadata:
            raise ValueError("it names no devices")
        metadata = {key.decode(): value.decode() for key, value in schema.metadata.items()}
        columns = None
        if metrics is not None:
            columns = [name for name in schema.names if name in ("device", *TIMES) or name in metrics]
        groups = [g for g in range(file.num_row_groups) if _may_overlap(file, g, since_ns, until_ns)]
        content = file.read_row_groups(groups, columns=columns)
    provenance = Provenance.from_metadata(metadata)
    table = from_wide_table(content, provenance, metrics)
    if not path.name.endswith(PARQUET):
        return table
    state = SegmentState(path.name, "closed", table.rows, table.last_ns, provenance)
    return replace(table, segments=(state,))


def extra_metrics(table: SampleTable) -> tuple[str, ...]:
    """Return the metrics of a table's GPUs beyond those that are always recorded."""
    arrays = (name for gpu in table.gpus for name in metric_names(table[gpu.uuid]))
    return tuple(name for name in dict.fromkeys(arrays) if name not in GPU_METRICS)


def is_complete_parquet(path: Path, rows: int) -> bool:
    """Return whether a file is valid Parquet with this number of rows."""
    import pyarrow.parquet  # noqa: PLC0415 - slow to import, and not needed for recording

    try:
        with pyarrow.parquet.ParquetFile(os.fspath(path)) as file:
            return bool(file.metadata.num_rows == rows)
    except (OSError, ValueError, pa.ArrowException):
        return False


def write_export(table: SampleTable, path: Path) -> int:
    """Write a table atomically, as CSV where the file's name ends in ``.csv``, else as Parquet.

    Returns
    -------
    int
        Number of samples.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    with temporary_beside(path) as part:
        if path.suffix == ".csv":
            _write_csv(table, part)
        else:
            write_parquet(table, part)
        part.replace(path)
    return table.rows


@contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Yield a temporary file beside its target, and remove it at the end unless it was renamed."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=PART)
    os.close(handle)
    path = Path(name)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def to_wide_table(table: SampleTable) -> pa.Table:
    """Return the samples of all devices as an Arrow table, sorted by device and time.

    ``clock_ns`` is ``time_ns`` minus the monotonic clock, which hardly changes.
    """
    parts = []
    for device in table.devices:
        columns = table[device.uuid]
        length = len(columns["time_ns"])
        device_column = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(length, np.int32)), pa.array([device.uuid], pa.string())
        )
        times = {"time_ns": columns["time_ns"], "clock_ns": columns["time_ns"] - columns["monotonic_ns"]}
        held = times | {name: columns[name] for name in metric_names(columns)}
        values = {name: pa.array(column, from_pandas=True) for name, column in held.items()}
        parts.append(pa.table({"device": device_column, **values}))
    return pa.concat_tables(parts, promote_options="default").unify_dictionaries() if parts else _empty()


def from_wide_table(
    content: pa.Table, provenance: Provenance, metrics: Collection[str] | None = None
) -> SampleTable:
    """Return the samples of a table of :func:`to_wide_table`; a metric without a column is missing.

    Parameters
    ----------
    metrics
        Metrics to read; None for all.

    Raises
    ------
    ValueError
        A time or device column is missing, or a metric's column does not hold numbers.
    """
    for name in (*TIMES, "device"):
        if name not in content.column_names:
            raise ValueError(f"it has no column {name}")
    device_codes, codes = _device_codes(content.column("device"))
    arrays: dict[str, NDArray[Any]] = {}
    arrays["time_ns"] = _numbers(content, "time_ns", np.int64)
    arrays["monotonic_ns"] = arrays["time_ns"] - _numbers(content, "clock_ns", np.int64)
    columns: dict[str, Columns] = {}
    for device in provenance.devices:
        rows = np.flatnonzero(device_codes == codes.get(device.uuid, -1))
        extra = provenance.extra if device.kind == "gpu" else ()
        device_metrics = dict.fromkeys((*METRICS[device.kind], *extra))
        selected = [metric for metric in device_metrics if metrics is None or metric in metrics]
        for metric in selected:
            if metric not in arrays:
                arrays[metric] = _numbers(content, metric, np.float64)
        columns[device.uuid] = {n: arrays[n][rows] for n in ("time_ns", "monotonic_ns", *selected)}
    return SampleTable(provenance.devices, columns, provenance.source, provenance.interval)


def _device_codes(column: pa.ChunkedArray) -> tuple[NDArray[Any], dict[str, int]]:
    """Return the device of each row as an integer code, and the code of each device."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    codes = {str(name): code for code, name in enumerate(whole.dictionary.to_pylist())}
    return whole.indices.fill_null(-2).to_numpy(zero_copy_only=False), codes


def _empty() -> pa.Table:
    return pa.table({"device": pa.array([], pa.string()), **{n: pa.array([], pa.int64()) for n in TIMES}})


def _numbers(content: pa.Table, name: str, kind: Any) -> Any:
    if name not in content.column_names:
        return np.full(content.num_rows, np.nan)
    return content.column(name).to_numpy().astype(kind)


def _time_ranges(table: pa.Table) -> Iterator[pa.Table]:
    """Split a table into time ranges with about the same number of rows, at least one."""
    count = max(1, round(table.num_rows / _GROUP_ROWS))
    if count == 1:
        yield table
        return
    times = table.column("time_ns").to_numpy()
    edges = np.sort(times)[[table.num_rows * n // count for n in range(1, count)]]
    indices = np.searchsorted(edges, times, side="right")
    for index in range(count):
        yield table.take(np.flatnonzero(indices == index))


def _may_overlap(file: Any, group: int, since_ns: int | None, until_ns: int | None) -> bool:
    """Return whether a row group may overlap a time range; True without statistics."""
    about = file.metadata.row_group(group)
    for index in range(about.num_columns if since_ns is not None or until_ns is not None else 0):
        column = about.column(index)
        if column.path_in_schema == "time_ns" and column.statistics and column.statistics.has_min_max:
            low, high = column.statistics.min, column.statistics.max
            return (since_ns is None or high >= since_ns) and (until_ns is None or low <= until_ns)
    return True


def _write_csv(table: SampleTable, path: Path) -> None:
    """Write a CSV file with the node, name, kind and index of each row's device."""
    import pyarrow.csv  # noqa: PLC0415 - slow to import

    rows = to_wide_table(table)
    devices = [device for device in table.devices for _ in range(len(table[device.uuid]["time_ns"]))]
    rows = rows.set_column(0, "device", pa.array([_csv_text(device.uuid) for device in devices], pa.string()))
    rows = rows.add_column(1, "node", pa.array([_csv_text(device.node) for device in devices], pa.string()))
    rows = rows.add_column(2, "name", pa.array([_csv_text(device.name) for device in devices], pa.string()))
    rows = rows.add_column(4, "kind", pa.array([device.kind for device in devices], pa.string()))
    rows = rows.add_column(5, "index", pa.array([device.index for device in devices], pa.int64()))
    pyarrow.csv.write_csv(rows, path)


def _csv_text(text: str) -> str:
    """Return a text as one line that spreadsheets do not interpret as a formula."""
    safe = "".join(letter if letter.isprintable() else " " for letter in text)
    return f"'{safe}" if safe[:1] in ("=", "+", "-", "@") else safe
