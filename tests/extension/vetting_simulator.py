"""A simulated allocation: measurements of its pairs with noise, episodes, two modes and busy moments.

Figures are those of real GH200 nodes: 23.8 GB/s across for a healthy pair with 2 to 3 % of spread, 13.7 to
22.6 for sick ones, in episodes of minutes or in two modes. All randomness comes from one seed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from gipfel_extension.vetting.attribution.conclude import conclude
from gipfel_extension.vetting.attribution.measurements import PairMeasurement, PairSettings, PairState
from gipfel_extension.vetting.attribution.rounds import next_round
from gipfel_extension.vetting.model import CheckResult

HEALTHY = 23.8e9
SAMPLES = 9
ROUND_SECONDS = 6.0
_SAMPLE_SECONDS = 0.2


@dataclass
class Node:
    """One node: `kind` is healthy, slow, episode, bimodal, degraded or dead."""

    name: str
    kind: str
    factor: float = 1.0
    own: float = 1.0
    starts: float = 0.0
    ends: float = 1e9
    rng: random.Random = field(default_factory=random.Random)
    low: bool = False
    #: Chance of a sample to be in the lower mode, and samples that a mode lasts.
    share: float = 0.4
    dwell: float = 4.0

    def at(self, time: float) -> float:
        """Share of the healthy bandwidth at a moment; a node in two modes moves on by one sample."""
        if self.kind in {"slow", "degraded"}:
            return self.own * self.factor
        if self.kind == "episode":
            return self.own * (self.factor if self.starts <= time < self.ends else 1.0)
        if self.kind == "bimodal":
            leave = 1.0 / self.dwell if self.low else self.share / (1.0 - self.share) / self.dwell
            if self.rng.random() < leave:
                self.low = not self.low
            return self.own * (self.factor if self.low else 1.0)
        return self.own


@dataclass
class Allocation:
    """Nodes behind switches of `per_switch` nodes; some rounds are busy, some links or switches slow."""

    seed: int
    size: int
    bad_share: float
    per_switch: int = 16
    degraded_share: float = 0.02
    busy_chance: float = 0.05
    slow_switch: str = ""
    slow_links: frozenset[frozenset[str]] = frozenset()
    kinds: tuple[str, ...] = ("slow", "slow", "episode", "bimodal")
    bad_exactly: int | None = None

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        names = [f"nid{index:06d}" for index in range(self.size)]
        self.switches = {name: f"s{index // self.per_switch:03d}" for index, name in enumerate(names)}
        wanted = self.bad_exactly
        if wanted is None:
            wanted = sum(self.rng.random() < self.bad_share for _ in names)
        bad = set(self.rng.sample(names, min(wanted, self.size // 3)))
        self.nodes = {name: self._node(name, bad=name in bad) for name in names}
        self.clock = 0.0
        self.rounds = 0

    def _node(self, name: str, *, bad: bool) -> Node:
        rng = random.Random(self.rng.random())
        own = min(1.01, max(0.985, rng.gauss(1.0, 0.005)))
        if not bad:
            if rng.random() < self.degraded_share:
                return Node(name, "degraded", rng.uniform(0.90, 0.96), own=1.0, rng=rng)
            return Node(name, "healthy", own=own, rng=rng)
        # At least 10 % below: 13.7 GB/s to 21.4 of 23.8.
        node = Node(name, rng.choice(self.kinds), rng.uniform(0.576, 0.90), own=1.0, rng=rng)
        if node.kind == "episode":
            # Minutes long, and on at the start of the window in half of the cases.
            node.starts = -rng.uniform(0, 300) if rng.random() < 0.5 else rng.uniform(0, 10)
            node.ends = max(node.starts, 0.0) + rng.uniform(60, 600)
        if node.kind == "bimodal":
            node.factor = rng.uniform(0.55, 0.85)
            node.share = rng.uniform(0.25, 0.6)
            node.dwell = rng.uniform(1.5, 6.0)
            node.low = rng.random() < node.share
        return node

    def measure(self, number: int, first: str, second: str, role: str, *, busy: bool) -> PairMeasurement:
        """One pair: its first sample, which holds the warming up, is already dropped."""
        dead = tuple(name for name in (first, second) if self.nodes[name].kind == "dead")
        if dead:
            return PairMeasurement(
                round=number, first=first, second=second, role=role, error="No answer.", accused=dead
            )
        hindered = busy and self.rng.random() < 0.6
        load = self.rng.uniform(0.6, 0.9) if hindered else 1.0
        samples = []
        for index in range(SAMPLES):
            time = self.clock + index * _SAMPLE_SECONDS
            rate = HEALTHY * min(self.nodes[first].at(time), self.nodes[second].at(time)) * load
            if self.switches[first] != self.switches[second] and self.slow_switch in {
                self.switches[first], self.switches[second],
            }:  # fmt: skip
                rate *= 0.7
            if frozenset((first, second)) in self.slow_links:
                rate *= 0.7
            rate *= self.rng.gauss(1.0, 0.025)
            if self.rng.random() < 0.002:
                rate *= self.rng.uniform(0.3, 0.9)
            samples.append(max(rate, 1.0))
        return PairMeasurement(round=number, first=first, second=second, samples=tuple(samples), role=role)

    def vet(self, settings: PairSettings | None = None, *, topology: bool = True) -> list[CheckResult]:
        """Pair rounds to their end, and what they say."""
        state = PairState(
            check="network", type="collective", nodes=tuple(self.nodes), settings=settings or PairSettings(),
            switches=self.switches if topology else {},
        )  # fmt: skip
        while (planned := next_round(state)) is not None:
            busy = self.rng.random() < self.busy_chance
            taken = [name for pair in planned.pairs for name in (pair.first, pair.second)]
            assert len(taken) == len(set(taken)), "the pairs of a round are disjoint"
            state = state.with_round(
                tuple(
                    self.measure(planned.number, pair.first, pair.second, pair.role, busy=busy)
                    for pair in planned.pairs
                )
            )
            self.clock += ROUND_SECONDS
            self.rounds += 1
            assert self.rounds < 100, "it comes to an end"
        self.state = state
        return conclude(state)

    def truth(self, name: str) -> str:
        """Say "bad" in most of the window, "good", or "between": 4 to 10 % below, or bad in a part."""
        node = self.nodes[name]
        if node.kind == "healthy":
            return "good"
        if node.kind == "degraded":
            return "between"
        if node.kind == "episode":
            window = max(self.clock, 1.0)
            covered = min(node.ends, window) - max(node.starts, 0.0)
            return "bad" if covered >= 0.5 * window else "between"
        return "bad"


def measured(
    size: int, slow: Callable[[int, str, str], bool], *, switches: dict[str, str] | None = None
) -> dict[str, CheckResult]:
    """Return verdicts where some pairs of some rounds are 30 % slow, by subject."""
    rng = random.Random(size)
    nodes = tuple(f"n{index:04d}" for index in range(size))
    state = PairState(check="c", type="collective", nodes=nodes, switches=switches or {})
    while (planned := next_round(state)) is not None:
        found = []
        for pair in planned.pairs:
            left = 0.7 if slow(planned.number, pair.first, pair.second) else 1.0
            samples = tuple(24.6e9 * left * rng.gauss(1, 0.01) for _ in range(9))
            found.append(
                PairMeasurement(
                    round=planned.number, first=pair.first, second=pair.second, role=pair.role,
                    samples=samples,
                )
            )  # fmt: skip
        state = state.with_round(tuple(found))
    return {each.subject: each for each in conclude(state)}
