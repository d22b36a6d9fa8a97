"""What pair measurements say together: a reference, each pair beside it, and who explains the slow ones."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .state import PairMeasurement, PairState
from .statistics import NORMAL, mad, percentile
from .unmistakable import below_all

#: Noise of a pair's median is taken to be this share at least: a handful of pairs shows too little of it.
_LEAST_NOISE = 0.006
#: A measurement is slow from this share of `bad_below` on: one that is exactly at it must not slip through.
_SLOW_FROM = 0.7
#: Where more than this share of so many pairs is slow in a round, the fabric is busy; fewer say nothing.
_BUSY = ((8, 0.34), (4, 0.6))
#: A pair is to blame when it was slow so often, and each of its nodes good with so many others.
LINK_SLOW, _LINK_GOOD = 3, 4
#: A node that was slow once and good with so many may stand for a good one, where none was never slow.
_OFTEN_GOOD = 3
#: Nodes of which none has more than four partners.
_FEW = 5
#: Nodes among which bad ones don't decide what is usual.
_MANY = 12
#: With fewer samples a pair says nothing of how they vary.
_LEAST_SAMPLES = 4


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
        """The two nodes."""
        return self.measurement.first, self.measurement.second

    def helped_by(self, node: str) -> bool:
        """Whether the node was the cleared one of a suspect's pair."""
        return self.measurement.role == "suspect" and node == self.measurement.second

    def other(self, node: str) -> str:
        """The partner of one of the two."""
        first, second = self.nodes
        return second if node == first else first


@dataclass(frozen=True)
class Evidence:
    """All readings, and what follows for each node.

    Parameters
    ----------
    reference
        What a healthy pair of this allocation gives, in the samples' unit; None where nothing was measured.
    noise
        Standard deviation of a healthy pair's median, as a share, by how its like differ from each other.
    spread
        Standard deviation of a healthy pair's samples, as a share, by how they differ within the pair.
    readings
        Node to its readings in rounds that count, in their order.
    busy
        Rounds in which the fabric was busy: what was slow in them says nothing.
    cleared
        Nodes that were never slow, apart from what convicted nodes explain, and good with a partner at least.
    met
        Node to the partners, none of them convicted, with which it was good.
    direct
        Node to the cleared partners with which it was slow.
    convicted
        Nodes that were slow with two partners at least, which are good themselves, or did not answer.
    links
        Pairs that were slow again and again, although both nodes are good with others.
    unmistakable
        A node that is below all others whatever the noise is, if there is one.
    """

    reference: float | None
    noise: float
    readings: Mapping[str, tuple[Reading, ...]]
    busy: frozenset[int]
    cleared: frozenset[str]
    direct: Mapping[str, frozenset[str]]
    convicted: frozenset[str]
    links: frozenset[tuple[str, str]]
    met: Mapping[str, frozenset[str]]
    spread: float
    unmistakable: frozenset[str] = frozenset()


def weigh(state: PairState) -> Evidence:
    """The evidence in a state."""
    reference, noise = _reference(state)
    found = [_reading(each, state, reference) for each in state.measurements]
    busy = _busy_rounds(found)
    counted = [
        each
        for each in found
        if not (each.slow and each.measurement.round in busy and each.measurement.samples)
    ]
    readings: dict[str, list[Reading]] = defaultdict(list)
    for each in counted:
        for node in each.nodes:
            readings[node].append(each)
    fixed = {node: tuple(each) for node, each in readings.items()}
    links = _links(counted)
    known = {node for each in state.measurements for node in each.accused}
    unmistakable = below_all([each.measurement for each in counted], state.settings.bad_below)
    known |= unmistakable
    cleared, direct, convicted = _explain(state.nodes, fixed, links, known)
    met = {
        node: frozenset(
            each.other(node)
            for each in fixed.get(node, ())
            if not each.slow and each.other(node) not in convicted
        )
        for node in state.nodes
    }
    return Evidence(
        reference, noise, fixed, busy, cleared, direct, convicted, links, met, _spread(state), unmistakable
    )


def _spread(state: PairState) -> float:
    """That of the pair in the middle; a pair that moved nothing says nothing of it."""
    spreads = [
        NORMAL * mad(each.samples) / usual
        for each in state.measurements
        if len(each.samples) >= _LEAST_SAMPLES and (usual := statistics.median(each.samples)) > 0
    ]
    return statistics.median(spreads) if spreads else 0.0


def _reference(state: PairState) -> tuple[float | None, float]:
    medians = sorted(statistics.median(each.samples) for each in state.measurements if each.samples)
    if not medians:
        return None, _LEAST_NOISE
    # A bad node spoils two of the three pairs of three nodes: of a few nodes the better pairs are asked.
    nodes = len(state.nodes)
    share = 0.5 if nodes >= _MANY else 0.75 if nodes >= 5 else 1.0
    reference = percentile(medians, share)
    upper = [value for value in medians if value >= reference * 0.97]
    noise = NORMAL * mad(upper) / reference if reference and len(upper) >= 5 else 0.0
    return reference, max(noise, _LEAST_NOISE)


