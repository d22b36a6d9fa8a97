"""Breakdown of what lies between 1 and the saturation, and the time grid that all devices share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..telemetry.metric_table import SCORE_PARTS
from ..telemetry.sample import Columns, Device, SampleTable, group_means
from .levels import Flags, Floats, Levels, levels_of, recorded_or
from .settings import RESOURCES, Thresholds, Weights, ceilings_of

Numbers = NDArray[np.int64]

#: Number of slots that are processed at a time, as a matrix of all GPUs: 32 MB for 1 024 GPUs.
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

    @property
    def expected(self) -> int:
        """Number of samples that a GPU should have."""
        return round((self.last_ns - self.first_ns) / (self.interval * 1e9)) + 1

    def indices(self, time_ns: Numbers) -> tuple[Numbers, Flags]:
        """Return the slot of each time as an index into `occupied`, and whether that slot is occupied."""
        slots = _slots(time_ns, self.first_ns, self.interval)
        if not len(self.occupied):
            return np.zeros(len(slots), np.int64), np.zeros(len(slots), np.bool_)
        found = np.minimum(np.searchsorted(self.occupied, slots), len(self.occupied) - 1)
        return found, self.occupied[found] == slots


def _slots(time_ns: Numbers, first_ns: int, interval: float) -> Numbers:
    return np.rint((time_ns - first_ns) / (interval * 1e9)).astype(np.int64)


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
    found = {segment.provenance.interval for segment in table.segments if segment.rows}
    return tuple(sorted(filter(None, found))) or (grid.interval,)


def durations_of(time_ns: Numbers, intervals: Sequence[float]) -> Floats:
    """Return the seconds that each sample covers: the interval of its recorder, despite gaps."""
    if len(intervals) < 2 or len(time_ns) < 2:
        return np.full(len(time_ns), intervals[0])
    steps = np.diff(time_ns) / 1e9
    # The nearer neighbour counts: a pause on the other side does not lengthen a sample.
    near = np.minimum(np.append(steps, np.inf), np.insert(steps, 0, np.inf))
    place = np.searchsorted(np.asarray(intervals), 1.25 * near, side="right") - 1
    return np.asarray(np.take(intervals, np.maximum(place, 0)), np.float64)


def nearest_rows(time_ns: Numbers, others_ns: Numbers, within_ns: float) -> tuple[Numbers, Flags]:
    """Return for each time the row of the nearest other time, and whether it is at most `within_ns` away."""
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


#: Number of samples whose mean is one coarser sample.
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
    """Return the means of one device's samples over periods of `span_ns`."""
    time_ns = columns["time_ns"]
    if not len(time_ns):
        return columns
    starts = np.flatnonzero(np.diff(time_ns // max(1, span_ns), prepend=-1))
    found: Columns = {"time_ns": time_ns[starts], "monotonic_ns": columns["monotonic_ns"][starts]}
    for metric, values in columns.items():
        if metric in found:
            continue
        found[metric] = group_means(values, starts)
        if metric == "CLOCKS_EVENT_REASONS":
            bits = np.where(np.isfinite(values), values, 0.0).astype(np.int64)
            merged = np.bitwise_or.reduceat(bits, starts)
            found[metric] = np.where(np.isfinite(found[metric]), merged, np.nan)
    return found


@dataclass(frozen=True)
class LossBreakdown:
    """Lost levels of each sample; NaN where it is not scored.

    `gpu_idle` + `sms_empty` + `sms_stalled` + saturation = 1. The README calls the levels L1, L2 and L3.

    Parameters
    ----------
    running
        Level of time in which anything ran: L1.
    busy
        Level of time in which SMs had work: L2.
    gpu_idle
        Nothing on the GPU: 1 - L1.
    sms_empty
        Engine on, SMs without work: L1 - L2.
    sms_stalled
        SMs with work, pipes and memory waiting: L2 - L3.
    """

    running: Floats
    busy: Floats
    gpu_idle: Floats
    sms_empty: Floats
    sms_stalled: Floats

    @cached_property
    def typical_busy(self) -> float:
        """Busy level that the GPU exceeds in a tenth of its samples."""
        known = self.busy[np.isfinite(self.busy)]
        return float(np.quantile(known, 0.9)) if len(known) else 0.0


def loss_breakdown_of(levels: Levels) -> LossBreakdown:
    """Return the breakdown of one GPU.

    Without SM activity, `sms_stalled` includes `sms_empty`. Without engine activity, `gpu_idle` includes it.
    """
    third = levels.saturation
    second = np.fmax(levels.active, third)
    first = np.fmax(levels.engine, second)
    second = np.where(np.isnan(levels.active), first, second)
    second = np.fmax(recorded_or(levels.recorded_parts, "SCORE_BUSY", second), third)
    first = np.fmax(recorded_or(levels.recorded_parts, "SCORE_RUNNING", first), second)
    first, second = (np.where(levels.known, level, np.nan) for level in (first, second))
    return LossBreakdown(first, second, 1.0 - first, first - second, second - third)


#: Maximum work that counts as initialization: as a share of the time until then, and of all work.
_MAX_BEFORE, _MAX_OF_WORK = 0.03, 0.1


def work_start_ns(gpus: Sequence[tuple[Levels, LossBreakdown]], grid: TimeGrid, limits: Thresholds) -> int:
    """Return the UTC time (ns) at which the work of the job's first GPU begins; the first if none ever works.

    This is the end of the longest pause before which hardly any work was done, so that a warm-up kernel or
    the first connection of ranks does not end the start-up.
    """
    rows = [(grid.indices(levels.time_ns)[0], steps.running) for levels, steps in gpus]
    busiest = np.nan_to_num(max_and_median(rows, len(grid.occupied))[0]) if rows else np.zeros(0)
    works = busiest >= limits.works
    if not works.any():
        return grid.first_ns
    begins = np.flatnonzero(works & ~np.concatenate([[False], works[:-1]]))
    ends = np.flatnonzero(works & ~np.concatenate([works[1:], [False]]))
    before = (np.cumsum(busiest) - busiest)[begins]
    elapsed = grid.occupied[begins] + 1
    candidate = (before <= _MAX_BEFORE * elapsed) & (before <= _MAX_OF_WORK * busiest.sum())
    pause = grid.occupied[begins] - np.concatenate([[-1], grid.occupied[ends[:-1]]])
    begin = begins[int(np.argmax(np.where(candidate, pause, -1)))]
    return grid.first_ns + int(grid.occupied[begin] * grid.interval * 1e9)


def score_parts(gpu: Device, columns: Columns, share: float) -> dict[str, float | None]:
    """Return the means of a GPU's samples by the names of `SCORE_PARTS`; None where no sample is scored.

    Parameters
    ----------
    share
        Share of a second that one sample covers.
    """
    levels = levels_of(columns, ceilings_of(gpu.name), Weights())
    steps, known = loss_breakdown_of(levels), levels.known
    if not known.any():
        return dict.fromkeys(SCORE_PARTS)
    engine = levels.engine[known & np.isfinite(levels.engine)]
    scored = min(1.0, share * int(known.sum()))

    def mean(values: Floats) -> float:
        return scored * float(values[known].mean())

    found: dict[str, float | None] = {
        "SCORE_SHARE": scored,
        "SCORE_RUNNING": mean(steps.running),
        "SCORE_BUSY": mean(steps.busy),
        "SCORE_LOWER_BOUND": mean(levels.lower_bound),
        "SCORE_SPREAD": float(engine.std()) if len(engine) else None,
    }
    by_resource = {
        "POINTS": levels.points,
        "BINDING_SHARE": levels.binding_share,
        "SEQUENTIAL_POINTS": levels.sequential_points,
    }
    return found | {
        f"SCORE_{part}_{name.upper()}": mean(values[name])
        for part, values in by_resource.items()
        for name in RESOURCES
    }
