"""Simulated allocations with known faults: the measurements of pairs of nodes in each round.

The simulation is written from the behaviour of fabrics, not of the verdicts. A healthy pair reaches 23.8 GB/s
(GH200 over Slingshot); nodes, paths and samples vary independently; the slowest part of a path limits the
rate of a pair.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

HEALTHY = 23.8e9
SAMPLES = 9
SAMPLE_S, ROUND_S = 0.4, 6.0
_NODE_SPREAD, _PATH_SPREAD = 0.005, 0.01
#: Range of the share of a pair's bandwidth that is left under congestion.
_CONGESTED = (0.6, 0.9)


@dataclass(frozen=True)
class FabricNoise:
    """Noise and congestion of a fabric without faults.

    Parameters
    ----------
    noise
        Scale of the noise of samples, as a share.
    heavy
        Whether noise follows Student's t with three degrees of freedom, not the normal distribution.
    congestion
        Share of pairs in a round that other jobs' traffic slows down, each independently.
    busy
        Share of rounds in which six of ten pairs are congested together.
    paths
        Standard deviation between paths; each pair of nodes keeps its path.
    """

    noise: float = 0.02
    heavy: bool = False
    congestion: float = 0.0
    busy: float = 0.0
    paths: float = _PATH_SPREAD


@dataclass
class Allocation:
    """Nodes with or without a fault; `measure` returns the samples of pairs that are measured together.

    Parameters
    ----------
    bad
        Faulty nodes.
    link
        The two ends of a slow path.
    switch
        Switch of each node.
    remaining
        Share of the bandwidth that a fault leaves.
    remaining_over_time
        The same as a function of node and times.
    one_way
        Whether faulty nodes are slow only in sending.
    silent
        Whether faulty nodes give no samples.
    """

    size: int
    rng: np.random.Generator
    fabric: FabricNoise = field(default_factory=FabricNoise)
    bad: frozenset[int] = frozenset()
    link: frozenset[int] = frozenset()
    switch: tuple[int, ...] = ()
    slow_switch: int = -1
    remaining: float = 1.0
    one_way: bool = False
    silent: bool = False
    remaining_over_time: Callable[[int, np.ndarray], np.ndarray] | None = None

    def __post_init__(self) -> None:
        self.own = np.minimum(1.0, 1.0 - np.abs(self.rng.normal(0.0, _NODE_SPREAD, self.size)))
        self.paths: dict[tuple[int, int], float] = {}

    def measure(self, pairs: Sequence[tuple[int, int]], number: int) -> np.ndarray:
        """Return samples by pair, without the first of each; those of silent nodes are NaN."""
        times = number * ROUND_S + np.arange(SAMPLES) * SAMPLE_S
        busy = self.rng.random() < self.fabric.busy
        found = np.empty((len(pairs), SAMPLES))
        for place, (first, second) in enumerate(pairs):
            rate = np.minimum(self._sends(first, times), self._receives(second, times))
            found[place] = rate * self._path(first, second)
        shape = found.shape
        noise = self.rng.standard_t(3, shape) if self.fabric.heavy else self.rng.normal(size=shape)
        chance = max(self.fabric.congestion, 0.6 if busy else 0.0)
        congested = self.rng.random(len(pairs)) < chance
        load = np.where(congested, self.rng.uniform(*_CONGESTED, len(pairs)), 1.0)
        return np.maximum(1e6, HEALTHY * found * load[:, None] * (1.0 + self.fabric.noise * noise))

    def _sends(self, node: int, times: np.ndarray) -> np.ndarray:
        return self._rate(node, times)

    def _receives(self, node: int, times: np.ndarray) -> np.ndarray:
        return np.full(len(times), self.own[node]) if self.one_way else self._rate(node, times)

    def _rate(self, node: int, times: np.ndarray) -> np.ndarray:
        if node not in self.bad:
            return np.full(len(times), self.own[node])
        if self.silent:
            return np.full(len(times), math.nan)
        remaining = (
            self.remaining_over_time(node, times)
            if self.remaining_over_time
            else np.full(len(times), self.remaining)
        )
        return np.asarray(self.own[node] * remaining)

    def _path(self, first: int, second: int) -> float:
        pair = (min(first, second), max(first, second))
        if pair not in self.paths:
            self.paths[pair] = float(min(1.15, 1.0 - self.rng.normal(0.0, self.fabric.paths)))
        remaining = self.remaining if frozenset(pair) == self.link else 1.0
        if self.slow_switch >= 0 and self.switch[first] != self.switch[second]:
            is_slow = self.slow_switch in (self.switch[first], self.switch[second])
            remaining = self.remaining if is_slow else 1.0
        return self.paths[pair] * remaining


def bimodal(rng: np.random.Generator, share: float, left: float) -> Callable[[int, np.ndarray], np.ndarray]:
    """Return the remaining bandwidth over time of a node with a low mode for a few samples at a time."""
    low_s = rng.uniform(2, 5) * SAMPLE_S
    high_s = low_s * (1.0 - share) / share
    edges = np.cumsum(rng.exponential(np.tile([high_s, low_s], 1000)))

    def remaining(_: int, times: np.ndarray) -> np.ndarray:
        return np.where(np.searchsorted(edges, times) % 2 == 1, left, 1.0)

    return remaining


def periodic(
    rng: np.random.Generator, period_s: float, slow_s: float, left: float
) -> Callable[[int, np.ndarray], np.ndarray]:
    """Return the remaining bandwidth over time of a node that is slow for a part of each period."""
    phase = rng.uniform(0, period_s)

    def remaining(_: int, times: np.ndarray) -> np.ndarray:
        return np.where((times + phase) % period_s < slow_s, left, 1.0)

    return remaining


def episode(rng: np.random.Generator, left: float) -> Callable[[int, np.ndarray], np.ndarray]:
    """Return the remaining bandwidth over time of a node that is slow once, early, for 30 to 120 s."""
    length = rng.uniform(30, 120)
    start = rng.uniform(-0.5 * length, 18.0)

    def remaining(_: int, times: np.ndarray) -> np.ndarray:
        return np.where((times >= start) & (times < start + length), left, 1.0)

    return remaining
