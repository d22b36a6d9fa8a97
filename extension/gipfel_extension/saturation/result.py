"""Scores of a job, its ranks and its GPUs over time, and notes on what limits a score."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import Device, SampleTable
from .host import host_of
from .levels import Floats, Levels, column
from .settings import LOSSES, RESOURCES, Thresholds

#: If the score of means of ten samples differs by more points, samples are too coarse to name a bottleneck.
_MAX_COARSE_DIFFERENCE = 5.0
#: Points of ``unexplained`` from which a note names the metrics that would explain more.
_MIN_UNEXPLAINED = 10.0
_FINE_S = Thresholds().fine
#: What it means for a score that no GPU has a metric.
_CONSEQUENCES = {
    "SM_ACTIVE": "SMs without work and SMs that wait can't be distinguished",
    "GR_ENGINE_ACTIVE": "GPU_UTIL is used instead where it was recorded",
    "SM_CLOCK": "clocks below the maximum can't be seen, and the score may be too high",
    "DRAM_ACTIVE": "the score is a lower bound without memory",
    "PIPE_TENSOR_ACTIVE": "the score is a lower bound without tensor pipes",
}


def integer_points(parts: Mapping[str, float]) -> dict[str, int]:
    """Return the score and its losses as integers with the same sum; the largest remainders are rounded up.

    The score is the nearest integer, so that it is the same wherever it is shown alone.
    """
    losses = [name for name in parts if name != "score"]
    floors = {name: int(parts[name]) for name in losses}
    score = {"score": round(parts["score"])} if "score" in parts else {}
    remaining = round(sum(parts.values())) - sum(score.values()) - sum(floors.values())
    losses.sort(key=lambda name: parts[name] - floors[name], reverse=True)
    rounded_up = {name: floors[name] + 1 for name in losses[:remaining]}
    return {name: (score | floors | rounded_up)[name] for name in parts}


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
    lower_bound, upper_bound
        Bounds of the score that finer samples could show: activity that alternates within an interval looks
        like its mean.
    sequential_points
        The upper bound by resource, as if resources were loaded one after the other within each interval.
    coarse_difference
        The score minus the score of means of ten samples, if samples are too far apart to show the phases of
        a training step; otherwise 0.
    """

    score: float
    losses: Mapping[str, float]
    binding: Mapping[str, float]
    points: Mapping[str, float]
    lower_bound: float
    upper_bound: float
    sequential_points: Mapping[str, float]
    coarse_difference: float = 0.0

    @property
    def bottleneck(self) -> str | None:
        """Largest of the resources' points and the losses; None if finer samples could show another one.

        The samples allow two interpretations: resources are loaded at the same time, as the score assumes, or
        one after the other within each interval. A bottleneck is named if it is the same in both, and if
        means of ten samples have nearly the same score.
        """
        if abs(self.coarse_difference) > _MAX_COARSE_DIFFERENCE:
            return None
        together = _largest({**self.points, **self.losses})
        # A higher score means lower losses while SMs had work or the engine was on; `capped` stays the same.
        remaining = max(0.0, self.upper_bound - self.score)
        losses = dict(self.losses)
        for names in (("occupancy", "unexplained"), ("launch", "communication", "imbalance")):
            available = sum(losses[name] for name in names)
            used = min(remaining, available)
            for name in names:
                losses[name] *= 1.0 - used / available if available else 1.0
            remaining -= used
        return together if together == _largest({**self.sequential_points, **losses}) else None

    @property
    def integer_points(self) -> dict[str, int]:
        """Score and losses as integers that still add up to 100."""
        return integer_points({"score": self.score, **self.losses})

    @classmethod
    def mean(cls, totals: Sequence["Total"], weights: Sequence[float]) -> "Total | None":
        """Return the weighted mean of several totals; None of none."""
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
            mean([total.lower_bound for total in totals]),
            mean([total.upper_bound for total in totals]),
            means("sequential_points", RESOURCES),
            mean([total.coarse_difference for total in totals]),
        )


