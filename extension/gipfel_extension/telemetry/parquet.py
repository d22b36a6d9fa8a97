"""Samples as Parquet: what closed segments become, what `gipfel export` writes, and what replay reads."""

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from .provenance import Provenance
from .sample import GPU_METRICS, SampleTable, SegmentState, metric_names
from .segment_files import PARQUET
from .wide_table import table_of_wide, wide_of_table

_VERSION = "1"


def write_parquet(table: SampleTable, path: Path, *, provenance: Provenance | None = None) -> None:
    """A table as one Parquet file, which :func:`read_parquet` and replay read.

    A row per device and time; ``time_ns`` is UTC, a missing value is null.

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
    times = [name for name in whole.column_names if name in ("time_ns", "monotonic_ns")]
    metrics = [name for name in whole.column_names if name not in ("device", *times)]
    # The low bits of rounded values are zeros: byte by byte they take next to nothing.
    pyarrow.parquet.write_table(
        whole,
        path,
        compression="zstd",
        compression_level=9,
        use_dictionary=["device"],
        write_statistics=times,
        column_encoding={
            **dict.fromkeys(times, "DELTA_BINARY_PACKED"),
            **dict.fromkeys(metrics, "BYTE_STREAM_SPLIT"),
        },
    )


def read_parquet(path: Path) -> SampleTable:
    """The table of :func:`write_parquet`; of a closed segment with its state.

    Raises
    ------
    ValueError
        No Parquet, or not of ours.
    """
    import pyarrow.parquet  # noqa: PLC0415 - slow to import, and no part of recording

    # By its content alone: the name of a folder above says nothing of columns.
    with pyarrow.parquet.ParquetFile(os.fspath(path)) as file:
        content = file.read()
    if content.schema.metadata is None or b"devices" not in content.schema.metadata:
        raise ValueError("it names no devices")
    given = {key.decode(): value.decode() for key, value in content.schema.metadata.items()}
    provenance = Provenance.from_metadata(given)
    table = table_of_wide(content, provenance)
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
