"""The cost of checkpoints: how much longer steps took during writes, and what background writing saves.

A checkpoint that is written in the background still takes memory bandwidth, cores and network from training,
so the throughput dips. The cost of such a dip is the time that the steps during the write took beyond the
median of the steps around them; equal numbers before and after are compared, so that a trend cancels out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..telemetry.sample import SampleTable
from .phases import NAMES, duration_text, find_phases, step_intervals
from .robust import Floats
from .steps import StepTable

#: Steps on each side that a checkpoint is compared with.
_AROUND = 25
_LEAST_AROUND = 4
_ROUNDS = 2000
#: Dips are significant if the probability that chance makes them is below this.
_SIGNIFICANT = 0.05
#: Interruptions of unknown cause are reported if they take at least this share of the cost.
_WORTH_NAMING = 0.05


@dataclass(frozen=True)
class Write:
    """A checkpoint as its writer recorded it.

    Parameters
    ----------
    end_ns
        UTC nanoseconds at which it was complete.
    stall_s
        Seconds for which training was stopped.
    write_s
        Seconds from its beginning until it was complete.
    rank_seconds
        Seconds that each rank took to write its files.
    """

    step: int
    end_ns: int
    stall_s: float
    write_s: float
    bytes: int = 0
    rank_seconds: tuple[float, ...] = ()

    @property
    def begin_ns(self) -> int:
        """UTC nanoseconds of its beginning."""
        return self.end_ns - int(self.write_s * 1e9)


@dataclass(frozen=True)
class Dip:
    """Cost of one checkpoint: `seconds` beyond the usual steps, and the share `lower` of throughput lost."""

    step: int
    begin_ns: int
    end_ns: int
    seconds: float
    lower: float


@dataclass(frozen=True)
class CheckpointCost:
    """Cost of the checkpoints of a run.

    Parameters
    ----------
    step_s
        Usual duration of a step in seconds.
    total_s
        Duration of all steps of the run in seconds.
    stall_s
        Seconds for which training was stopped, as the writer recorded them.
    blocked_s
        Seconds for which training would have been stopped without background writing: the sum over the
        checkpoints of the slowest rank's time.
    blocking_s, blocking_count
        Interruptions without a record of a writer during which files were written, as by ``torch.save``.
    regular_s, regular_count
        Regular interruptions that may be checkpoints or evaluations, which are not counted.
    unclear_s, unclear_count
        Interruptions at irregular steps, which are not counted.
    interruptions_ns
        Beginnings and ends, in UTC nanoseconds, of the interruptions in ``blocking_s`` and ``regular_s``.
    lower
        Mean share by which the throughput was lower during a write, and the bounds of its 95 % interval.
    chance
        Probability that chance makes dips as large as these.
    peak, staggered
        Bytes per second at the file system if all ranks write at once, and if they take turns; 0 if unknown.
    """

    step_s: float
    total_s: float
    dips: tuple[Dip, ...]
    stall_s: float
    blocked_s: float
    blocking_s: float
    blocking_count: int
    regular_s: float
    regular_count: int
    unclear_s: float
    unclear_count: int
    interruptions_ns: tuple[tuple[int, int], ...]
    lower: tuple[float, float, float]
    chance: float
    peak: float
    staggered: float

    @property
    def cost_s(self) -> float:
        """Total cost of all checkpoints in seconds."""
        return sum(each.seconds for each in self.dips) + self.blocking_s

    @property
    def saved_s(self) -> float:
        """Seconds that writing in the background saved, compared with stopping while files are written."""
        return self.blocked_s - sum(each.seconds for each in self.dips) if self.dips else 0.0

    def sentences(self) -> list[str]:
        """Return sentences on the cost, on what was saved, and on what could be saved."""
        found = []
        share = f" ({self.cost_s / self.total_s:.1%} of the run)" if self.total_s > 0 else ""
        count = len(self.dips) + self.blocking_count
        noun = "checkpoint" if count == 1 else "checkpoints"
        if count:
            found.append(f"{count} {noun} cost {duration_text(max(0.0, self.cost_s))}{share}.")
        if self.regular_count:
            name = NAMES["regular"][self.regular_count != 1]
            share = f" ({self.regular_s / self.total_s:.1%} of the run)" if self.total_s > 0 else ""
            found.append(
                f"{self.regular_count} {name} without a record took {duration_text(self.regular_s)}{share}; "
                "no samples show which, so they are not counted."
            )
        if self.dips:
            middle, low, high = (100 * each for each in self.lower)
            clear = "" if self.chance < _SIGNIFICANT else ", which may be chance"
            found.append(
                f"While they were written, the throughput was {middle:.1f} % lower "
                f"({low:.1f} to {high:.1f} %){clear}."
            )
            verb = "saved" if self.saved_s >= 0 else "lost"
            found.append(
                f"Writing in the background {verb} {duration_text(abs(self.saved_s))}; training stood still "
                f"for {duration_text(self.stall_s)}."
            )
        if self.blocking_count:
            found.append(
                f"Asynchronous writing would save up to {duration_text(self.blocking_s)}: "
                "all but the copy to memory of the host."
            )
        if self.unclear_s > _WORTH_NAMING * max(0.0, self.cost_s):
            found.append(
                f"{duration_text(self.unclear_s)} more were lost at irregular steps "
                f"({self.unclear_count} times), which may be checkpoints or not: not counted."
            )
        if self.peak > 1.5 * self.staggered > 0:
            found.append(
                f"Ranks that write in turns would lower the peak from {self.peak / 1e6:,.0f} to "
                f"{self.staggered / 1e6:,.0f} MB/s."
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the document for ``--json`` and the panel."""
        return {
            "step_s": round(self.step_s, 6), "total_s": round(self.total_s, 3),
            "cost_s": round(self.cost_s, 3), "stall_s": round(self.stall_s, 3),
            "saved_s": round(self.saved_s, 3), "blocking_s": round(self.blocking_s, 3),
            "blocking_count": self.blocking_count, "regular_s": round(self.regular_s, 3),
            "regular_count": self.regular_count, "unclear_s": round(self.unclear_s, 3),
            "unclear_count": self.unclear_count,
            "lower_percent": [round(100 * each, 2) for each in self.lower], "chance": round(self.chance, 4),
            "dips": [
                {"step": each.step, "begin_ns": each.begin_ns, "end_ns": each.end_ns,
                 "seconds": round(each.seconds, 4), "lower_percent": round(100 * each.lower, 2)}
                for each in self.dips
            ],
            "sentences": self.sentences(),
        }  # fmt: skip


