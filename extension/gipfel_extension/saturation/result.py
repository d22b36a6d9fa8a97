"""What scoring gives: for a job, its ranks and its GPUs.

Where the time went, bucket by bucket: points of each resource and of each loss, together 100.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import Device
from .levels import Floats, Levels
from .settings import LOSSES, RESOURCES

#: Points that means of ten samples may change before samples count as too coarse to name a bottleneck.
_HIDDEN = 5.0


def whole_points(parts: Mapping[str, float]) -> dict[str, int]:
    """Parts of 100 as whole numbers that still add up to 100: the largest remainders are rounded up."""
    floors = {name: int(value) for name, value in parts.items()}
    rest = round(sum(parts.values())) - sum(floors.values())
    by_remainder = sorted(parts, key=lambda name: parts[name] - floors[name], reverse=True)
    return {name: floors[name] + (name in by_remainder[:rest]) for name in parts}


@dataclass(frozen=True)
class Total:
    """A score and what explains it.

    Parameters
    ----------
    score
        0 to 100.
    losses
        Points that were lost, by cause; with the score they add up to 100.
    binding
        Share of the time, 0 to 1, in which each resource was the binding one.
    points
        The score, by the resource that was binding.
    least, most
        Bounds of the score that finer samples could show: what alternates within an interval looks like
        its mean.
    in_turn
        The score's upper bound, by resource: what the others add where they are loaded one after the other.
    hidden
        The score less that of means of ten samples each, where samples are too far apart to show the phases
        of a step; 0 where they are not.
    """

    score: float
    losses: Mapping[str, float]
    binding: Mapping[str, float]
    points: Mapping[str, float]
    least: float
    most: float
    in_turn: Mapping[str, float]
    hidden: float = 0.0

    @property
    def bottleneck(self) -> str | None:
        """The largest of the resources' points and the losses; None where finer samples could show another.

        The samples allow two readings: resources that were loaded together, as the score has it, or one
        after the other within each interval. A bottleneck is named where both agree, and where a tenth of
        the samples would have shown the same score.
        """
        if abs(self.hidden) > _HIDDEN:
            return None
        together = _largest({**self.points, **self.losses})
        # What fills up is time in which SMs had work or the engine was on; a clock that is low stays low.
        rest = max(0.0, self.most - self.score)
        losses = dict(self.losses)
        for names in (("occupancy", "unexplained"), ("launch", "communication", "imbalance")):
            there = sum(losses[name] for name in names)
            taken = min(rest, there)
            for name in names:
                losses[name] *= 1.0 - taken / there if there else 1.0
            rest -= taken
        return together if together == _largest({**self.in_turn, **losses}) else None

    @property
    def whole_points(self) -> dict[str, int]:
        """Score and losses as whole numbers that still add up to 100."""
        return whole_points({"score": self.score, **self.losses})

    @classmethod
    def mean(cls, totals: Sequence["Total"], weights: Sequence[float]) -> "Total | None":
        """Return the weighted mean of several, None of none."""
        if not totals:
            return None
        shares = np.asarray(weights, np.float64) / sum(weights)

        def mean(values: Sequence[float]) -> float:
            return float(shares @ np.asarray(values))

        def means(name: str, keys: Sequence[str]) -> dict[str, float]:
            return {key: mean([getattr(total, name)[key] for total in totals]) for key in keys}

        return cls(
            mean([total.score for total in totals]),
            means("losses", LOSSES),
            means("binding", RESOURCES),
            means("points", RESOURCES),
            mean([total.least for total in totals]),
            mean([total.most for total in totals]),
            means("in_turn", RESOURCES),
            mean([total.hidden for total in totals]),
        )


def _largest(parts: Mapping[str, float]) -> str:
    return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class GpuScore:
    """One GPU.

    Parameters
    ----------
    total
        None where no sample could be scored.
    utilization
        Mean of ``GPU_UTIL``, 0 to 1, the plain number that stands beside the score.
    agi
        Mean of the public AGI formula, see :mod:`agi`.
    samples, missing
        Samples that were scored, and that should have been.
    confidence
        0 to 1, see :mod:`confidence`.
    model
        The entry of the table of ceilings; empty for a GPU that is not in it.
    weight
        Its share in the job's mean: the seconds that it was held, times its size where it is a slice of a
        GPU.
    """

    device: Device
    total: Total | None
    levels: Mapping[str, float | None]
    utilization: float | None
    agi: float | None
    samples: int
    missing: int
    confidence: float
    model: str
    weight: float


@dataclass(frozen=True)
class RankScore:
    """One rank: the mean of the GPUs of its process."""

    rank: int
    gpus: tuple[str, ...]
    total: Total | None
    confidence: float


@dataclass(frozen=True)
class Spread:
    """How far the GPUs are apart: 10th percentile, lowest score and whose it is, highest less lowest."""

    p10: float
    worst: float
    worst_gpu: str
    gap: float


@dataclass(frozen=True)
class Trace:
    """One GPU sample by sample, for evidence and plots; see :class:`Levels` for NaN.

    ``scored`` leaves out what can't be scored.
    """

    device: Device
    levels: Levels
    losses: Mapping[str, Floats]
    scored: NDArray[np.bool_]
    seconds: Floats


@dataclass(frozen=True)
class JobScore:
    """A job: the mean over its GPUs.

    Parameters
    ----------
    startup
        Seconds before the job's work began; what they lost is the loss ``start_up``.
    interval
        Seconds between the samples of the table.
    finest
        Seconds between those that were scored: the same, or fewer where the recorder scored finer ones. What
        alternates faster looks like its mean.
    first_ns, last_ns
        UTC time of the first scored sample and of the last.
    notes
        What a reader must know to trust or doubt the score, a sentence each.
    """

    total: Total | None
    gpus: tuple[GpuScore, ...] = ()
    ranks: tuple[RankScore, ...] = ()
    spread: Spread | None = None
    confidence: float = 0.0
    startup: float = 0.0
    interval: float = 0.0
    finest: float = 0.0
    first_ns: int | None = None
    last_ns: int | None = None
    simulated: bool = False
    notes: tuple[str, ...] = ()
    traces: tuple[Trace, ...] = field(default=(), repr=False)

    @property
    def utilization(self) -> float | None:
        """Mean of the GPUs' plain utilization, 0 to 1, which stands beside the score."""
        known = [score.utilization for score in self.gpus if score.utilization is not None]
        return float(np.mean(known)) if known else None


