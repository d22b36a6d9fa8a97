"""Allocations whose faults are known, as the fabric shows them: what pairs of nodes measure, round by round.

Written from what fabrics do, without regard to how verdicts are found. A healthy pair reaches 23.8 GB/s
(GH200 over Slingshot); every node, path and sample varies by itself; whatever is slow on the way sets the
pace of a pair.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

HEALTHY = 23.8e9
SAMPLES = 9
SAMPLE_S, ROUND_S = 0.4, 6.0
_NODE_SPREAD, _PATH_SPREAD = 0.005, 0.01
#: What congestion leaves of a pair's bandwidth.
_CONGESTED = (0.6, 0.9)


@dataclass(frozen=True)
class Weather:
    """What a fabric without faults does to measurements.

    Parameters
    ----------
    noise
        Scale of a sample's noise, as a share.
    heavy
        Noise of Student's t with three degrees of freedom, in place of a normal one.
    congestion
        Share of pairs in a round that traffic of other jobs slows down, each pair by itself.
    busy
        Share of rounds in which six of ten pairs are congested together.
    paths
        Standard deviation between paths: a property of two nodes that stays.
    """

    noise: float = 0.02
    heavy: bool = False
    congestion: float = 0.0
    busy: float = 0.0
    paths: float = _PATH_SPREAD


@dataclass
class Allocation:
    """Nodes with a fault or none; `measure` gives the samples of pairs that run at the same time.

    `bad` are the nodes at fault, `link` the two ends of a slow path, `switch` each node's switch. `left` is
    the share of bandwidth that a fault leaves, or `course` says it by time; `one_way` spares what a node
    receives.
    """

    size: int
    rng: np.random.Generator
    weather: Weather = field(default_factory=Weather)
    bad: frozenset[int] = frozenset()
    link: frozenset[int] = frozenset()
    switch: tuple[int, ...] = ()
    slow_switch: int = -1
    left: float = 1.0
    one_way: bool = False
    silent: bool = False
    course: Callable[[int, np.ndarray], np.ndarray] | None = None

    def __post_init__(self) -> None:
        self.own = np.minimum(1.0, 1.0 - np.abs(self.rng.normal(0.0, _NODE_SPREAD, self.size)))
        self.paths: dict[tuple[int, int], float] = {}

    def measure(self, pairs: Sequence[tuple[int, int]], number: int) -> np.ndarray:
        """Return samples by pair, the first of each already dropped; a silent node's are NaN."""
        times = number * ROUND_S + np.arange(SAMPLES) * SAMPLE_S
        busy = self.rng.random() < self.weather.busy
        found = np.empty((len(pairs), SAMPLES))
        for place, (first, second) in enumerate(pairs):
            rate = np.minimum(self._sends(first, times), self._receives(second, times))
            found[place] = rate * self._path(first, second)
        shape = found.shape
        noise = self.rng.standard_t(3, shape) if self.weather.heavy else self.rng.normal(size=shape)
        chance = max(self.weather.congestion, 0.6 if busy else 0.0)
        congested = self.rng.random(len(pairs)) < chance
        load = np.where(congested, self.rng.uniform(*_CONGESTED, len(pairs)), 1.0)
        return np.maximum(1e6, HEALTHY * found * load[:, None] * (1.0 + self.weather.noise * noise))

    def _sends(self, node: int, times: np.ndarray) -> np.ndarray:
        return self._rate(node, times)

    def _receives(self, node: int, times: np.ndarray) -> np.ndarray:
        return np.full(len(times), self.own[node]) if self.one_way else self._rate(node, times)

    def _rate(self, node: int, times: np.ndarray) -> np.ndarray:
        if node not in self.bad:
            return np.full(len(times), self.own[node])
        if self.silent:
            return np.full(len(times), math.nan)
        left = self.course(node, times) if self.course else np.full(len(times), self.left)
        return np.asarray(self.own[node] * left)

    def _path(self, first: int, second: int) -> float:
        pair = (min(first, second), max(first, second))
        if pair not in self.paths:
            self.paths[pair] = float(min(1.15, 1.0 - self.rng.normal(0.0, self.weather.paths)))
        left = self.left if frozenset(pair) == self.link else 1.0
        if self.slow_switch >= 0 and self.switch[first] != self.switch[second]:
            left = self.left if self.slow_switch in (self.switch[first], self.switch[second]) else 1.0
        return self.paths[pair] * left


def bimodal(rng: np.random.Generator, share: float, left: float) -> Callable[[int, np.ndarray], np.ndarray]:
    """Return the course of a node that falls into a low mode for a few samples, a share of the time."""
    low_s = rng.uniform(2, 5) * SAMPLE_S
    high_s = low_s * (1.0 - share) / share
    edges = np.cumsum(rng.exponential(np.tile([high_s, low_s], 1000)))

    def course(_: int, times: np.ndarray) -> np.ndarray:
        return np.where(np.searchsorted(edges, times) % 2 == 1, left, 1.0)

    return course


def periodic(
    rng: np.random.Generator, period_s: float, slow_s: float, left: float
) -> Callable[[int, np.ndarray], np.ndarray]:
    """Return the course of a node that is slow for a part of each period."""
    phase = rng.uniform(0, period_s)

    def course(_: int, times: np.ndarray) -> np.ndarray:
        return np.where((times + phase) % period_s < slow_s, left, 1.0)

    return course


def episode(rng: np.random.Generator, left: float) -> Callable[[int, np.ndarray], np.ndarray]:
    """Return the course of a node that is slow once, for 30 to 120 s, from within the survey on or before."""
    length = rng.uniform(30, 120)
    start = rng.uniform(-0.5 * length, 18.0)

    def course(_: int, times: np.ndarray) -> np.ndarray:
        return np.where((times >= start) & (times < start + length), left, 1.0)

    return course
