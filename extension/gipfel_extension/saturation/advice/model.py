"""Model of advice: what was seen, what to do, the possible gain, and the evidence on the plots.

`Workload` is what is known of a run's work, `Applicability` the work that a rule is for, `AdviceContext` what
rules read.
"""

from collections.abc import Callable, Sequence
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
    """Facts about a run's work, from its launch; None means unknown and excludes no rule.

    Parameters
    ----------
    ranks
        Number of processes that work together.
    parallelism
        How the ranks share the work; empty if they work independently.
    precision
        Number format of most matrix products.
    uses
        Names of the rules whose advised change the launch already uses.
    """

    kind: Kind | None = None
    ranks: int | None = None
    parallelism: frozenset[Parallelism] | None = None
    precision: Precision | None = None
    uses: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """Return the facts for JSON; unknown ones are None."""
        return {
            "kind": self.kind,
            "ranks": self.ranks,
            "parallelism": None if self.parallelism is None else sorted(self.parallelism),
            "precision": self.precision,
            "uses": sorted(self.uses),
        }


@dataclass(frozen=True)
class Applicability:
    """Work that a rule is for; empty fields match any work.

    Parameters
    ----------
    text
        The kind of work in words, to follow "If this is".
    parallelism
        At least one of these must be among the run's ways of sharing the work.
    """

    text: str = ""
    kind: Kind | None = None
    parallelism: tuple[Parallelism, ...] = ()
    precision: tuple[Precision, ...] = ()
    ranks: int = 1

    def matches(self, work: Workload) -> bool | None:
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
ANY = Applicability()
TRAINING = Applicability("training", kind="training")


#: Share of a sample from which a loss counts as present in it.
PRESENT = 0.1
#: GPUs whose losses differ by less than this share of the time count as equally affected.
ALIKE = 0.02
_MAX_NAMED = 4


@dataclass(frozen=True)
class Evidence:
    """Metrics of one device, and the time range in which they show the pattern best.

    ``start_ns`` and ``end_ns`` are UTC; `device` is a UUID; `metrics` are names of its columns.
    """

    device: str
    metrics: tuple[str, ...]
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Knob:
    """Setting to change, and the page that documents it."""

    name: str
    link: str