@dataclass(frozen=True)
class Shares:
    """A job over time.

    Parameters
    ----------
    time_ns
        UTC at which each bucket begins.
    bucket_ns
        How long a bucket is.
    points
        Resource or loss to its points, mean over the GPUs; in a bucket they add up to 100, or are all NaN.
    """

    time_ns: NDArray[np.int64]
    bucket_ns: int
    points: Mapping[str, Floats]


def shares_of(job: JobScore, buckets: int = 240) -> Shares:
    """The shares of a scored job in at most so many buckets of equal length."""
    names = (*RESOURCES, *LOSSES)
    scored = [trace for trace in job.traces if trace.scored.any()]
    if not scored or job.first_ns is None or job.last_ns is None:
        return Shares(np.zeros(0, np.int64), 1, {name: np.zeros(0) for name in names})
    beat = max(1, int(job.interval * 1e9))
    bucket_ns = max(beat, -(-(job.last_ns - job.first_ns + beat) // buckets))
    count = (job.last_ns - job.first_ns) // bucket_ns + 1
    sums = {name: np.zeros(count) for name in names}
    weights = np.zeros(count)
    for trace in scored:
        rows = trace.scored
        place = (trace.levels.time_ns[rows] - job.first_ns) // bucket_ns
        seconds = trace.seconds[rows]
        weights += np.bincount(place, seconds, count)
        for name in RESOURCES:
            sums[name] += np.bincount(place, seconds * trace.levels.points[name][rows], count)
        for name in LOSSES:
            sums[name] += np.bincount(place, seconds * trace.losses[name][rows], count)
    with np.errstate(divide="ignore", invalid="ignore"):
        points = {
            name: np.where(weights > 0, 100.0 * values / weights, np.nan) for name, values in sums.items()
        }
    return Shares(job.first_ns + bucket_ns * np.arange(count), bucket_ns, points)
