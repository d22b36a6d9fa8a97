"""Pace of a job's steps, and what interrupts them: set-up, checkpoints, evaluations, pauses, and their cost.

An interval between two steps that takes longer than usual is an interruption; a phase has all interruptions
of one kind. The duration of steps is not derived from samples alone: with one sample per second, steps
shorter than 3.5 s look like longer ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import SampleTable
from .robust import NORMAL, Floats
from .steps import StepTable

#: Kinds of phases, with their names in the singular and plural.
NAMES = {
    "set_up": ("set-up", "set-ups"),
    "checkpoint": ("checkpoint", "checkpoints"),
    "evaluation": ("evaluation", "evaluations"),
    "regular": ("checkpoint or evaluation", "checkpoints or evaluations"),
    "pause": ("pause", "pauses"),
}
#: An interval is interrupted if it exceeds the median of its neighbours by this share and by this many
#: standard deviations; number of neighbours.
_LONGER, _SIGMAS, _AROUND = 0.5, 6.0, 25
_LEAST_STEPS = 10
#: Least number of interruptions that count as regular, and largest deviation of their distances, as a share.
_LEAST_REGULAR, _REGULAR = 3, 0.1
#: Files are written if the rate is this many times the usual rate, and at least this many bytes per second.
_BURST, _LEAST_BYTES = 5.0, 5e6
_WRITES = ("IO_WRITE_BYTES", "LUSTRE_WRITE_BYTES", "NFS_WRITE_BYTES")
#: GPUs work during an interruption if their activity is at least this share of their usual activity.
_ACTIVE = 0.3
_ACTIVITY = ("PIPE_TENSOR_ACTIVE", "SM_ACTIVE", "GPU_UTIL")
#: Share of the distances between interruptions that must be close to the usual distance.
_CLEAR = 0.8
#: Rows of equal distances among other interruptions: how equal, how many others may be between two, how many
#: such rows as long chance may make, and the most interruptions that are searched.
_EQUAL, _BETWEEN, _CHANCE, _MOST_IN_ROWS = 0.02, 5, 0.01, 200
_LEAST_DISTANCE = 5


@dataclass(frozen=True)
class Phase:
    """Interruptions of one kind.

    Parameters
    ----------
    times_ns
        UTC nanoseconds of their beginnings.
    seconds
        Total cost in seconds, beyond the usual duration of the steps.
    every
        Number of steps from one interruption to the next; None if they are not regular.
    each_s
        Cost of each interruption in seconds.
    """

    kind: str
    times_ns: tuple[int, ...]
    seconds: float
    every: int | None = None
    each_s: tuple[float, ...] = ()

    @property
    def spans_ns(self) -> tuple[tuple[int, int], ...]:
        """Beginning and end of each interruption, in UTC nanoseconds."""
        pairs = zip(self.times_ns, self.each_s, strict=True)
        return tuple((begin, begin + int(seconds * 1e9)) for begin, seconds in pairs)

    def sentence(self, total_s: float) -> str:
        """Return a sentence on number, distance and cost of the interruptions in a run of `total_s`."""
        count = len(self.times_ns)
        name = NAMES[self.kind][count != 1]
        often = f", every {self.every} steps" if self.every else ""
        each = f", {duration_text(self.seconds / count)} each" if count > 1 else ""
        share = f" ({self.seconds / total_s:.1%} of the run)" if total_s > 0 else ""
        text = f"{count} {name}{often}{each}: {duration_text(self.seconds)} in all{share}."
        return f"Set-up: {duration_text(self.seconds)}{share}." if self.kind == "set_up" else text


@dataclass(frozen=True)
class RunPhases:
    """Pace of a run's steps and its interruptions.

    Parameters
    ----------
    step_s, scatter
        Usual duration of a step in seconds, and its standard deviation as a share.
    total_s
        Seconds from the beginning of the run, or from the first step if that is unknown, to the last step.
    """

    step_s: float
    scatter: float
    steps: int
    total_s: float
    phases: tuple[Phase, ...] = field(default=())

    @property
    def cost_s(self) -> float:
        """Total cost of all interruptions in seconds."""
        return sum(each.seconds for each in self.phases)

    def sentences(self) -> list[str]:
        """Return a sentence on the pace and one on each kind of interruption."""
        pace = (
            f"A step takes {duration_text(self.step_s)} (± {self.scatter:.1%} from step to step); "
            f"{self.steps} steps in {duration_text(self.total_s)}."
        )
        return [pace, *(each.sentence(self.total_s) for each in self.phases)]

    def to_json(self) -> dict[str, Any]:
        """Return the document as ``gipfel diagnose --json`` prints it."""
        return {
            "step_s": round(self.step_s, 6), "scatter": round(self.scatter, 4), "steps": self.steps,
            "total_s": round(self.total_s, 3),
            "phases": [
                {"kind": each.kind, "count": len(each.times_ns), "seconds": round(each.seconds, 3),
                 "every": each.every, "times_ns": list(each.times_ns)}
                for each in self.phases
            ],
        }  # fmt: skip


def find_phases(
    steps: StepTable,
    samples: SampleTable | None = None,
    begin_ns: int | None = None,
    explained: Sequence[tuple[int, int]] = (),
) -> RunPhases | None:
    """Return the pace and the interruptions of a run; None if too few steps show how long one usually takes.

    Parameters
    ----------
    samples
        Samples, which distinguish checkpoints (files are written) from evaluations (GPUs work). Without
        samples, a regular interruption may be either.
    begin_ns
        UTC nanoseconds at which the ranks were started; None if unknown.
    explained
        Beginnings and ends, in UTC nanoseconds, of periods that interrupt steps for a known reason. Steps in
        these periods are left out; with them, other interruptions would not look regular.
    """
    seconds, numbers = step_intervals(steps)
    if len(seconds) < _LEAST_STEPS:
        return None
    times_ns = steps.time_ns[-len(seconds) :]
    each = seconds / numbers
    usual = _around(each)
    sigma = NORMAL * float(np.median(np.abs(each / usual - 1)))
    # An interval may cover several steps: subtract the usual duration of all of them.
    excess = seconds - usual * numbers
    long = excess > np.maximum(_LONGER, _SIGMAS * sigma) * usual
    for begin, end in explained:
        long &= (times_ns <= begin) | (times_ns - (seconds * 1e9).astype(np.int64) >= end)
    first = int(np.argmin(long)) if not long.all() else 0
    found = _set_up(steps, float(usual[first]), first, excess, begin_ns)
    columns = [int(column) for column in np.flatnonzero(long) if column >= first]
    ends = {column: int(times_ns[column]) for column in columns}
    begins = {column: ends[column] - int(excess[column] * 1e9) for column in columns}
    kinds = {column: _kind(samples, begins[column], ends[column]) for column in columns}
    step = steps.steps[-len(seconds) :]
    unknown = [column for column in columns if kinds[column] == "unknown"]
    regular = _regular(step[unknown], len(seconds))
    groups = {
        "checkpoint": [column for column in columns if kinds[column] == "checkpoint"],
        "evaluation": [column for column in columns if kinds[column] == "evaluation"],
        "regular": [unknown[place] for place in regular],
        "pause": [column for place, column in enumerate(unknown) if place not in regular],
    }
    for name, own in groups.items():
        if own:
            every = _every(step[own]) if name != "pause" else None
            each_s = tuple(float(excess[column]) for column in own)
            found.append(Phase(name, tuple(begins[column] for column in own), sum(each_s), every, each_s))
    start = int(steps.time_ns[0]) if begin_ns is None else begin_ns
    total = max(float(seconds.sum()), (int(steps.time_ns[-1]) - start) / 1e9 if steps.time_ns[0] > 0 else 0.0)
    return RunPhases(float(np.median(usual)), sigma, len(steps.steps), total, tuple(found))


def step_intervals(steps: StepTable) -> tuple[Floats, NDArray[np.int64]]:
    """Return seconds and number of steps of each interval between one log line and the next.

    Reported durations may leave out what a training loop does between two steps; the lines' times do not.
    """
    if len(steps.steps) < 2:
        return np.empty(0), np.empty(0, np.int64)
    numbers = np.maximum(1, np.diff(steps.steps))
    reported = steps.pace[1:] * numbers
    gaps = np.diff(steps.time_ns) / 1e9
    seconds = np.fmax(np.where(gaps > 0, gaps, np.nan), reported)
    return np.where(np.isnan(seconds), 0.0, seconds), numbers


def _around(values: Floats) -> Floats:
    """Return the median of the values around each one."""
    width = min(_AROUND, len(values) - 1 + len(values) % 2)
    padded = np.pad(values, width // 2, mode="reflect")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1))[
        : len(values)
    ]


def _set_up(steps: StepTable, usual: float, first: int, excess: Floats, begin_ns: int | None) -> list[Phase]:
    """Return the set-up phase: the time before the first usual step, as far as it is known."""
    cost, start = float(excess[:first].sum()), int(steps.time_ns[0])
    if begin_ns is not None and 0 < begin_ns < start:
        cost += max(0.0, (start - begin_ns) / 1e9 - usual)
        start = begin_ns
    return [Phase("set_up", (start,), cost, None, (cost,))] if cost > usual else []


def _kind(samples: SampleTable | None, begin_ns: int, end_ns: int) -> str:
    """Return ``checkpoint`` or ``evaluation`` where samples show one, else ``unknown``."""
    if samples is None:
        return "unknown"
    for host in samples.hosts:
        columns = samples[host.uuid]
        inside = _within(columns["time_ns"], begin_ns, end_ns)
        for metric in _WRITES:
            if metric in columns and inside.any():
                now, usual = _mean(columns[metric][inside]), _usual(columns[metric][~inside])
                if now > max(_LEAST_BYTES, _BURST * usual):
                    return "checkpoint"
    shares = []
    for gpu in samples.gpus:
        columns = samples[gpu.uuid]
        inside = _within(columns["time_ns"], begin_ns, end_ns)
        for metric in _ACTIVITY:
            usual = _usual(columns[metric][~inside]) if metric in columns else 0.0
            if usual > 0 and inside.any():
                shares.append(_mean(columns[metric][inside]) / usual)
                break
    return "evaluation" if shares and float(np.median(shares)) > _ACTIVE else "unknown"


def _within(times_ns: NDArray[np.int64], begin_ns: int, end_ns: int) -> NDArray[np.bool_]:
    return np.asarray((times_ns >= begin_ns) & (times_ns <= end_ns))


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


def _usual(values: Floats) -> float:
    """Return the median of the known values; interruptions in less than half of the run don't change it."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else 0.0


