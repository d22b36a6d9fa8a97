"""State of the pair rounds of one check, as an immutable value.

In a round, disjoint pairs of nodes are measured at the same time. A measurement has the samples of a pair in
a round; a reading is a measurement compared with the healthy pairs of this allocation.

An island is a group of nodes that is fast inside and slow with the rest; it is looked for where no topology
is known.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..statistics import NORMAL, mad
from ..threshold import Quantity

Role = Literal["survey", "ring", "suspect", "control"]


class PairSettings(Frozen):
    """Settings of measuring and judging pairs of nodes.

    Parameters
    ----------
    survey_rounds
        Rounds in which every node has a partner; where switches are known, one round within switches is
        added.
    every_pair_up_to
        With at most this many nodes, every pair is measured, in as many rounds as that takes: a slow link is
        only found by the pair that uses it. 0 to use `survey_rounds` always.
    confirm_rounds
        Upper limit of the rounds that pair suspects with cleared nodes; there are none if no pair was slow.
    bad_below
        Share below the allocation's median from which a node is bad.
    degraded_below
        Share below the median from which a node is degraded or inconclusive.
    mads
        A node is bad only if it is also this many MADs (median absolute deviations) below the median.
    floor
        Required measurement in the unit of the samples; 0 for none.
    baseline
        Stored baseline of healthy pairs; 0 for none. The allocation's own median must not be
        `bad_below` below it.
    """

    survey_rounds: Annotated[int, Field(ge=1, le=16)] = 5
    every_pair_up_to: Annotated[int, Field(ge=0, le=64)] = 16
    confirm_rounds: Annotated[int, Field(ge=0, le=32)] = 12
    bad_below: Annotated[Quantity, Field(gt=0, lt=1)] = 0.10
    degraded_below: Annotated[Quantity, Field(gt=0, lt=1)] = 0.04
    mads: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 4.0
    floor: Annotated[Quantity, Field(ge=0)] = 0.0
    baseline: Annotated[Quantity, Field(ge=0)] = 0.0


class PlannedPair(Frozen):
    """Two nodes that are to be measured together in a round.

    Parameters
    ----------
    role
        "survey", "ring" (neighbours in the job's ring that the survey has not paired), "suspect" (a suspect
        with a cleared node, or a slow pair again) or "control" (two cleared nodes).
    """

    first: str
    second: str
    role: Role = "survey"


class PairMeasurement(PlannedPair):
    """Measurement of a pair in one round.

    Parameters
    ----------
    samples
        Samples without the first one; empty if the pair gave none.
    error
        Why there are no samples, as one sentence.
    accused
        The nodes of the pair whose agent or ranks were lost, or that gave too few samples, where that is
        known. They fail without a comparison, unlike nodes that are convicted for slow readings.
    """

    round: int
    samples: tuple[float, ...] = ()
    error: str = ""
    accused: tuple[str, ...] = ()


class PairRound(Frozen):
    """Disjoint pairs that are measured at the same time."""

    number: int
    pairs: tuple[PlannedPair, ...]


class PairState(Frozen):
    """State of the pair rounds of one check, which `next_round` and `conclude` depend on.

    Parameters
    ----------
    nodes
        The nodes that take part, in the order of the job's ranks; without those that failed their own checks.
    switches
        Name of the switch by node, where the topology is known; partners come from other switches.
    history
        For each node whether it passed its last runs of this check, newest last.
    unit
        Unit of the samples.
    cut_short
        Whether the rounds ended because of the time limit.
    """

    check: str
    type: str
    nodes: tuple[str, ...]
    settings: PairSettings = PairSettings()
    switches: Mapping[str, str] = Field(default_factory=dict)
    history: Mapping[str, tuple[bool, ...]] = Field(default_factory=dict)
    measurements: tuple[PairMeasurement, ...] = ()
    unit: str = "B/s"
    cut_short: bool = False

    @property
    def every_pair(self) -> bool:
        """Return whether there are so few nodes that every pair is measured."""
        return len(self.nodes) <= self.settings.every_pair_up_to

    def with_round(self, measurements: "tuple[PairMeasurement, ...]") -> "PairState":
        """Return the state with the measurements of one more round."""
        return self.model_copy(update={"measurements": (*self.measurements, *measurements)})


#: The noise of a pair's median is assumed to be at least this share: a few pairs underestimate it.
_MIN_NOISE = 0.006
#: A measurement is slow from this share of `bad_below` on, so that one exactly at `bad_below` is found.
_SLOW_FROM = 0.7
#: A sample this many standard deviations below the reference is in a lower mode, which has so many samples.
LOW_MODE_DEVIATIONS, _MIN_LOW_SAMPLES = 4.0, 2
#: Number of pairs, and share of them: the fabric is busy in a round if more of them are slow.
_BUSY = ((8, 0.34), (4, 0.6))
#: Healthy pairs are within this share of the reference; the search starts at this quantile of all pairs.
_HEALTHY_RANGE, _START_QUANTILE = 0.07, 0.9
_MAX_STEPS = 20
#: Fewer samples of a pair, or fewer pairs, are not enough to estimate their variation.
_MIN_SAMPLES, _MIN_PAIRS = 4, 5
#: Smaller groups are not an island: their nodes are slow themselves.
_MIN_ISLAND = 3
#: An island needs this many slow pairs to the rest, and at most this share of slow pairs inside the two
#: groups.
_MIN_BETWEEN, _MAX_SLOW_INSIDE = 6, 0.2
#: If a slow group is a larger share of all nodes, the rest may be the faulty one just as well.
MAX_SLOW_SHARE = 0.34


@dataclass(frozen=True)
class Reading:
    """Measurement of one pair in one round, compared with the reference.

    Parameters
    ----------
    below
        Share by which the median is below the reference; 1 where the pair gave no samples.
    slow
        Whether the median is low, samples form a lower mode, or there are no samples.
    partly_slow
        Whether only a lower mode of the samples is slow, not the median.
    nodes
        The two nodes.
    pair
        The two nodes, sorted by name.
    """

    measurement: PairMeasurement
    below: float
    slow: bool
    partly_slow: bool
    nodes: tuple[str, str] = field(init=False)
    pair: tuple[str, str] = field(init=False)

    def __post_init__(self) -> None:
        # Stored, because the evidence of large allocations reads them millions of times.
        nodes = self.measurement.first, self.measurement.second
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "pair", nodes if nodes[0] < nodes[1] else nodes[::-1])

    def other(self, node: str) -> str:
        """Return the partner of `node` in this pair."""
        first, second = self.nodes
        return second if node == first else first


@dataclass(frozen=True)
class HealthyPairs:
    """Statistics of this allocation's healthy pairs.

    Parameters
    ----------
    reference
        Median of a healthy pair, in the samples' unit; None if nothing was measured.
    noise
        Standard deviation between the medians of healthy pairs, as a share of the reference.
    spread
        Standard deviation of the samples within a healthy pair, as a share of the pair's median.
    """

    reference: float | None
    noise: float
    spread: float


def healthy_pairs(state: PairState) -> HealthyPairs:
    """Return the statistics of the cluster of fast pairs, which slow pairs don't influence."""
    medians = sorted(_median_and_mad(each.samples)[0] for each in state.measurements if each.samples)
    if not medians:
        return HealthyPairs(None, _MIN_NOISE, 0.0)
    reference = medians[math.ceil(_START_QUANTILE * (len(medians) - 1))]
    for _ in range(_MAX_STEPS):
        healthy = [value for value in medians if abs(value - reference) <= _HEALTHY_RANGE * reference]
        before, reference = reference, statistics.median(healthy)
        if reference == before:
            break
    noise = NORMAL * mad(healthy) / reference if reference and len(healthy) >= _MIN_PAIRS else 0.0
    return HealthyPairs(reference, max(noise, _MIN_NOISE), _spread(state))