@dataclass(frozen=True)
class Advice:
    """One piece of advice.

    Parameters
    ----------
    rule
        Name of the rule.
    sentence, action
        What was seen, and what to do.
    applies_to
        The kind of work that it is for, such as ``training``; empty for any.
    gain_least, gain
        Bounds of the points that the score may gain, computed from the samples; both 0 where the same work
        takes less time instead.
    time_saved
        Largest share (0 to 1) by which the time of the same work may fall; for advice that gains no points.
    gain_text
        The gain in words.
    loss
        The loss that following the advice reduces; empty if it reduces none or several.
    gpus
        UUIDs of the GPUs that the sentence names, by which `debounce` notices that it names others.
    points
        Points that the job lost to ``loss``.
    alternative
        True if other advice for the same loss comes first: only its action is shown.
    certain
        True if the launch shows that the advice applies; else the action begins with "If this is …".
    """

    rule: str
    sentence: str
    action: str
    gain: float
    gain_text: str
    knob: Knob
    evidence: tuple[Evidence, ...]
    applies_to: str = ""
    gain_least: float = 0.0
    time_saved: float = 0.0
    certain: bool = True
    loss: str = ""
    gpus: tuple[str, ...] = ()
    points: float = 0.0
    alternative: bool = False

    @property
    def speedup(self) -> tuple[float, float] | None:
        """Lower and upper bound of how many times faster the same work may run; None if no gain is known."""
        if self.gain > 0:
            return speedup_of(self.gain_least / 100), speedup_of(self.gain / 100)
        return (1.0, speedup_of(self.time_saved)) if self.time_saved > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return the advice for JSON."""
        numbers = {name: round(getattr(self, name), 1) for name in ("gain", "gain_least", "points")}
        speedup = None if self.speedup is None else [round(each, 3) for each in self.speedup]
        found = {**asdict(self), **numbers, "time_saved": round(self.time_saved, 3), "speedup": speedup}
        return {key: value for key, value in found.items() if key != "gpus"}


@dataclass(frozen=True)
class AdviceContext:
    """Input of the rules: the samples, and their score."""

    table: SampleTable
    job: JobScore
    settings: Settings

    def loss(self, *names: str) -> float:
        """Return the points that the job lost to these causes together."""
        return sum(self.job.total.losses[name] for name in names) if self.job.total else 0.0

    def worst(self, name: str) -> Trace:
        """Return the GPU that lost most to a cause."""
        return max(self.scored, key=lambda trace: trace.mean(trace.losses[name]))

    @cached_property
    def scored(self) -> tuple[Trace, ...]:
        """GPUs with a scored sample."""
        return tuple(trace for trace in self.job.traces if trace.scored.any())

    @cached_property
    def imbalanced_slots(self) -> NDArray[np.int64]:
        """Slots in which a GPU loses to imbalance, ascending."""
        found = [
            self.slots(trace)[at_least(trace.losses["imbalance"], 0.25) & trace.scored]
            for trace in self.scored
        ]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def slots(self, trace: Trace) -> NDArray[np.int64]:
        """Return the number of the time slot of each sample of a GPU, common to all GPUs."""
        return trace.levels.time_ns // max(1, int(self.job.interval * 1e9))

    def column(self, trace: Trace, metric: str) -> Floats:
        """Return a metric of a GPU; NaN where it is missing."""
        return column(self.table[trace.device.uuid], metric)

    def name(self, device: Device) -> str:
        """Return the name of a GPU for messages: its index, with its node where there are several."""
        number = device.uuid if device.index is None else str(device.index)
        multi_node = len({score.device.node for score in self.job.gpus}) > 1
        return f"GPU {number} of {device.node}" if multi_node and device.node else f"GPU {number}"

    def alike(self, name: str) -> tuple[Trace, ...]:
        """Return the GPUs that lost about as much to a cause as the most affected one (see `ALIKE`)."""
        lost = [trace.mean(trace.losses[name]) for trace in self.scored]
        return tuple(t for t, own in zip(self.scored, lost, strict=True) if own >= max(lost) - ALIKE)

    def pattern(
        self,
        where: Callable[[Trace], Flags],
        metrics: Sequence[str],
        among: Sequence[Trace] | None = None,
    ) -> tuple[float, tuple[Trace, ...], Evidence | None]:
        """Return the largest share of the time in which a GPU shows a pattern, and the evidence of it.

        Between them are the GPUs that show it for about as long (see `ALIKE`).

        Parameters
        ----------
        where
            Function that returns the samples of a GPU that show the pattern.
        """
        traces = self.scored if among is None else among
        flags = [where(trace) for trace in traces]
        shares = [time_share(trace, own) for trace, own in zip(traces, flags, strict=True)]
        worst = shares.index(max(shares))
        alike = tuple(t for t, own in zip(traces, shares, strict=True) if own >= shares[worst] - ALIKE)
        return shares[worst], alike, self.evidence(traces[worst], flags[worst], metrics)

    def names(self, traces: Sequence[Trace], *, inside: bool = False) -> str:
        """Return the names of several GPUs as one phrase: ``All GPUs`` or ``GPUs 2 and 3``.

        ``inside`` is True for a phrase that doesn't begin a sentence.
        """
        if len(traces) == len(self.scored) > 1:
            return "all GPUs" if inside else "All GPUs"
        if len(traces) == 1 or len({trace.device.node for trace in traces}) > 1:
            names = [self.name(trace.device) for trace in traces[:_MAX_NAMED]]
        else:
            numbers = [self.name(trace.device).removeprefix("GPU ") for trace in traces[:_MAX_NAMED]]
            names = [f"GPUs {numbers[0]}", *numbers[1:]]
        if len(traces) > _MAX_NAMED:
            return f"{', '.join(names)} and {len(traces) - _MAX_NAMED} more"
        return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]

    def evidence(self, trace: Trace, mask: Flags, metrics: Sequence[str]) -> Evidence | None:
        """Return the longest time range in which a mask is true, with those metrics that have values in it.

        None if the mask is never true, or no metric has values.
        """
        found = longest_true(mask & trace.scored)
        if found is None:
            return None
        rows = slice(found[0], found[1] + 1)
        recorded = [metric for metric in metrics if np.isfinite(self.column(trace, metric)[rows]).any()]
        times = trace.levels.time_ns[rows]
        start_ns = int(times[0] - trace.seconds[found[0]] * 1e9)
        return Evidence(trace.device.uuid, tuple(recorded), start_ns, int(times[-1])) if recorded else None

    def host_evidence(self, host: str, start_ns: int, end_ns: int, metrics: Sequence[str]) -> Evidence | None:
        """Return those metrics of a host, by its UUID, that have values in a time range; None without any."""
        columns = self.table[host]
        inside = (columns["time_ns"] >= start_ns) & (columns["time_ns"] <= end_ns)
        recorded = [metric for metric in metrics if np.isfinite(column(columns, metric)[inside]).any()]
        return Evidence(host, tuple(recorded), start_ns, end_ns) if recorded else None


class Rule(Protocol):
    """Pattern in samples, and the advice where it is found."""

    name: str
    knob: Knob
    applies: Applicability

    def find(self, context: AdviceContext) -> Advice | None:
        """Return the advice; None where the pattern or its evidence is missing."""


def longest_true(mask: Flags) -> tuple[int, int] | None:
    """Return the first and the last row of the longest run of true values; None without any."""
    edges = np.diff(np.concatenate(([False], mask, [False])).astype(np.int8))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    if not len(starts):
        return None
    longest = int(np.argmax(ends - starts))
    return int(starts[longest]), int(ends[longest])


def at_least(values: Floats, minimum: float = PRESENT) -> Flags:
    """Return a mask of the values that are at least `minimum`; False for missing values."""
    return np.asarray(values >= minimum, np.bool_)


def uuids_of(traces: Sequence[Trace]) -> tuple[str, ...]:
    """Return the UUIDs of several GPUs."""
    return tuple(trace.device.uuid for trace in traces)


def time_share(trace: Trace, mask: Flags) -> float:
    """Return the share of the scored time in which a mask is true."""
    return trace.mean(mask.astype(np.float64))


def gain_in_points(gain: float, minimum: float = 0.0) -> str:
    """Return a gain in words: points of the score, and how many times faster the same work would be."""
    speed = speedup_of(gain / 100)
    if round(minimum) < 1:
        return f"up to +{gain:.0f} points (\u2264 {speed:.2f}\u00d7 faster)"
    if round(minimum) == round(gain):
        return f"+{gain:.0f} points ({speed:.2f}\u00d7 faster)"
    return (
        f"+{minimum:.0f} to +{gain:.0f} points ({speedup_of(minimum / 100):.2f} to {speed:.2f}\u00d7 faster)"
    )


def time_saved_text(time_saved: float) -> str:
    """Return a phrase that the same work takes less time, by at most this share."""
    most = f"\u2264 {speedup_of(time_saved):.2f}\u00d7 faster"
    return f"at most {100 * time_saved:.0f} % less time for the same work ({most})"


def speedup_of(time_saved: float) -> float:
    """Return how many times faster work runs if its time falls by a share (0 to 1); at most 100."""
    return 1 / max(0.01, 1 - time_saved)