def _regular(numbers: NDArray[np.int64], steps: int) -> list[int]:
    """Return the indices of the interruptions that are evenly spaced.

    They are all interruptions, or the longest evenly spaced row among them if chance rarely makes one so
    long.

    Parameters
    ----------
    numbers
        Numbers of the interrupted steps, ascending.
    steps
        Number of steps of the run.
    """
    if _every(numbers):
        return list(range(len(numbers)))
    best: list[int] = []
    tried = 0
    for first in range(len(numbers)) if len(numbers) <= _MOST_IN_ROWS else ():
        for second in range(first + 1, min(first + 1 + _BETWEEN, len(numbers))):
            distance = int(numbers[second] - numbers[first])
            if distance < _LEAST_DISTANCE:
                continue
            tried += 1
            row = _row(numbers, first, second)
            near = min(1.0, len(numbers) * (2 * _tolerance(distance) + 1) / steps)
            # The first two set the distance; each further one matches by chance with probability `near`.
            if len(row) > len(best) and tried * near ** (len(row) - 2) < _CHANCE:
                best = row
    return best


def _row(numbers: NDArray[np.int64], first: int, second: int) -> list[int]:
    """Return the indices of the interruptions that continue the distance between two of them."""
    distance = int(numbers[second] - numbers[first])
    row = [first, second]
    while True:
        expected = numbers[row[-1]] + distance
        place = int(np.argmin(np.abs(numbers - expected)))
        if place <= row[-1] or abs(int(numbers[place] - expected)) > _tolerance(distance):
            return row
        row.append(place)


def _tolerance(distance: int) -> int:
    return max(1, round(_EQUAL * distance))


def _every(numbers: NDArray[np.int64]) -> int | None:
    """Return the distance between ascending steps if it is regular, else None."""
    distances = np.diff(numbers)
    if len(distances) < _LEAST_REGULAR - 1:
        return None
    middle = float(np.median(distances))
    spread = float(np.median(np.abs(distances - middle)))
    near = float((np.abs(distances - middle) <= max(1.0, _REGULAR * middle)).mean())
    return round(middle) if spread <= _REGULAR * middle and near >= _CLEAR else None


def duration_text(seconds: float) -> str:
    """Return a duration for people: ``0.43 s``, ``12 s``, ``4 min 10 s``, ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