def _largest(parts: Mapping[str, float]) -> str:
    return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class GpuScore:
    """Score of one GPU.

    Parameters
    ----------
    total
        None where no sample could be scored.
    utilization
        Mean of ``GPU_UTIL``, 0 to 1, reported for comparison.
    agi
        Mean of the public AGI formula; see :func:`.score.agi`.
    samples, missing
        Numbers of samples that were scored, and that are missing.
    confidence
        0 to 1; see :func:`.score.confidence`.
    model
        Model in the table of ceilings; empty for a GPU that is not in it.
    weight
        Weight in the job's mean: the seconds for which it was recorded, times its share of a GPU if it is a
        MIG instance.
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
    """Score of one rank: the mean of the GPUs that its process uses."""

    rank: int
    gpus: tuple[str, ...]
    total: Total | None
    confidence: float


@dataclass(frozen=True)
class Spread:
    """Spread of the GPUs' scores: 10th percentile, lowest score and its GPU, highest minus lowest."""

    p10: float
    worst: float
    worst_gpu: str
    gap: float


@dataclass(frozen=True)
class Trace:
    """One GPU sample by sample, for evidence and plots; see :class:`Levels` for NaN.

    ``scored`` is False for samples that can't be scored; ``seconds`` is the time that each sample covers.
    """

    device: Device
    levels: Levels
    losses: Mapping[str, Floats]
    scored: NDArray[np.bool_]
    seconds: Floats

    def mean(self, values: Floats) -> float:
        """Return the mean of values of the samples over the scored time."""
        seconds = self.seconds[self.scored]
        return float(values[self.scored] @ seconds / seconds.sum())


@dataclass(frozen=True)
class JobScore:
    """Score of a job: the mean over its GPUs.

    Parameters
    ----------
    startup
        Seconds before the job's work began; their losses are the loss ``start_up``.
    interval
        Seconds between the samples of the table.
    scored_interval
        Seconds between the samples that were scored: `interval`, or less if the recorder computed parts of
        the score from finer samples. Activity that alternates faster looks like its mean.
    first_ns, last_ns
        UTC time of the first scored sample and of the last.
    notes
        Sentences about what limits the score, such as missing metrics.
    """

    total: Total | None
    gpus: tuple[GpuScore, ...] = ()
    ranks: tuple[RankScore, ...] = ()
    spread: Spread | None = None
    confidence: float = 0.0
    startup: float = 0.0
    interval: float = 0.0
    scored_interval: float = 0.0
    first_ns: int | None = None
    last_ns: int | None = None
    simulated: bool = False
    notes: tuple[str, ...] = ()
    traces: tuple[Trace, ...] = field(default=(), repr=False)

    @property
    def utilization(self) -> float | None:
        """Mean ``GPU_UTIL`` of the GPUs, 0 to 1, reported for comparison."""
        known = [score.utilization for score in self.gpus if score.utilization is not None]
        return float(np.mean(known)) if known else None


@dataclass(frozen=True)
class PointsOverTime:
    """Points of a job over time.

    Parameters
    ----------
    time_ns
        UTC time (ns) at which each bucket begins.
    points
        Resource or loss to its points, as means over the GPUs; in each bucket they add up to 100, or are all
        NaN.
    """

    time_ns: NDArray[np.int64]
    points: Mapping[str, Floats]


