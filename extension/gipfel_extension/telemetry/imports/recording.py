"""Result of an import: a table, with notes on what the format lacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..metric_table import GPU_METRICS
from ..sample import Columns, Device, SampleTable


@dataclass(frozen=True)
class Recording:
    """Samples from a file or directory.

    Parameters
    ----------
    label
        Name of the recorded job, run or file.
    notes
        Sentences about missing or inexact data.
    ranks
        GPU UUIDs by rank, where the format has them.
    """

    table: SampleTable
    label: str
    notes: tuple[str, ...] = ()
    ranks: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def merged(cls, parts: Sequence["Recording"], label: str) -> "Recording":
        """Merge several files of one job, without duplicate notes.

        Where several files have the same GPU, because processes shared it, the first file's samples are used.
        """
        devices: dict[str, Device] = {}
        columns: dict[str, Columns] = {}
        for part in parts:
            for device in part.table.devices:
                columns.setdefault(device.uuid, part.table[device.uuid])
                devices.setdefault(device.uuid, device)
        ranks: dict[int, list[str]] = {}
        for part in parts:
            for rank, gpus in part.ranks.items():
                ranks.setdefault(rank, []).extend(gpus)
        first = parts[0].table
        return cls(
            SampleTable(tuple(devices.values()), columns, first.source, first.interval),
            label,
            tuple(dict.fromkeys(note for part in parts for note in part.notes)),
            ranks,
        )


def gpu_columns(time_ns: NDArray[np.int64], values: Mapping[str, NDArray[np.float64]]) -> Columns:
    """Return the columns of a GPU: all usual metrics, NaN where the format lacks them, and additional ones.

    Rows are sorted by time. ``monotonic_ns`` is 0, because other formats do not have it.
    """
    order = np.argsort(time_ns, kind="stable")
    columns: Columns = {"time_ns": time_ns[order], "monotonic_ns": np.zeros(len(time_ns), np.int64)}
    for metric in dict.fromkeys((*GPU_METRICS, *values)):
        columns[metric] = values[metric][order] if metric in values else np.full(len(time_ns), np.nan)
    return columns
