"""Samples as Parquet: closed segments in less room, what ``gipfel export`` writes, and what replay reads.

A file is a wide table, with a row per device and time and a column per metric.
"""

import os
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..metric_table import GPU_METRICS, METRICS
from ..sample import Columns, Provenance, SampleTable, SegmentState, metric_names
from .segment_files import PARQUET

#: Columns of times; ``clock_ns`` is what ``time_ns`` was ahead of the monotonic clock, which hardly changes.
TIMES = ("time_ns", "clock_ns")
_VERSION = "1"
#: Rows that are read together, of all devices: half an hour of a node with four GPUs at 1 Hz. What a file
#: holds about each such group takes as much room as 300 rows.
_GROUP_ROWS = 10_000


def write_parquet(table: SampleTable, path: Path, *, provenance: Provenance | None = None) -> None:
    """Write a table as one Parquet file, which :func:`read_parquet` and replay read.

    A row per device and time; ``time_ns`` is UTC, ``clock_ns`` is what it was ahead of the monotonic clock, a
    missing value is null. Rows are sorted by time range, device and time.

    Parameters
    ----------
    provenance
        The file's metadata; by default that of the table.
    """
    import pyarrow.parquet  # noqa: PLC0415 - slow to import, and no part of recording

    if provenance is None:
        provenance = Provenance(
            "", "", table.source, table.simulated, table.interval, table.devices, extra_metrics(table)
        )
    metadata = {"version": _VERSION, **provenance.to_metadata()}
    whole = wide_of_table(table).replace_schema_metadata(metadata)
    times = [name for name in whole.column_names if name in TIMES]
    metrics = [name for name in whole.column_names if name not in ("device", *times)]
    # The low bits of rounded values are zeros: byte by byte they take next to nothing.
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
    """Read the table of :func:`write_parquet`; of a closed segment with its state.

    Parameters
    ----------
    since_ns, until_ns
        UTC time of the first sample that is wanted and of the last; None for all.
    metrics
        The only ones that are wanted; None for all.

    Raises
    ------
    ValueError
        No Parquet, or not of ours.
    """
    import pyarrow.parquet  # noqa: PLC0415 - slow to import, and no part of recording

    # By its content alone: the name of a folder above is not a column.
    with pyarrow.parquet.ParquetFile(os.fspath(path)) as file:
        schema = file.schema_arrow
        if schema.metadata is None or b"devices" not in schema.metadata:
            raise ValueError("it names no devices")
        given = {key.decode(): value.decode() for key, value in schema.metadata.items()}
        wanted = None
        if metrics is not None:
            wanted = [name for name in schema.names if name in ("device", *TIMES) or name in metrics]
        groups = [g for g in range(file.num_row_groups) if _may_hold(file, g, since_ns, until_ns)]
        content = file.read_row_groups(groups, columns=wanted)
    provenance = Provenance.from_metadata(given)
    table = table_of_wide(_between(content, since_ns, until_ns), provenance, metrics)
    if not path.name.endswith(PARQUET):
        return table
    state = SegmentState(
        path.name,
        "closed",
        table.rows,
        provenance.node,
        provenance.recorder,
        provenance.source,
        provenance.interval,
        table.last_ns,
        provenance.devices,
    )
    return replace(table, segments=(state,))


def extra_metrics(table: SampleTable) -> tuple[str, ...]:
    """Return the metrics of a table's GPUs that not every GPU has."""
    held = (name for gpu in table.gpus for name in metric_names(table.of(gpu.uuid)))
    return tuple(name for name in dict.fromkeys(held) if name not in GPU_METRICS)


def is_whole(path: Path, rows: int) -> bool:
    """Return whether a file is Parquet of so many rows."""
    import pyarrow.parquet  # noqa: PLC0415 - slow to import, and no part of recording

    try:
        with pyarrow.parquet.ParquetFile(os.fspath(path)) as file:
            return bool(file.metadata.num_rows == rows)
    except (OSError, ValueError, pa.ArrowException):
        return False


