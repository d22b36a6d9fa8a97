"""Tables with a row per device and time and a column per metric: Parquet, and segments of version 1."""

from typing import Any

import numpy as np
import pyarrow as pa

from .provenance import Provenance
from .sample import METRICS, Columns, SampleTable

_COLUMNS = ("time_ns", "monotonic_ns", "device")


def table_of_wide(content: pa.Table, provenance: Provenance) -> SampleTable:
    """The samples of such a table; a metric without a column is missing.

    Raises
    ------
    ValueError
        Times or devices are missing, or a column holds no numbers.
    """
    missing = set(_COLUMNS) - set(content.column_names)
    if missing:
        raise ValueError(f"it has no column {sorted(missing)[0]}")
    owners = content.column("device")
    if pa.types.is_dictionary(owners.type):
        owners = owners.cast(owners.type.value_type)
    names = np.asarray(owners.to_numpy(), object)
    columns: dict[str, Columns] = {}
    for device in provenance.devices:
        chosen = np.flatnonzero(names == device.uuid)
        columns[device.uuid] = {
            "time_ns": _numbers(content, "time_ns", np.int64)[chosen],
            "monotonic_ns": _numbers(content, "monotonic_ns", np.int64)[chosen],
        }
        extra = provenance.extra if device.kind == "gpu" else ()
        for metric in dict.fromkeys((*METRICS[device.kind], *extra)):
            columns[device.uuid][metric] = _numbers(content, metric, np.float64)[chosen]
    return SampleTable(provenance.devices, columns, provenance.source, provenance.interval)


def wide_of_table(table: SampleTable) -> pa.Table:
    """The rows of all devices, one device after the other, by time; a metric that nobody has is left out."""
    parts = []
    for device in table.devices:
        columns = table.of(device.uuid)
        length = len(columns["time_ns"])
        device_column = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(length, np.int32)), pa.array([device.uuid], pa.string())
        )
        values = {name: pa.array(c, from_pandas=True) for name, c in columns.items()}
        parts.append(pa.table({"device": device_column, **values}))
    return pa.concat_tables(parts, promote_options="default").unify_dictionaries() if parts else _empty()


def _empty() -> pa.Table:
    return pa.table(
        {"device": pa.array([], pa.string()), **{n: pa.array([], pa.int64()) for n in _COLUMNS[:2]}}
    )


def _numbers(content: pa.Table, name: str, kind: Any) -> Any:
    if name not in content.column_names:
        return np.full(content.num_rows, np.nan)
    return content.column(name).to_numpy().astype(kind)
