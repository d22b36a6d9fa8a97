"""What scoring gives: for a job, its ranks and its GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import Device
from .levels import Floats, Levels
from .settings import LOSSES, RESOURCES


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
    """

    score: float
    losses: Mapping[str, float]
    binding: Mapping[str, float]
    points: Mapping[str, float]

    @property
    def bottleneck(self) -> str:
        """The largest of eleven parts of 100: three resources that made the score, eight losses."""
        parts = {**self.points, **self.losses}
        return max(parts, key=lambda name: parts[name])

    @property
    def whole_points(self) -> dict[str, int]:
        """Score and losses as whole numbers that still add up to 100."""
        return whole_points({"score": self.score, **self.losses})

    @classmethod
    def mean(cls, totals: Sequence["Total"]) -> "Total | None":
        """The mean of several, None of none."""
        if not totals:
            return None
        return cls(
            float(np.mean([total.score for total in totals])),
            {name: float(np.mean([total.losses[name] for total in totals])) for name in LOSSES},
            {name: float(np.mean([total.binding[name] for total in totals])) for name in RESOURCES},
            {name: float(np.mean([total.points[name] for total in totals])) for name in RESOURCES},
        )


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

    ``scored`` leaves out what can't be scored and the start-up.
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
        Seconds before the first GPU worked; they are not scored.
    interval
        Seconds between samples: what alternates faster looks like its mean.
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
