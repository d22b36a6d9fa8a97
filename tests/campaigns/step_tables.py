"""Steps of jobs whose truth is known: layouts, noise and faults, drawn at random.

Neither the families of noise nor the courses of faults here were looked at while rules and thresholds were
set. That was done with normal, uniform, triangular, gamma, lognormal, logistic, exponential, Laplace and
Student's t noise, with two speeds, rare pauses and bursts of three steps, with autoregressive noise, moving
means, swings and spells, and with slow-downs that were constant, unsteady, grew, came in waves, alternated,
or left out a sixth to a tenth of the steps.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gipfel_extension.diagnosis import Roles, StepTable

Floats = NDArray[np.float64]
Shape = tuple[int, int]
#: Layouts (dp, tp, pp) by number of ranks.
LAYOUTS = {
    64: ((64, 1, 1), (8, 1, 8), (16, 4, 1), (8, 2, 4)),
    1024: ((1024, 1, 1), (128, 1, 8), (32, 4, 8), (64, 8, 2)),
}
#: Ranks that share a node, and nodes that share a switch.
PER_NODE, PER_SWITCH = 4, 8
_START_NS = 1_800_000_000_000_000_000


def arcs(rng: np.random.Generator, shape: Shape, cv: float) -> Floats:
    """Arcsine noise: most steps are near one of two bounds."""
    return np.exp(cv * np.sqrt(2) * np.sin(rng.uniform(0, 2 * np.pi, shape)))


def extremes(rng: np.random.Generator, shape: Shape, cv: float) -> Floats:
    """Gumbel noise: a step waits for the slowest of many small things."""
    return np.exp(cv * np.sqrt(6) / np.pi * rng.gumbel(0, 1, shape))


def restless(rng: np.random.Generator, shape: Shape, cv: float) -> Floats:
    """Ranks of one node in four are noisier, and one step in eighty is twice to four times as long."""
    own = cv * np.repeat(np.where(rng.random(shape[0] // 4 + 1) < 0.25, 1.5, 0.9), 4)[: shape[0], None]
    long = np.where(rng.random(shape) < 1 / 80, rng.uniform(2, 4, shape), 1.0)
    return long * np.exp(own * rng.normal(0, 1, shape))


def echoes(rng: np.random.Generator, shape: Shape, cv: float) -> Floats:
    """What disturbs a step disturbs the next two less and less."""
    white = rng.normal(0, 1, (shape[0], shape[1] + 2))
    weights = np.array([1.0, 0.7, 0.4]) / np.sqrt(1.65)
    return np.exp(cv * sum(w * white[:, lag : lag + shape[1]] for lag, w in enumerate(weights)))


NOISE = {"arcs": arcs, "extremes": extremes, "restless": restless, "echoes": echoes}
#: Families whose disturbances outlast a step: twenty steps say as much there as eight elsewhere.
LASTING = ("echoes",)


@dataclass
class Job:
    """A job whose steps are being drawn."""

    layout: tuple[int, int, int]
    work: Floats
    rng: np.random.Generator

    @classmethod
    def draw(cls, rng: np.random.Generator, ranks: int, steps: int, noise: str, cv: float) -> "Job":
        """Draw a healthy job: GPUs differ by 0.7 %, stages by 1 %, and steps have samples of all lengths."""
        layout = LAYOUTS[ranks][rng.integers(len(LAYOUTS[ranks]))]
        work = NOISE[noise](rng, (ranks, steps), cv) * np.exp(rng.normal(0, 0.007, (ranks, 1)))
        work *= np.exp(rng.normal(0, 0.05, steps)) * rng.uniform(0.2, 5)
        work[:, :5] *= rng.uniform(1.2, 3, 5)
        every = int(rng.integers(40, 80))
        work[0, every::every] *= 2
        work[:, every // 2 :: 2 * every] *= 1.8
        job = cls(layout, work, rng)
        stages = np.exp(rng.normal(0, 0.01, layout[2]))
        for stage, factor in enumerate(stages):
            work[job.of_stage(stage)] *= factor
        return job

    def of_stage(self, stage: int) -> slice:
        """Return the ranks of a pipeline stage, which are neighbours."""
        size = self.layout[0] * self.layout[1]
        return slice(stage * size, (stage + 1) * size)

    def slow_rank(self, share: float, onset: int) -> int:
        """Slow one rank down from a step on: like a saw, by chance more or less, or in six of seven steps."""
        rank = int(self.rng.integers(len(self.work)))
        self.work[rank, onset:] *= 1 + share * self._course(self.work.shape[1] - onset)
        return rank

    def slow_node(self, share: float, onset: int) -> tuple[int, ...]:
        """Slow the ranks of one node down."""
        node = int(self.rng.integers(len(self.work) // PER_NODE))
        ranks = tuple(range(node * PER_NODE, (node + 1) * PER_NODE))
        self.work[ranks, onset:] *= 1 + share * self._course(self.work.shape[1] - onset)
        return ranks

    def heavy_stage(self, share: float, onset: int = 0) -> int:
        """Give one stage more work."""
        stage = int(self.rng.integers(self.layout[2]))
        self.work[self.of_stage(stage), onset:] *= 1 + share
        return stage

    def uneven_samples(self, cv: float) -> None:
        """Give each data-parallel rank samples of other lengths in each step; its other ranks share them."""
        dp, tp, pp = self.layout
        lengths = self.rng.weibull(1.5, (dp, self.work.shape[1]))
        lengths = 1 + (lengths - lengths.mean()) / lengths.std() * cv
        self.work *= np.tile(np.repeat(np.clip(lengths, 0.3, None), tp, axis=0), (pp, 1))

    def _course(self, steps: int) -> Floats:
        kind = self.rng.integers(3)
        if kind == 0:
            return 0.7 + 0.6 * (np.arange(steps) % 5) / 4
        if kind == 1:
            return self.rng.gamma(16, 1 / 16, steps)
        return (np.arange(steps) % 7 != self.rng.integers(7)) * 7 / 6

    def table(self) -> StepTable:
        """Return the steps as ranks would log them."""
        whole = self.work.max(axis=0) * 1.08
        ranks, steps = self.work.shape
        time_ns = _START_NS + (np.cumsum(whole) * 1e9).astype(np.int64)
        step_s = np.repeat(whole[None, :], ranks, axis=0)
        return StepTable(np.arange(ranks), np.arange(steps), time_ns, step_s, self.work)

    def roles(self) -> Roles:
        """Return the coordinates and places of the ranks."""
        dp, tp, _ = self.layout
        ranks = range(len(self.work))
        coordinates = {r: {"tp": r % tp, "dp": r // tp % dp, "pp": r // (tp * dp)} for r in ranks}
        nodes = {r: r // PER_NODE for r in ranks}
        places = {
            r: {"gpu": f"GPU-{r}", "node": f"n{node:03d}", "switch": f"s{node // PER_SWITCH}"}
            for r, node in nodes.items()
        }
        return Roles(coordinates, places)
