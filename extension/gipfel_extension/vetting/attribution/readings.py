"""Readings: each pair compared with a healthy pair of this allocation, busy rounds, and islands.

An island is a group of nodes that is fast inside and slow with the rest; it is looked for where no topology
is known.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..statistics import NORMAL, mad
from .state import PairMeasurement, PairState

#: Noise of a pair's median is taken to be this share at least: a handful of pairs shows too little of it.
_LEAST_NOISE = 0.006
#: A measurement is slow from this share of `bad_below` on: one that is exactly at it must not slip through.
_SLOW_FROM = 0.7
#: So many standard deviations of its kind below, a sample is in a lower mode; and so many make one.
LOW_BY, _LOW_SAMPLES = 4.0, 2
#: Where more than this share of so many pairs is slow in a round, the fabric is busy; fewer say nothing.
_BUSY = ((8, 0.34), (4, 0.6))
#: Healthy pairs lie around the reference by this share; it is sought from the pair that this share is below.
_AROUND, _FROM = 0.07, 0.9
_MOST_STEPS = 20
#: With fewer samples a pair says nothing of how they vary, and with fewer pairs nothing of how these do.
_LEAST_SAMPLES, _LEAST_PAIRS = 4, 5
#: Smaller groups are nodes that are slow by themselves.
_LEAST_NODES = 3
#: So many slow pairs between two groups are no chance, unless more than this share inside them is slow, too.
_LEAST_BETWEEN, _MOST_SLOW_INSIDE = 6, 0.2
#: Beyond this share of all nodes, a group can't be told from the rest: either may be the slow one.
EITHER = 0.34


@dataclass(frozen=True)
class Reading:
    """One pair in one round beside the reference.

    Parameters
    ----------
    below
        Share below the reference; 1 where the pair gave no samples.
    slow
        The median is low, or samples of a lower mode are among them, or there are none.
    mixed
        Slow because of a lower mode, though the median is not.
    """

    measurement: PairMeasurement
    below: float
    slow: bool
    mixed: bool

    @property
    def nodes(self) -> tuple[str, str]:
        """Return the two nodes."""
        return self.measurement.first, self.measurement.second

    @property
    def pair(self) -> tuple[str, str]:
        """Return the two nodes in the order of their names."""
        first, second = self.nodes
        return (first, second) if first < second else (second, first)

    def other(self, node: str) -> str:
        """Return the partner of one of the two."""
        first, second = self.nodes
        return second if node == first else first


@dataclass(frozen=True)
class Usual:
    """Usual figures of this allocation.

    Parameters
    ----------
    reference
        What a healthy pair gives, in the samples' unit; None where nothing was measured.
    noise
        Standard deviation of a healthy pair's median, as a share, by how its like differ from each other.
    spread
        Standard deviation of a healthy pair's samples, as a share, by how they differ within the pair.
    """

    reference: float | None
    noise: float
    spread: float


def usual(state: PairState) -> Usual:
    """Return what is usual: the densest of the fast pairs, so that a slow switch doesn't decide what is."""
    medians = sorted(_middle(each.samples)[0] for each in state.measurements if each.samples)
    if not medians:
        return Usual(None, _LEAST_NOISE, 0.0)
    reference = medians[math.ceil(_FROM * (len(medians) - 1))]
    for _ in range(_MOST_STEPS):
        near = [value for value in medians if abs(value - reference) <= _AROUND * reference]
        before, reference = reference, statistics.median(near)
        if reference == before:
            break
    noise = NORMAL * mad(near) / reference if reference and len(near) >= _LEAST_PAIRS else 0.0
    return Usual(reference, max(noise, _LEAST_NOISE), _spread(state))


def _spread(state: PairState) -> float:
    """Return that of the pair in the middle; a pair that moved nothing says nothing of it."""
    spreads = [
        NORMAL * deviation / middle
        for each in state.measurements
        if len(each.samples) >= _LEAST_SAMPLES
        for middle, deviation in (_middle(each.samples),)
        if middle > 0
    ]
    return statistics.median(spreads) if spreads else 0.0