def _spread(state: PairState) -> float:
    """Return the median over pairs of the relative spread of their samples."""
    spreads = [
        NORMAL * deviation / middle
        for each in state.measurements
        if len(each.samples) >= _MIN_SAMPLES
        for middle, deviation in (_median_and_mad(each.samples),)
        if middle > 0
    ]
    return statistics.median(spreads) if spreads else 0.0


@lru_cache(maxsize=16_384)
def _median_and_mad(samples: tuple[float, ...]) -> tuple[float, float]:
    """Return median and MAD; cached, because every round evaluates all samples again."""
    return statistics.median(samples), mad(samples)


def compare_with_healthy(state: PairState, healthy: HealthyPairs) -> list[Reading]:
    """Return a reading for each measurement, in their order."""
    return [_reading(each, state, healthy) for each in state.measurements]


def _reading(measurement: PairMeasurement, state: PairState, healthy: HealthyPairs) -> Reading:
    if not measurement.samples or not healthy.reference:
        return Reading(measurement, 1.0, slow=True, partly_slow=False)
    bad_below = state.settings.bad_below
    below = 1.0 - _median_and_mad(measurement.samples)[0] / healthy.reference
    lowest = healthy.reference * (1.0 - max(bad_below, LOW_MODE_DEVIATIONS * healthy.spread))
    slow = below >= _SLOW_FROM * bad_below
    partly_slow = not slow and sum(sample < lowest for sample in measurement.samples) >= _MIN_LOW_SAMPLES
    return Reading(measurement, below, slow=slow or partly_slow, partly_slow=partly_slow)


