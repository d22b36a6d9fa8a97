"""Time grid of a job: the slots in which the samples of all its devices belong together.

It also makes means over several intervals, as a recording at a longer interval would hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import Columns, SampleTable
from .levels import Flags, Floats

Numbers = NDArray[np.int64]

#: Slots that are held as a matrix of all GPUs at once: 1 024 GPUs take 32 MB.
_BLOCK = 4096


@dataclass(frozen=True)
class TimeGrid:
    """Slots of one sampling interval each, from the first sample to the last.

    Parameters
    ----------
    interval
        Seconds from one slot to the next.
    occupied
        Numbers of the slots in which any GPU has a sample, ascending. Empty slots take no memory, even if a
        clock was set wrong.
    """

    first_ns: int
    last_ns: int
    interval: float
    occupied: Numbers

    def expected(self, first_ns: int, last_ns: int) -> int:
        """Return how many samples a GPU should have between two times, both included."""
        return max(0, round((last_ns - first_ns) / (self.interval * 1e9)) + 1)

    def indices(self, time_ns: Numbers) -> tuple[Numbers, Flags]:
        """Return the slot of each time as an index into `occupied`, and whether that slot is occupied."""
        slots = _slots(time_ns, self.first_ns, self.interval)
        if not len(self.occupied):
            return np.zeros(len(slots), np.int64), np.zeros(len(slots), np.bool_)
        found = np.minimum(np.searchsorted(self.occupied, slots), len(self.occupied) - 1)
        return found, self.occupied[found] == slots


def _slots(time_ns: Numbers, first_ns: int, interval: float) -> Numbers:
    slots: Numbers = np.rint((time_ns - first_ns) / (interval * 1e9)).astype(np.int64)
    return slots


def time_grid_of(table: SampleTable) -> TimeGrid:
    """Return the grid of a table.

    Where its interval is unknown, it is the median distance of the GPUs' samples; 1 s for one sample.
    """
    times = [table[device.uuid]["time_ns"] for device in table.gpus]
    times = [each for each in times if len(each)]
    if not times:
        return TimeGrid(0, 0, table.interval or 1.0, np.zeros(0, np.int64))
    steps = [float(np.median(np.diff(each))) / 1e9 for each in times if len(each) > 1]
    interval = table.interval or (float(np.median(steps)) if steps else 0.0) or 1.0
    first_ns = int(min(each[0] for each in times))
    occupied = np.unique(np.concatenate([_slots(each, first_ns, interval) for each in times]))
    return TimeGrid(first_ns, int(max(each[-1] for each in times)), interval, occupied)


def intervals_of(table: SampleTable, grid: TimeGrid) -> tuple[float, ...]:
    """Return the sampling intervals that a run was recorded with, in seconds, ascending."""
    found = {segment.interval for segment in table.segments if segment.interval and segment.rows}
    return tuple(sorted(found)) or (grid.interval,)


def durations_of(time_ns: Numbers, intervals: Sequence[float]) -> Floats:
    """Return the seconds that each sample covers: the interval of its recorder, despite gaps."""
    if len(intervals) < 2 or len(time_ns) < 2:
        return np.full(len(time_ns), intervals[0])
    steps = np.diff(time_ns) / 1e9
    # The nearer neighbour counts: a pause on the other side does not lengthen a sample.
    near = np.minimum(np.append(steps, np.inf), np.insert(steps, 0, np.inf))
    place = np.searchsorted(np.asarray(intervals), 1.25 * near, side="right") - 1
    durations: Floats = np.asarray(intervals, np.float64)[np.maximum(place, 0)]
    return durations


def nearest_rows(time_ns: Numbers, others_ns: Numbers, within_ns: float) -> tuple[Numbers, Flags]:
    """Return for each time the row of the nearest other time, and whether that is near enough."""
    if not len(others_ns):
        return np.zeros(len(time_ns), np.int64), np.zeros(len(time_ns), np.bool_)
    after = np.minimum(np.searchsorted(others_ns, time_ns), len(others_ns) - 1)
    before = np.maximum(after - 1, 0)
    closer = np.abs(others_ns[before] - time_ns) < np.abs(others_ns[after] - time_ns)
    rows = np.where(closer, before, after)
    return rows, np.abs(others_ns[rows] - time_ns) <= within_ns


def max_and_median(rows: Sequence[tuple[Numbers, Floats]], length: int) -> tuple[Floats, Floats]:
    """Return the maximum and the lower median of several devices in each slot; NaN where none is known."""
    top, middle = np.full(length, np.nan), np.full(length, np.nan)
    for start in range(0, length, _BLOCK):
        end = min(length, start + _BLOCK)
        block = np.full((len(rows), end - start), np.nan)
        for number, (slots, values) in enumerate(rows):
            chosen = slice(*np.searchsorted(slots, (start, end)))
            block[number, slots[chosen] - start] = values[chosen]
        block.sort(axis=0)  # NaN last
        known = np.isfinite(block).sum(axis=0)
        some = np.flatnonzero(known)
        top[start + some] = block[known[some] - 1, some]
        middle[start + some] = block[(known[some] - 1) // 2, some]
    return top, middle


#: Number of samples of which a coarser one is the mean.
COARSENING = 10


def coarsen(table: SampleTable, factor: int) -> SampleTable:
    """Return a table of means over `factor` intervals; missing values don't count, bit masks are combined."""
    interval = time_grid_of(table).interval * factor
    columns = {
        device.uuid: coarsen_columns(table[device.uuid], int(interval * 1e9))
        for device in table.devices
        if device.uuid in table
    }
    return replace(table, columns=columns, interval=interval, segments=())


def coarsen_columns(columns: Columns, span_ns: int) -> Columns:
    """Return the means of one device's samples over periods of so many nanoseconds."""
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