def _reading(measurement: PairMeasurement, state: PairState, reference: float | None) -> Reading:
    if not measurement.samples or not reference:
        return Reading(measurement, 1.0, slow=True, mixed=False)
    settings = state.settings
    below = 1.0 - statistics.median(measurement.samples) / reference
    low = sum(sample < reference * (1.0 - settings.bad_below) for sample in measurement.samples)
    slow = below >= _SLOW_FROM * settings.bad_below
    mixed = not slow and low >= 2
    return Reading(measurement, below, slow=slow or mixed, mixed=mixed)


def _busy_rounds(readings: Iterable[Reading]) -> frozenset[int]:
    rounds: dict[int, list[Reading]] = defaultdict(list)
    for each in readings:
        rounds[each.measurement.round].append(each)
    busy = set()
    for number, members in rounds.items():
        controls = [
            each for each in members if each.measurement.role == "control" and each.measurement.samples
        ]
        survey = [each for each in members if each.measurement.role == "survey"]
        slow = [each for each in survey if each.slow]
        # Cleared nodes that are slow together: it is not they.
        hindered = bool(controls) and 2 * sum(each.slow for each in controls) >= len(controls)
        share = next((share for pairs, share in _BUSY if len(survey) >= pairs), 1.0)
        if hindered or len(slow) > share * len(survey):
            busy.add(number)
    # If it is always busy, it is not the moment: then the slow pairs count.
    surveyed = {number for number, members in rounds.items() if members[0].measurement.role == "survey"}
    return frozenset(busy - surveyed if surveyed and surveyed <= busy else busy)


def _links(readings: Iterable[Reading]) -> frozenset[tuple[str, str]]:
    """Pairs that were slow again and again, their nodes good with others and slow with nobody else."""
    pairs: dict[tuple[str, str], int] = defaultdict(int)
    slow: dict[str, set[str]] = defaultdict(set)
    good: dict[str, set[str]] = defaultdict(set)
    for each in readings:
        first, second = sorted(each.nodes)
        if each.slow and each.measurement.samples:
            # Two modes are a node's, or nobody knows whose.
            pairs[first, second] += -LINK_SLOW if each.mixed else 1
        for node in each.nodes:
            (slow if each.slow else good)[node].add(each.other(node))
    return frozenset(
        pair
        for pair, count in pairs.items()
        if count >= LINK_SLOW
        and all(slow[node] == set(pair) - {node} and len(good[node]) >= _LINK_GOOD for node in pair)
    )


def _explain(
    nodes: Iterable[str],
    readings: Mapping[str, tuple[Reading, ...]],
    links: frozenset[tuple[str, str]],
    known: Iterable[str],
) -> tuple[frozenset[str], dict[str, frozenset[str]], frozenset[str]]:
    """Convict step by step: what a convicted node explains no longer counts against its partners."""
    convicted = set(known)
    while True:
        table = {node: _tally(node, readings.get(node, ()), convicted, links) for node in nodes}
        left = [node for node in nodes if node not in convicted and table[node].good]
        # Of a few nodes all may have had a slow moment: those count as good that were good much more often.
        cleared = {node for node in left if not table[node].slow} or {
            node for node in left if len(table[node].good) >= max(_OFTEN_GOOD, 2 * table[node].times)
        }
        # A partner that was slow with nobody else, and good with several, speaks against the node as well.
        direct = {
            node: frozenset(
                other
                for other in table[node].slow
                if other in cleared or (table[other].slow == {node} and len(table[other].good) >= _OFTEN_GOOD)
            )
            for node in nodes
        }
        more = {
            node
            for node in nodes
            if node not in convicted
            and len(direct[node]) >= 2 + len(table[node].good) // 6
            and (not table[node].good or table[node].again & direct[node])
        }
        more = more or _by_cover(table, convicted)
        if not more:
            return frozenset(cleared), direct, frozenset(convicted)
        convicted |= more


@dataclass(frozen=True)
class _Tally:
    """A node's partners, without those who explain what they share: slow with, how often, good with.

    `again` are those with which it was slow as a suspect.
    """

    slow: frozenset[str]
    times: int
    good: frozenset[str]
    again: frozenset[str]


def _tally(
    node: str, readings: Iterable[Reading], convicted: set[str], links: frozenset[tuple[str, str]]
) -> _Tally:
    own = [
        each
        for each in readings
        if each.other(node) not in convicted and tuple(sorted(each.nodes)) not in links
    ]
    # A cleared node that helps to look at a suspect is not blamed for what is seen.
    slow = [each for each in own if each.slow and not each.helped_by(node)]
    return _Tally(
        frozenset(each.other(node) for each in slow),
        len(slow),
        frozenset(each.other(node) for each in own if not each.slow),
        frozenset(each.other(node) for each in slow if each.measurement.role == "suspect"),
    )


def _by_cover(table: Mapping[str, _Tally], convicted: set[str]) -> set[str]:
    """The node that alone explains most slow pairs: its partners are slow with nobody else, good with others.

    An episode may be over before the suspects are measured again; what it left is explained like this. Of a
    few nodes there are hardly others to ask.
    """
    few = len(table) <= _FEW
    for node in sorted(table, key=lambda each: (-len(table[each].slow), each)):
        if node in convicted or len(table[node].slow) < (2 if few else 3):
            continue
        only = [
            other
            for other in table[node].slow
            if other in table and table[other].slow == {node} and len(table[other].good) >= (1 if few else 2)
        ]
        if len(only) >= 2 and len(only) > len(table[node].good):
            return {node}
    return set()
