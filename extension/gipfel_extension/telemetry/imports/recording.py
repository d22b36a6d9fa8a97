"""Result of an import: a table, with notes on what the format lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..metric_table import GPU_METRICS
from ..sample import Columns, Device, SampleTable


@dataclass(frozen=True)
class Recording:
    """Samples from a file or folder.

    Parameters
    ----------
    label
        What it is a recording of: a job, a run, a file.
    notes
        What the format lost or can't hold, a sentence each.
    ranks
        Rank to the UUIDs of its GPUs, where the format knows.
    """

    table: SampleTable
    label: str
    notes: tuple[str, ...] = ()
    ranks: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def merged(cls, parts: Sequence["Recording"], label: str) -> "Recording":
        """Merge several files of one job, each note once.

        Of a GPU that several files hold, because processes shared it, the first file's samples are taken.
        """
        devices: dict[str, Device] = {}
        columns: dict[str, Columns] = {}
        for part in parts:
            for device in part.table.devices:
                columns.setdefault(device.uuid, part.table.of(device.uuid))
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
    """Return columns of a GPU: every metric of the table, NaN where a format has none, and its further ones.

    Rows are sorted by time. ``monotonic_ns`` is 0: no foreign format has it.
    """
    order = np.argsort(time_ns, kind="stable")
    columns: Columns = {"time_ns": time_ns[order], "monotonic_ns": np.zeros(len(time_ns), np.int64)}
    for metric in dict.fromkeys((*GPU_METRICS, *values)):
        columns[metric] = values[metric][order] if metric in values else np.full(len(time_ns), np.nan)
    return columns