def points_over_time(job: JobScore, buckets: int = 240) -> PointsOverTime:
    """Return the points of a scored job over time, in at most `buckets` buckets of equal length."""
    names = (*RESOURCES, *LOSSES)
    scored = [trace for trace in job.traces if trace.scored.any()]
    if not scored or job.first_ns is None or job.last_ns is None:
        return PointsOverTime(np.zeros(0, np.int64), {name: np.zeros(0) for name in names})
    interval_ns = max(1, int(job.interval * 1e9))
    bucket_ns = max(interval_ns, -(-(job.last_ns - job.first_ns + interval_ns) // buckets))
    count = (job.last_ns - job.first_ns) // bucket_ns + 1
    sums = {name: np.zeros(count) for name in names}
    weights = np.zeros(count)
    for trace in scored:
        rows = trace.scored
        bucket = (trace.levels.time_ns[rows] - job.first_ns) // bucket_ns
        seconds = trace.seconds[rows]
        weights += np.bincount(bucket, seconds, count)
        for name, values in {**trace.levels.points, **trace.losses}.items():
            sums[name] += np.bincount(bucket, seconds * values[rows], count)
    with np.errstate(divide="ignore", invalid="ignore"):
        points = {
            name: np.where(weights > 0, 100.0 * values / weights, np.nan) for name, values in sums.items()
        }
    return PointsOverTime(job.first_ns + bucket_ns * np.arange(count), points)


def notes_of(table: SampleTable, scores: Sequence[GpuScore], traces: Sequence[Trace]) -> Iterator[str]:
    """Yield the notes of a scored table."""
    if table.simulated:
        yield "The samples are simulated or replayed: this is not a measurement of a GPU in use."
    for state in ("torn", "unreadable"):
        names = [segment.name for segment in table.segments if segment.state == state]
        if names:
            yield f"{_count(len(names), 'segment')} {state}: {', '.join(names[:3])}."
    if not scores:
        yield "There is no GPU in the recording."
        return
    faulty = sorted({metric for trace in traces for metric in trace.levels.faulty})
    if faulty:
        yield (
            f"{', '.join(faulty)}: values above 1 are not fractions, so they count as missing. "
            "The source may count in per cent."
        )
    unscored = [score for score in scores if score.total is None]
    if unscored:
        yield (
            f"{_count(len(unscored), 'GPU')} without a score: no activity of pipes or memory was recorded, "
            "and utilization alone does not show saturation."
        )
    unknown = sorted({score.device.name or "a GPU without a name" for score in scores if not score.model})
    if unknown:
        yield (f"No ceilings are known for {', '.join(unknown)}: without links, the score is a lower bound.")
    scored = [score for score in scores if score.total is not None]
    yield from _missing(table, scored)
    if any(
        score.total is not None and score.total.losses["unexplained"] >= _MIN_UNEXPLAINED for score in scored
    ):
        yield from _unrecorded(table, scored)


def _unrecorded(table: SampleTable, scores: Sequence[GpuScore]) -> Iterator[str]:
    """Yield a note on what to record, so that more of the loss can be explained."""
    unrecorded = []
    if any(host_of(table, score.device) is None for score in scores):
        unrecorded.append("the host (--source host)")
    elif len(scores) > 1 and not _recorded(table, [host.uuid for host in table.hosts], "NET_TX_BYTES"):
        unrecorded.append("the network's counters")
    uuids = [score.device.uuid for score in scores]
    metrics = ("SM_OCCUPANCY", "POWER_USAGE", "SM_CLOCK")
    unrecorded += [metric for metric in metrics if not _recorded(table, uuids, metric)]
    if table.interval > _FINE_S and not any("SCORE_SHARE" in table[uuid] for uuid in uuids):
        unrecorded.append(f"samples every {_FINE_S:g} s or faster")
    if unrecorded:
        yield f"To explain more of the loss, record {', '.join(unrecorded)}."


def _recorded(table: SampleTable, uuids: Sequence[str], metric: str) -> bool:
    return any(np.isfinite(column(table[uuid], metric)).any() for uuid in uuids)


def _missing(table: SampleTable, scores: Sequence[GpuScore]) -> Iterator[str]:
    if not scores:
        return
    uuids = [score.device.uuid for score in scores]
    for metric, consequence in _CONSEQUENCES.items():
        if not _recorded(table, uuids, metric):
            yield f"{metric} is missing: {consequence}."


def _count(number: int, part: str) -> str:
    return f"{number} {part}{'s' if number != 1 else ''}"
