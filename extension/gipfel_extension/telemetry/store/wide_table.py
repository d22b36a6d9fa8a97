"""Tables with a row per device and time and a column per metric: Parquet, and segments of version 1."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..provenance import Provenance
from ..sample import METRICS, Columns, SampleTable

#: Columns of times; of the two clocks beside ``time_ns`` a table has one.
TIMES = ("time_ns", "monotonic_ns", "clock_ns")


def table_of_wide(
    content: pa.Table, provenance: Provenance, metrics: Collection[str] | None = None
) -> SampleTable:
    """The samples of such a table; a metric without a column is missing.

    Parameters
    ----------
    metrics
        The only ones that are wanted; None for all.

    Raises
    ------
    ValueError
        Times or devices are missing, or a column holds no numbers.
    """
    for name in ("time_ns", "device"):
        if name not in content.column_names:
            raise ValueError(f"it has no column {name}")
    owners, names = _owners(content.column("device"))
    held: dict[str, NDArray[Any]] = {}
    held["time_ns"] = _numbers(content, "time_ns", np.int64)
    held["monotonic_ns"] = _monotonic(content, held["time_ns"])
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


def wide_of_table(table: SampleTable) -> pa.Table:
    """The rows of all devices, one device after the other, by time; a metric that nobody has is left out.

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
        metrics = {name: column for name, column in columns.items() if name not in TIMES}
        values = {name: pa.array(c, from_pandas=True) for name, c in (times | metrics).items()}
        parts.append(pa.table({"device": device_column, **values}))
    return pa.concat_tables(parts, promote_options="default").unify_dictionaries() if parts else _empty()


def _owners(column: pa.ChunkedArray) -> tuple[NDArray[Any], dict[str, int]]:
    """Which device each row is of, as a number, and the number of each."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([]).dictionary_encode()
    names = {str(name): place for place, name in enumerate(whole.dictionary.to_pylist())}
    return whole.indices.fill_null(-2).to_numpy(zero_copy_only=False), names


def _monotonic(content: pa.Table, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    if "clock_ns" in content.column_names:
        difference: NDArray[np.int64] = time_ns - _numbers(content, "clock_ns", np.int64)
        return difference
    if "monotonic_ns" not in content.column_names:
        raise ValueError("it has no column monotonic_ns")
    known: NDArray[np.int64] = _numbers(content, "monotonic_ns", np.int64)
    return known


def _empty() -> pa.Table:
    return pa.table(
        {"device": pa.array([], pa.string()), **{n: pa.array([], pa.int64()) for n in TIMES[::2]}}
    )


def _numbers(content: pa.Table, name: str, kind: Any) -> Any:
    if name not in content.column_names:
        return np.full(content.num_rows, np.nan)
    return content.column(name).to_numpy().astype(kind)
