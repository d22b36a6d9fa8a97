"""All samples of a table in one file for other programs: Parquet or CSV."""

import os
import tempfile
from pathlib import Path

import pyarrow as pa

from ..sample import SampleTable
from .parquet import write_parquet
from .wide_table import wide_of_table


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


def _write_csv(table: SampleTable, path: Path) -> None:
    """Comma-separated, names quoted where needed; node, name, kind and index of a device in each row."""
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
    """A text in one line that no spreadsheet takes for a formula."""
    safe = "".join(letter if letter.isprintable() else " " for letter in text)
    return f"'{safe}" if safe[:1] in ("=", "+", "-", "@") else safe
