"""Samples as means over several intervals each: what a coarser recording would have held."""

from dataclasses import replace

import numpy as np

from ..telemetry.sample import Columns, SampleTable
from .beats import beats_of

#: How many samples a coarser one is the mean of.
COARSER = 10


def means(table: SampleTable, factor: int) -> SampleTable:
    """A table of means over `factor` intervals each; a missing value counts for none, masks are united."""
    interval = beats_of(table).interval * factor
    columns = {
        device.uuid: column_means(table.of(device.uuid), int(interval * 1e9))
        for device in table.devices
        if device.uuid in table
    }
    return replace(table, columns=columns, interval=interval, segments=())


def column_means(columns: Columns, span_ns: int) -> Columns:
    """Return the means of one device's samples over stretches of so many nanoseconds."""
    time_ns = columns["time_ns"]
    if not len(time_ns):
        return columns
    starts = np.flatnonzero(np.diff(time_ns // max(1, span_ns), prepend=-1))
    found: Columns = {"time_ns": time_ns[starts], "monotonic_ns": columns["monotonic_ns"][starts]}
    for metric, values in columns.items():
        if metric in found:
            continue
        known = np.isfinite(values)
        if metric == "CLOCKS_EVENT_REASONS":
            bits = np.where(known, values, 0.0).astype(np.int64)
            merged = np.bitwise_or.reduceat(bits, starts).astype(np.float64)
        else:
            merged = np.add.reduceat(np.where(known, values, 0.0), starts)
            merged /= np.maximum(np.add.reduceat(known.astype(np.int64), starts), 1)
        found[metric] = np.where(np.add.reduceat(known.astype(np.int64), starts) > 0, merged, np.nan)
    return found
