"""Samples as Parquet: what closed segments become, what `gipfel export` writes, and what replay reads."""

import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..provenance import Provenance
from ..sample import GPU_METRICS, SampleTable, SegmentState, metric_names
from .segment_files import PARQUET
from .wide_table import TIMES, table_of_wide, wide_of_table

_VERSION = "1"
#: Rows that are read together, of all devices: half an hour of a node with four GPUs at 1 Hz. What a file
#: says of each such piece takes as much room as 300 of them.
_GROUP_ROWS = 10_000


def write_parquet(table: SampleTable, path: Path, *, provenance: Provenance | None = None) -> None:
    """A table as one Parquet file, which :func:`read_parquet` and replay read.

    A row per device and time; ``time_ns`` is UTC, ``clock_ns`` is what it was ahead of the monotonic clock, a
    missing value is null. Rows are sorted by stretch of time, device and time.

    Parameters
    ----------
    provenance
        What the file's metadata says; by default that of the table.
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
        for part in _stretches(whole):
            file.write_table(part, row_group_size=max(1, part.num_rows))


def read_parquet(
    path: Path,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    metrics: Collection[str] | None = None,
) -> SampleTable:
    """The table of :func:`write_parquet`; of a closed segment with its state.

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

    # By its content alone: the name of a folder above says nothing of columns.
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


def _stretches(whole: pa.Table) -> Iterator[pa.Table]:
    """A table in stretches of time of about equally many rows, at least one."""
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
    """Whether a row group's times may be within a range; where it doesn't say, they may."""
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


def extra_metrics(table: SampleTable) -> tuple[str, ...]:
    """The metrics of a table's GPUs that not every GPU has."""
    held = (name for gpu in table.gpus for name in metric_names(table.of(gpu.uuid)))
    return tuple(name for name in dict.fromkeys(held) if name not in GPU_METRICS)


def is_whole(path: Path, rows: int) -> bool:
    """Whether a file is Parquet of so many rows."""
    import pyarrow.parquet  # noqa: PLC0415 - slow to import, and no part of recording

    try:
        with pyarrow.parquet.ParquetFile(os.fspath(path)) as file:
            return bool(file.metadata.num_rows == rows)
    except (OSError, ValueError, pa.ArrowException):
        return False
