"""What advice is: a sentence, what to do, what it may gain, and where on the plots to see why.

What a run computes, as far as its launch says: to whom advice applies.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ...telemetry.sample import Device, SampleTable
from ..levels import Flags, Floats, column
from ..result import JobScore, Trace
from ..settings import Settings

Kind = Literal["training", "inference"]
Parallelism = Literal["data", "sharded", "tensor", "pipeline"]
Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]


@dataclass(frozen=True)
class Workload:
    """What is known of a run's work; None is unknown, and contradicts nothing.

    Parameters
    ----------
    ranks
        Processes that work together.
    parallelism
        How they share the work; empty where each works alone.
    precision
        What most of its matrices are multiplied in.
    uses
        Names of the rules whose change the launch has made already.
    """

    kind: Kind | None = None
    ranks: int | None = None
    parallelism: frozenset[Parallelism] | None = None
    precision: Precision | None = None
    uses: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """The facts as a dictionary that JSON can hold; unknown ones are None."""
        return {
            "kind": self.kind,
            "ranks": self.ranks,
            "parallelism": None if self.parallelism is None else sorted(self.parallelism),
            "precision": self.precision,
            "uses": sorted(self.uses),
        }


@dataclass(frozen=True)
class Applies:
    """The work that a rule is for; what is empty says nothing about it.

    Parameters
    ----------
    text
        The same in words, after "If this is".
    parallelism
        One of these must be among the run's.
    """

    text: str = ""
    kind: Kind | None = None
    parallelism: tuple[Parallelism, ...] = ()
    precision: tuple[Precision, ...] = ()
    ranks: int = 1

    def to(self, work: Workload) -> bool | None:
        """Return whether the rule applies; None where a fact that it depends on is unknown."""
        known: list[bool | None] = [True]
        if self.kind is not None:
            known.append(None if work.kind is None else work.kind == self.kind)
        if self.parallelism:
            among = work.parallelism
            known.append(None if among is None else bool(among.intersection(self.parallelism)))
        if self.precision:
            known.append(None if work.precision is None else work.precision in self.precision)
        if self.ranks > 1:
            known.append(None if work.ranks is None else work.ranks >= self.ranks)
        return False if False in known else None if None in known else True


#: Work of any kind.
ANY = Applies()
TRAINING = Applies("training", kind="training")


#: Share of a sample that a loss must have to be seen in it.
SEEN = 0.1
#: GPUs whose losses differ by less, as a share of the time, are not told apart.
ALIKE = 0.02
_MOST_NAMED = 4


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
    applies_to
        The kind of work that it is for, such as ``training``; empty for any.
    gain_least, gain
        Bounds of the points of the score that it may give back, computed from the samples; both 0 where it
        makes the same work shorter instead.
    saved
        Share of the time that the same work may take less, at most, where it gives back no points.
    expect
        The gain in words.
    certain
        Whether the launch shows that it applies; else the action says to whom it does.
    """

    rule: str
    sentence: str
    action: str
    gain: float
    expect: str
    knob: Knob
    evidence: tuple[Evidence, ...]
    applies_to: str = ""
    gain_least: float = 0.0
    saved: float = 0.0
    certain: bool = True

    @property
    def speedup(self) -> tuple[float, float] | None:
        """Bounds of how many times faster the same work may run; None where no gain is known."""
        if self.gain > 0:
            return faster(self.gain_least / 100), faster(self.gain / 100)
        return (1.0, faster(self.saved)) if self.saved > 0 else None

    def to_json(self) -> dict[str, Any]:
        """The advice as a dictionary that JSON can hold."""
        numbers = {name: round(getattr(self, name), 1) for name in ("gain", "gain_least")}
        speedup = None if self.speedup is None else [round(each, 3) for each in self.speedup]
        return {**asdict(self), **numbers, "saved": round(self.saved, 3), "speedup": speedup}


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

    def alike(self, name: str) -> tuple[Trace, ...]:
        """The GPUs that lost about as much by a cause as the one that lost most, by node and number."""
        most = _mean(self.worst(name), self.worst(name).losses[name])
        return tuple(t for t in self.scored if _mean(t, t.losses[name]) >= most - ALIKE)

    def names(self, traces: Sequence[Trace]) -> str:
        """Return how people call several GPUs: ``All GPUs`` or ``GPUs 2 and 3``."""
        if len(traces) == len(self.scored) > 1:
            return "All GPUs"
        if len(traces) == 1 or len({trace.device.node for trace in traces}) > 1:
            names = [self.name(trace.device) for trace in traces[:_MOST_NAMED]]
        else:
            numbers = [self.name(trace.device).removeprefix("GPU ") for trace in traces[:_MOST_NAMED]]
            names = [f"GPUs {numbers[0]}", *numbers[1:]]
        if len(traces) > _MOST_NAMED:
            return f"{', '.join(names)} and {len(traces) - _MOST_NAMED} more"
        return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]

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
    applies: Applies

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


def points(gain: float, least: float = 0.0) -> str:
    """Return a gain in words: points of the score, and how much faster the same work would be."""
    speed = faster(gain / 100)
    if round(least) < 1:
        return f"up to +{gain:.0f} points (\u2264 {speed:.2f}\u00d7 faster)"
    return f"+{least:.0f} to +{gain:.0f} points ({faster(least / 100):.2f} to {speed:.2f}\u00d7 faster)"


def less_time(saved: float) -> str:
    """Return in words that the same work takes less time, by at most a share of it."""
    most = f"\u2264 {faster(saved):.2f}\u00d7 faster"
    return f"at most {100 * saved:.0f} % less time for the same work ({most})"


def faster(saved: float) -> float:
    """Return how many times faster work runs that takes a share of its time less; at most 100 times."""
    return 1 / max(0.01, 1 - saved)


def _mean(trace: Trace, values: Floats) -> float:
    seconds = trace.seconds[trace.scored]
    return float(values[trace.scored] @ seconds / seconds.sum())
