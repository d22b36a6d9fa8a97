"""What advice is: a sentence, what to do, what it may gain, and where on the plots to see why."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...telemetry.sample import Device, SampleTable
from ..levels import Flags, Floats, column
from ..result import JobScore, Trace
from ..settings import Settings

#: Share of a sample that a loss must have to be seen in it.
SEEN = 0.1


@dataclass(frozen=True)
class Evidence:
    """Series of one device and the stretch of time in which they show it best.

    ``start_ns`` and ``end_ns`` are UTC; `device` is a UUID; `metrics` are names of its columns.
    """

    device: str
    metrics: tuple[str, ...]
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Knob:
    """What to turn, and the page that documents it."""

    name: str
    link: str


@dataclass(frozen=True)
class Advice:
    """One piece of advice.

    Parameters
    ----------
    rule
        The rule's name.
    sentence, action
        What was seen, and what to do.
    gain
        Points of the score that it may give back at most; 0 where it makes the same work shorter instead.
    expect
        The gain in words.
    """

    rule: str
    sentence: str
    action: str
    gain: float
    expect: str
    knob: Knob
    evidence: tuple[Evidence, ...]

    def to_json(self) -> dict[str, Any]:
        """The advice as a dictionary that JSON can hold."""
        return {**asdict(self), "gain": round(self.gain, 1)}


@dataclass(frozen=True)
class Case:
    """What the rules look at: the samples, and the score that they gave."""

    table: SampleTable
    job: JobScore
    settings: Settings

    def loss(self, *names: str) -> float:
        """Points that the job lost by these causes together."""
        return sum(self.job.total.losses[name] for name in names) if self.job.total else 0.0

    def worst(self, name: str) -> Trace:
        """The GPU that lost most by a cause."""
        return max(self.scored, key=lambda trace: _mean(trace, trace.losses[name]))

    @cached_property
    def scored(self) -> tuple[Trace, ...]:
        """The GPUs with a scored sample."""
        return tuple(trace for trace in self.job.traces if trace.scored.any())

    @cached_property
    def lagging(self) -> NDArray[np.int64]:
        """The beats in which some GPU loses by imbalance, ascending."""
        found = [
            self.beats(trace)[seen(trace.losses["imbalance"], 0.25) & trace.scored] for trace in self.scored
        ]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def beats(self, trace: Trace) -> NDArray[np.int64]:
        """The number of the beat of each sample of a GPU, the same for all GPUs."""
        beats: NDArray[np.int64] = trace.levels.time_ns // max(1, int(self.job.interval * 1e9))
        return beats

    def column(self, trace: Trace, metric: str) -> Floats:
        """A metric of a GPU; NaN where it is missing."""
        return column(self.table.of(trace.device.uuid), metric)

    def name(self, device: Device) -> str:
        """How people call a GPU: its number, with its node where there are several."""
        number = device.uuid if device.index is None else str(device.index)
        several = len({score.device.node for score in self.job.gpus}) > 1
        return f"GPU {number} of {device.node}" if several and device.node else f"GPU {number}"

    def evidence(self, trace: Trace, shown: Flags, metrics: Sequence[str]) -> Evidence | None:
        """Where a mask holds longest, with the metrics that have values there; None without any."""
        found = longest(shown & trace.scored)
        if found is None:
            return None
        rows = slice(found[0], found[1] + 1)
        held = [metric for metric in metrics if np.isfinite(self.column(trace, metric)[rows]).any()]
        times = trace.levels.time_ns[rows]
        start_ns = int(times[0] - trace.seconds[found[0]] * 1e9)
        return Evidence(trace.device.uuid, tuple(held), start_ns, int(times[-1])) if held else None

    def host_evidence(self, host: Device, beside: Evidence, metrics: Sequence[str]) -> Evidence | None:
        """The host's metrics over the same stretch, those that have values there."""
        columns = self.table.of(host.uuid)
        inside = (columns["time_ns"] >= beside.start_ns) & (columns["time_ns"] <= beside.end_ns)
        held = [metric for metric in metrics if np.isfinite(column(columns, metric)[inside]).any()]
        return Evidence(host.uuid, tuple(held), beside.start_ns, beside.end_ns) if held else None


class Rule(Protocol):
    """A pattern on samples, and what to say where it is found."""

    name: str
    knob: Knob

    def find(self, case: Case) -> Advice | None:
        """The advice, None where the pattern or its evidence is missing."""
        ...


def longest(shown: Flags) -> tuple[int, int] | None:
    """First and last row of the longest stretch that is shown."""
    edges = np.diff(np.concatenate(([False], shown, [False])).astype(np.int8))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    if not len(starts):
        return None
    place = int(np.argmax(ends - starts))
    return int(starts[place]), int(ends[place])


def seen(values: Floats, least: float = SEEN) -> Flags:
    """Where a value is at least so much; missing ones are not."""
    with np.errstate(invalid="ignore"):
        return np.asarray(values >= least, np.bool_)


def share(trace: Trace, shown: Flags) -> float:
    """Share of the scored time in which a mask holds."""
    return _mean(trace, shown.astype(np.float64))


def points(gain: float) -> str:
    """A gain in words: the most that it can be."""
    return f"at most {gain:.0f} points, or {1 / max(0.01, 1 - gain / 100):.2f} times the speed"


def _mean(trace: Trace, values: Floats) -> float:
    seconds = trace.seconds[trace.scored]
    return float(values[trace.scored] @ seconds / seconds.sum())