@lru_cache(maxsize=16_384)
def _middle(samples: tuple[float, ...]) -> tuple[float, float]:
    """Return median and MAD; every round looks at all samples again."""
    return statistics.median(samples), mad(samples)


def read(state: PairState, of: Usual) -> list[Reading]:
    """Return a reading of each measurement, in their order."""
    return [_reading(each, state, of) for each in state.measurements]


def _reading(measurement: PairMeasurement, state: PairState, of: Usual) -> Reading:
    if not measurement.samples or not of.reference:
        return Reading(measurement, 1.0, slow=True, mixed=False)
    bad_below = state.settings.bad_below
    below = 1.0 - _middle(measurement.samples)[0] / of.reference
    lowest = of.reference * (1.0 - max(bad_below, LOW_BY * of.spread))
    slow = below >= _SLOW_FROM * bad_below
    mixed = not slow and sum(sample < lowest for sample in measurement.samples) >= _LOW_SAMPLES
    return Reading(measurement, below, slow=slow or mixed, mixed=mixed)


def busy_rounds(readings: Iterable[Reading], *, surveys: bool) -> frozenset[int]:
    """Return rounds in which the fabric was busy: what was slow in them says nothing.

    Parameters
    ----------
    surveys
        Whether rounds of the survey are among them. Where every pair is measured, a round may hold just the
        pairs that use a slow path, and each slow pair is measured again anyway.
    """
    rounds: dict[int, list[Reading]] = defaultdict(list)
    for each in readings:
        rounds[each.measurement.round].append(each)
    busy, surveyed = set(), set()
    for number, members in rounds.items():
        slow = sum(each.slow for each in members)
        survey = members[0].measurement.role in {"survey", "ring"}
        if survey and not surveys:
            continue
        if survey:
            surveyed.add(number)
            share = next((share for pairs, share in _BUSY if len(members) >= pairs), 1.0)
        else:
            # Cleared nodes that are slow together with the suspects: it is not they.
            controls = [each for each in members if each.measurement.role == "control"]
            share = 0.5 if controls and all(each.slow for each in controls) else 1.0
        if slow > share * len(members):
            busy.add(number)
    # If it is busy most of the time, it is not the moment: then the slow pairs count.
    return frozenset(busy - surveyed if 2 * len(busy & surveyed) > len(surveyed) else busy)


@dataclass(frozen=True)
class Island:
    """Smaller of two groups of nodes, each fast inside and slow with the other.

    Parameters
    ----------
    among
        For each reading between two of its nodes: whether it was slow.
    either
        It is so large that the rest may be at fault as well.
    """

    nodes: frozenset[str]
    among: tuple[bool, ...]
    either: bool


def island(readings: Sequence[Reading], nodes: int) -> Island | None:
    """Return the smaller of two groups of nodes that fast pairs join, all pairs between them slow.

    Nodes that are fast with hardly any other belong to neither.
    """
    measured = [each for each in readings if each.measurement.samples]
    group_of = {node: {node} for each in measured for node in each.nodes}
    for each in measured:
        first, second = (group_of[node] for node in each.nodes)
        if not each.slow and first is not second:
            first |= second
            group_of.update(dict.fromkeys(second, first))
    groups = {id(each): each for each in group_of.values()}.values()
    large = sorted((each for each in groups if len(each) >= _LEAST_NODES), key=len)
    if len(large) != 2:
        return None
    small, rest = large
    counted = [each for each in measured if {*each.nodes} <= small | rest]
    inside = [each for each in counted if {*each.nodes} <= small or {*each.nodes} <= rest]
    slow = sum(each.slow for each in inside)
    if len(counted) - len(inside) < _LEAST_BETWEEN or slow > _MOST_SLOW_INSIDE * len(inside):
        return None
    among = tuple(each.slow for each in inside if {*each.nodes} <= small)
    return Island(frozenset(small), among, len(small) > EITHER * nodes)