def write_export(table: SampleTable, path: Path) -> int:
    """Write a table; its format is that of the file's name, and a reader sees all of it or nothing.

    Returns
    -------
    int
        How many samples there are.

    Raises
    ------
    OSError
        It can't be written.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    part = Path(name)
    try:
        if path.suffix == ".csv":
            _write_csv(table, part)
        else:
            write_parquet(table, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return table.rows


def wide_of_table(table: SampleTable) -> pa.Table:
    """Return the rows of all devices, one device after the other, by time, without metrics that none has.

    Times of the monotonic clock are ``clock_ns``, the difference to ``time_ns``: it hardly changes.
    """
    parts = []
    for device in table.devices:
        columns = table.of(device.uuid)
        length = len(columns["time_ns"])
        device_column = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(length, np.int32)), pa.array([device.uuid], pa.string())
        )
        times = {"time_ns": columns["time_ns"], "clock_ns": columns["time_ns"] - columns["monotonic_ns"]}
        metrics = {
            name: column for name, column in columns.items() if name not in ("time_ns", "monotonic_ns")
        }
        values = {name: pa.array(c, from_pandas=True) for name, c in (times | metrics).items()}
        parts.append(pa.table({"device": device_column, **values}))
    return pa.concat_tables(parts, promote_options="default").unify_dictionaries() if parts else _empty()


def table_of_wide(
    content: pa.Table, provenance: Provenance, metrics: Collection[str] | None = None
) -> SampleTable:
    """Return the samples of such a table; a metric without a column is missing.

    Parameters
    ----------
    metrics
        The only ones that are wanted; None for all.

    Raises
    ------
    ValueError
        Times or devices are missing, or a column holds no numbers.
    """
    for name in (*TIMES, "device"):
        if name not in content.column_names:
            raise ValueError(f"it has no column {name}")
    owners, names = _owners(content.column("device"))
    held: dict[str, NDArray[Any]] = {}
    held["time_ns"] = _numbers(content, "time_ns", np.int64)
    held["monotonic_ns"] = held["time_ns"] - _numbers(content, "clock_ns", np.int64)
    columns: dict[str, Columns] = {}
    for device in provenance.devices:
        chosen = np.flatnonzero(owners == names.get(device.uuid, -1))
        extra = provenance.extra if device.kind == "gpu" else ()
        own = dict.fromkeys((*METRICS[device.kind], *extra))
        wanted = [metric for metric in own if metrics is None or metric in metrics]
        for metric in wanted:
            if metric not in held:
                held[metric] = _numbers(content, metric, np.float64)
        columns[device.uuid] = {n: held[n][chosen] for n in ("time_ns", "monotonic_ns", *wanted)}
    return SampleTable(provenance.devices, columns, provenance.source, provenance.interval)


def _owners(column: pa.ChunkedArray) -> tuple[NDArray[Any], dict[str, int]]:
    """Return each row's device as a number, and the number of each device."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([]).dictionary_encode()
    names = {str(name): place for place, name in enumerate(whole.dictionary.to_pylist())}
    return whole.indices.fill_null(-2).to_numpy(zero_copy_only=False), names


def _empty() -> pa.Table:
    return pa.table({"device": pa.array([], pa.string()), **{n: pa.array([], pa.int64()) for n in TIMES}})


def _numbers(content: pa.Table, name: str, kind: Any) -> Any:
    if name not in content.column_names:
        return np.full(content.num_rows, np.nan)
    return content.column(name).to_numpy().astype(kind)


def _time_ranges(whole: pa.Table) -> Iterator[pa.Table]:
    """Split a table into time ranges of about equally many rows, at least one."""
    count = max(1, round(whole.num_rows / _GROUP_ROWS))
    if count == 1:
        yield whole
        return
    times = whole.column("time_ns").to_numpy()
    edges = np.sort(times)[[whole.num_rows * n // count for n in range(1, count)]]
    places = np.searchsorted(edges, times, side="right")
    for place in range(count):
        yield whole.take(np.flatnonzero(places == place))


def _may_hold(file: Any, group: int, since_ns: int | None, until_ns: int | None) -> bool:
    """Return whether a row group's times may be within a range; True where it doesn't say."""
    about = file.metadata.row_group(group)
    for place in range(about.num_columns if since_ns is not None or until_ns is not None else 0):
        column = about.column(place)
        if column.path_in_schema == "time_ns" and column.statistics and column.statistics.has_min_max:
            low, high = column.statistics.min, column.statistics.max
            return (since_ns is None or high >= since_ns) and (until_ns is None or low <= until_ns)
    return True


def _between(content: pa.Table, since_ns: int | None, until_ns: int | None) -> pa.Table:
    if "time_ns" not in content.column_names or (since_ns is None and until_ns is None):
        return content
    times = content.column("time_ns").to_numpy()
    inside = np.ones(len(times), np.bool_)
    if since_ns is not None:
        inside &= times >= since_ns
    if until_ns is not None:
        inside &= times <= until_ns
    return content if inside.all() else content.filter(pa.array(inside))


def _write_csv(table: SampleTable, path: Path) -> None:
    """Write comma-separated rows, quoted where needed, each with its device's node, name, kind and index."""
    import pyarrow.csv  # noqa: PLC0415 - slow to import

    rows = wide_of_table(table)
    owners = [device for device in table.devices for _ in range(len(table.of(device.uuid)["time_ns"]))]
    rows = rows.set_column(0, "device", pa.array([_plain(device.uuid) for device in owners], pa.string()))
    rows = rows.add_column(1, "node", pa.array([_plain(device.node) for device in owners], pa.string()))
    rows = rows.add_column(2, "name", pa.array([_plain(device.name) for device in owners], pa.string()))
    rows = rows.add_column(4, "kind", pa.array([device.kind for device in owners], pa.string()))
    rows = rows.add_column(5, "index", pa.array([device.index for device in owners], pa.int64()))
    pyarrow.csv.write_csv(rows, path)


def _plain(text: str) -> str:
    """Return a text in one line that no spreadsheet takes for a formula."""
    safe = "".join(letter if letter.isprintable() else " " for letter in text)
    return f"'{safe}" if safe[:1] in ("=", "+", "-", "@") else safe
