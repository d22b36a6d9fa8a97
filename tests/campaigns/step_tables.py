"""Steps of simulated jobs with known faults: layouts, noise and faults, drawn at random.

Neither the families of noise in ``NOISE`` nor the unsteady courses of faults here were looked at while rules
and thresholds were set. That was done with ``TRIED``, and with normal, uniform, triangular, arcsine, beta,
gamma, lognormal, logistic, exponential, Gumbel, Poisson, Laplace and Student's t noise, with two speeds,
ranks of unequal noise, rare pauses and bursts of three steps, with autoregressive noise, moving means, swings
and spells, and with slow-downs that were constant, unsteady by chance (uniform, triangular, in two levels),
grew, came in waves, alternated, or left out a sixth to a tenth of the steps.
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


def coarse(rng: np.random.Generator, shape: Shape, cv: float) -> Floats:
    """A clock that counts in half standard deviations."""
    return np.exp(cv * np.round(2 * rng.normal(0, 1, shape)) / 2)


def lopsided(rng: np.random.Generator, shape: Shape, cv: float) -> Floats:
    """Chi-squared noise of six degrees of freedom: slow steps are further away than fast ones."""
    return 1 + cv * (rng.chisquare(6, shape) - 6) / np.sqrt(12)


def crowds(rng: np.random.Generator, shape: Shape, cv: float) -> Floats:
    """Nodes are up to twice as noisy as others, with tails, and one step in ninety waits for a file."""
    own = cv * np.repeat(rng.uniform(0.5, 1.0, shape[0] // 4 + 1), 4)[: shape[0], None]
    files = (rng.random(shape) < 1 / 90) * rng.lognormal(-1, 0.7, shape)
    # The hyperbolic secant distribution, by its quantiles.
    tails = 2 / np.pi * np.log(np.tan(np.pi / 2 * rng.uniform(1e-9, 1 - 1e-9, shape)))
    return np.exp(own * tails) + files


def ebbs(rng: np.random.Generator, shape: Shape, cv: float) -> Floats:
    """Half of the variance is a disturbance that comes at once and ebbs away over some steps."""
    hits = (rng.random((shape[0], shape[1] + 12)) < 0.3) * rng.normal(0, 1, (shape[0], shape[1] + 12))
    weights = 0.6 ** np.arange(12)
    ebb = sum(w * hits[:, 12 - lag : 12 - lag + shape[1]] for lag, w in enumerate(weights))
    return np.exp(cv * (ebb / np.sqrt(0.3 * (weights**2).sum()) + rng.normal(0, 1, shape)) / np.sqrt(2))


def queues(rng: np.random.Generator, shape: Shape, cv: float) -> Floats:
    """Times of first passage (inverse Gaussian), skewed like waiting for one server."""
    # The mean of a Wald distribution of scale s is 1 and its variance 1 / s; here the variance is 1 / 4.
    return 1 + cv * (rng.wald(1, 4, shape) - 1) / 0.5


def longest(rng: np.random.Generator, shape: Shape, cv: float) -> Floats:
    """The longest of five parts, of which each has Weibull noise."""
    longest = rng.weibull(2, (5, *shape)).max(axis=0)
    return 1 + cv * (longest - longest.mean()) / longest.std()


def neighbours(rng: np.random.Generator, shape: Shape, cv: float) -> Floats:
    """Half of the variance is shared by the four ranks of a node, anew in each step; with Rayleigh noise."""
    shared = np.repeat(rng.normal(0, 1, (shape[0] // 4 + 1, shape[1])), 4, axis=0)[: shape[0]]
    own = (rng.rayleigh(1, shape) - np.sqrt(np.pi / 2)) / np.sqrt(2 - np.pi / 2)
    return np.exp(cv * (shared + own) / np.sqrt(2))


def flicker(rng: np.random.Generator, shape: Shape, cv: float) -> Floats:
    """A third of the variance is noise of a spectrum 1/f: it remembers for as long as the job runs."""
    length = 2 * shape[1]
    waves = np.fft.rfft(rng.normal(0, 1, (shape[0], length)), axis=1)
    waves[:, 0] = 0
    waves[:, 1:] /= np.sqrt(np.arange(1, waves.shape[1]))
    pink = np.fft.irfft(waves, length, axis=1)[:, : shape[1]]
    return np.exp(cv * (pink / pink.std() + np.sqrt(2) * rng.normal(0, 1, shape)) / np.sqrt(3))


#: Families that rules were changed for.
TRIED = {"coarse": coarse, "lopsided": lopsided, "crowds": crowds, "ebbs": ebbs}
NOISE = {"queues": queues, "longest": longest, "neighbours": neighbours, "flicker": flicker}
#: Families whose disturbances outlast a step, so that twenty steps say less than elsewhere.
LASTING = ("ebbs", "flicker")


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

    def slow_rank(self, share: float, onset: int, *, steady: bool = False) -> int:
        """Slow one rank down from a step on: by the same share in each, or by `share` on average.

        A lower clock slows each step alike. Unsteady courses go in saw teeth, each third step most, or by
        chance: half of the steps may then be slower by only 0.6 of the share.
        """
        rank = int(self.rng.integers(len(self.work)))
        steps = self.work.shape[1] - onset
        self.work[rank, onset:] *= 1 + share * (np.ones(steps) if steady else self._course(steps))
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
            return 0.4 + 0.3 * (np.arange(steps) % 5)
        if kind == 1:
            return np.where(np.arange(steps) % 3 == 0, 1.8, 0.6)
        return self.rng.rayleigh(np.sqrt(2 / np.pi), steps)

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