def checkpoint_cost(
    steps: StepTable, writes: Sequence[Write], samples: Callable[[], SampleTable | None] = lambda: None
) -> CheckpointCost | None:
    """Return the cost of checkpoints; None if there are too few steps to know their usual duration.

    Parameters
    ----------
    samples
        Returns the run's samples, which distinguish checkpoints from evaluations; called only if needed.
    """
    # Dips have the cost of recorded writes. Other interruptions may be checkpoints without a record.
    explained = [(each.begin_ns, each.end_ns) for each in writes]
    phases = find_phases(steps, explained=explained)
    if phases is None:
        return None
    if any(each.kind in {"regular", "pause"} for each in phases.phases):
        phases = find_phases(steps, samples(), explained=explained) or phases
    dips = find_dips(steps, writes)
    lower, chance = _mean_with_interval([each.lower for each in dips])
    blocking = [each for each in phases.phases if each.kind == "checkpoint"]
    regular = [each for each in phases.phases if each.kind == "regular"]
    unclear = [each for each in phases.phases if each.kind == "pause"]
    known = [each for each in writes if each.rank_seconds and each.bytes]
    peak = [each.bytes / max(1e-9, *each.rank_seconds) for each in known if len(each.rank_seconds) > 1]
    spread = [each.bytes / max(1e-9, sum(each.rank_seconds)) for each in known if len(each.rank_seconds) > 1]
    inside = {each.step for each in dips}
    used = [each for each in writes if each.step in inside]
    return CheckpointCost(
        phases.step_s, phases.total_s, dips,
        sum(each.stall_s for each in used),
        sum(each.stall_s + max(each.rank_seconds, default=each.write_s) for each in used),
        sum(each.seconds for each in blocking), sum(len(each.times_ns) for each in blocking),
        sum(each.seconds for each in regular), sum(len(each.times_ns) for each in regular),
        sum(each.seconds for each in unclear), sum(len(each.times_ns) for each in unclear),
        tuple(sorted(span for each in (*blocking, *regular) for span in each.spans_ns)), lower, chance,
        float(np.median(peak)) if peak else 0.0, float(np.median(spread)) if spread else 0.0,
    )  # fmt: skip


def find_dips(steps: StepTable, writes: Sequence[Write]) -> tuple[Dip, ...]:
    """Return the dip of each write during which steps were reported, if there are enough steps around it."""
    seconds, numbers = step_intervals(steps)
    if not len(seconds):
        return ()
    ends = steps.time_ns[-len(seconds) :]
    begins = ends - (seconds * 1e9).astype(np.int64)
    touched = [(ends > each.begin_ns) & (begins < each.end_ns) for each in writes]
    free = ~np.logical_or.reduce(touched) if touched else np.ones(len(seconds), bool)
    found = []
    for write, inside in zip(writes, touched, strict=True):
        places = np.flatnonzero(inside)
        if not len(places):
            continue
        before = np.flatnonzero(free[: places[0]])[-_AROUND:]
        after = np.flatnonzero(free[places[-1] + 1 :])[:_AROUND] + places[-1] + 1
        count = min(len(before), len(after))
        if count < _LEAST_AROUND:
            # The first or last write of a run has neighbours on one side only.
            around = before if len(before) > len(after) else after
        else:
            around = np.concatenate([before[-count:], after[:count]])
        if len(around) < _LEAST_AROUND:
            continue
        usual = float(np.median(seconds[around] / numbers[around]))
        took, expected = float(seconds[inside].sum()), usual * float(numbers[inside].sum())
        lower = 1 - expected / took if took > 0 else 0.0
        found.append(Dip(write.step, write.begin_ns, write.end_ns, took - expected, lower))
    return tuple(found)


def _mean_with_interval(values: Sequence[float]) -> tuple[tuple[float, float, float], float]:
    """Return the mean, the bounds of its bootstrap interval of 95 %, and the probability of chance."""
    if not values:
        return (0.0, 0.0, 0.0), 1.0
    array: Floats = np.asarray(values, np.float64)
    draw = np.random.default_rng(0)
    means = array[draw.integers(len(array), size=(_ROUNDS, len(array)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    # Permutation test: without an effect, each dip has either sign with equal probability.
    flipped = (draw.choice((-1.0, 1.0), size=(_ROUNDS, len(array))) * array).mean(axis=1)
    chance = float((np.sum(flipped >= array.mean()) + 1) / (_ROUNDS + 1))
    return (float(array.mean()), float(low), float(high)), chance