def busy_rounds(readings: Iterable[Reading], *, surveys: bool) -> frozenset[int]:
    """Return the rounds in which the fabric was busy, so that slow pairs in them don't count.

    Parameters
    ----------
    surveys
        Whether rounds of the survey can be busy. Where every pair is measured, a round may consist of the
        pairs that use a slow path, and each slow pair is measured again anyway.
    """
    rounds: dict[int, list[Reading]] = defaultdict(list)
    for each in readings:
        rounds[each.measurement.round].append(each)
    surveyed = {number for number, members in rounds.items() if _is_survey(members)}
    busy = {
        number
        for number, members in rounds.items()
        if (surveys or number not in surveyed)
        and sum(each.slow for each in members) > _busy_share(members) * len(members)
    }
    # If most rounds are busy, the cause is not temporary: then the slow pairs count.
    return frozenset(busy - surveyed if 2 * len(busy & surveyed) > len(surveyed) else busy)


def _is_survey(members: Sequence[Reading]) -> bool:
    return members[0].measurement.role in {"survey", "ring"}


def _busy_share(members: Sequence[Reading]) -> float:
    """Return the share of slow pairs above which the fabric was busy in a round."""
    if _is_survey(members):
        return next((share for pairs, share in _BUSY if len(members) >= pairs), 1.0)
    # A slow control pair of cleared nodes shows that the fabric is busy.
    controls = [each for each in members if each.measurement.role == "control"]
    return 0.5 if controls and all(each.slow for each in controls) else 1.0


@dataclass(frozen=True)
class SlowGroup:
    """Slow nodes that share a switch or path.

    Parameters
    ----------
    switch
        Name of the switch; empty if the topology is unknown and only the readings define the group.
    slow_inside
        For each reading between two nodes of the group, whether it was slow.
    ambiguous
        Whether the group is so large that the other nodes may be the slow ones instead.
    """

    nodes: tuple[str, ...]
    switch: str
    slow_inside: tuple[bool, ...]
    ambiguous: bool

    @property
    def good_inside(self) -> bool:
        """Return whether the nodes are fast with each other."""
        return len(self.slow_inside) >= 2 and 2 * sum(self.slow_inside) < len(self.slow_inside)


def by_switch(nodes: Iterable[str], switches: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the nodes by switch, without those whose switch is unknown."""
    members: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if node in switches:
            members[switches[node]].append(node)
    return members


def island(readings: Sequence[Reading], nodes: int) -> SlowGroup | None:
    """Return the smaller of two groups of nodes, which are fast within a group and slow between the groups.

    Nodes with hardly any fast partner belong to neither group.
    """
    measured = [each for each in readings if each.measurement.samples]
    group_of = {node: {node} for each in measured for node in each.nodes}
    for each in measured:
        first, second = (group_of[node] for node in each.nodes)
        if not each.slow and first is not second:
            first |= second
            group_of.update(dict.fromkeys(second, first))
    groups = {id(each): each for each in group_of.values()}.values()
    large = sorted((each for each in groups if len(each) >= _MIN_ISLAND), key=len)
    if len(large) != 2:
        return None
    small, rest = large
    counted = [each for each in measured if {*each.nodes} <= small | rest]
    inside = [each for each in counted if {*each.nodes} <= small or {*each.nodes} <= rest]
    slow = sum(each.slow for each in inside)
    if len(counted) - len(inside) < _MIN_BETWEEN or slow > _MAX_SLOW_INSIDE * len(inside):
        return None
    slow_inside = tuple(each.slow for each in inside if {*each.nodes} <= small)
    return SlowGroup(tuple(sorted(small)), "", slow_inside, len(small) > MAX_SLOW_SHARE * nodes)
