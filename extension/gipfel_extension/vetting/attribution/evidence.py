"""Collect the evidence in pair measurements: readings, busy rounds, nodes and links that explain slow ones.

`collect_evidence` is the entry point; `far_below_all` finds a node that is below all others despite noise;
`slow_switches` finds nodes that are slow with all others but not with each other: their switch or path
is at fault.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .measurements import (
    MAX_SLOW_SHARE,
    HealthyPairs,
    PairMeasurement,
    PairState,
    Reading,
    SlowGroup,
    busy_rounds,
    by_switch,
    compare_with_healthy,
    healthy_pairs,
    island,
)
from .suspicion import Explanation, Ledger, explain_slow_readings

#: Least number of pairs of other nodes: with fewer, being the slowest may be a coincidence.
_MIN_OTHER_PAIRS = 3
_MIN_PARTNERS = 3
#: Least number of rounds: with fewer, each pair of the node may have been congested.
_MIN_ROUNDS = 5
#: If a larger share of the readings is slow without an explanation, no node can be cleared.
_MAX_UNEXPLAINED = 0.4
#: Slow nodes of a slow switch: their least number, and their least share of the switch's measured nodes.
_MIN_NODES, _MIN_SHARE = 3, 0.6


@dataclass(frozen=True)
class Evidence:
    """Evidence for and against each node and link.

    Parameters
    ----------
    healthy
        Statistics of the healthy pairs, with which the others are compared.
    readings
        Readings by node, in their order, without slow ones of busy rounds.
    busy
        Rounds in which most pairs were slow at once, because the fabric was busy.
    explained
        Nodes and pairs that explain slow readings; see `explain_slow_readings`.
    recheck
        Pairs that were slow each time, which neither node explains; they are measured again.
    cleared
        Nodes without evidence against them that were good with at least one partner.
    good_partners
        Partners by node with which it was good, without convicted ones.
    unmistakable
        The node that is below all others despite noise, if there is one; see `far_below_all`.
    island
        A group of nodes that is slow with all others; None if the topology is known.
    """

    healthy: HealthyPairs
    readings: Mapping[str, tuple[Reading, ...]]
    busy: frozenset[int]
    explained: Explanation
    recheck: tuple[tuple[str, str], ...]
    cleared: frozenset[str]
    good_partners: Mapping[str, frozenset[str]]
    unmistakable: frozenset[str] = frozenset()
    island: SlowGroup | None = None

    @property
    def convicted(self) -> frozenset[str]:
        """Return the nodes that are at fault."""
        return self.explained.convicted

    @property
    def unexplained(self) -> bool:
        """Return whether so many readings are slow without an explanation that no node can be cleared."""
        return self.explained.slow_share > _MAX_UNEXPLAINED


def collect_evidence(state: PairState) -> Evidence:
    """Return the evidence in the measurements of a state."""
    healthy = healthy_pairs(state)
    readings = compare_with_healthy(state, healthy)
    busy = busy_rounds(readings, surveys=not state.every_pair)
    counted = [
        each
        for each in readings
        if not (each.slow and each.measurement.round in busy and each.measurement.samples)
    ]
    ledger = Ledger(state.nodes, counted)
    known = {node for each in state.measurements for node in each.accused}
    unmistakable = far_below_all([each.measurement for each in counted], state.settings.bad_below)
    separate = None if state.switches else island(counted, len(state.nodes))
    # The path that the nodes of an island share explains their slow pairs with others.
    on_island = frozenset() if separate is None or separate.ambiguous else frozenset(separate.nodes)
    explained = explain_slow_readings(ledger, known | unmistakable | on_island)
    blamed = set(explained.suspected) | explained.convicted
    recheck = tuple(
        pair
        for pair, (slow, times) in ledger.pairs.items()
        if slow == times and pair not in explained.links and not blamed & set(pair)
    )
    doubtful = {node for pair in recheck if ledger.pairs[pair][1] >= 2 for node in pair}
    good_partners = {
        node: frozenset(
            each.other(node) for each in ledger.own[node]
            if not each.slow and each.other(node) not in explained.convicted
        )
        for node in state.nodes
    }  # fmt: skip
    cleared = frozenset(
        node
        for node in state.nodes
        if node not in blamed
        and node not in doubtful
        and node not in explained.doubted
        and good_partners[node]
    )
    own = {node: tuple(ledger.own[node]) for node in state.nodes if ledger.own[node]}
    return Evidence(
        healthy, own, busy, explained, recheck, cleared,
        good_partners, unmistakable, separate,
    )  # fmt: skip


def slow_groups(state: PairState, evidence: Evidence) -> tuple[SlowGroup, ...]:
    """Return groups of nodes that are slow with most others, and possibly with each other."""
    slow = [*evidence.explained.suspected, *sorted(evidence.convicted - set(evidence.explained.suspected))]
    slow = [
        node for node in slow if any(each.measurement.samples for each in evidence.readings.get(node, ()))
    ]
    members = by_switch(evidence.readings, state.switches)
    groups = []
    for switch, nodes in members.items():
        own = [node for node in nodes if node in slow]
        if len(own) >= _MIN_NODES and len(own) >= _MIN_SHARE * len(nodes):
            groups.append(_group(own, switch, state, evidence))
    # If every switch has such a group, the switches are not the cause.
    if groups:
        return tuple(groups) if len(groups) < len(members) else ()
    return (_group(slow, "", state, evidence),) if not members and len(slow) >= _MIN_NODES else ()


def _group(nodes: list[str], switch: str, state: PairState, evidence: Evidence) -> SlowGroup:
    inside = set(nodes)
    slow_inside = tuple(
        reading.slow
        for node in nodes
        for reading in evidence.readings.get(node, ())
        if node == reading.measurement.first and reading.other(node) in inside
    )
    return SlowGroup(tuple(nodes), switch, slow_inside, len(nodes) > MAX_SLOW_SHARE * len(state.nodes))


def slow_switches(state: PairState, evidence: Evidence) -> tuple[SlowGroup, ...]:
    """Return the groups whose switch or path is at fault, not the nodes.

    Where the switch is known, its nodes may also be slow with each other; without a topology, such
    nodes are slow themselves.
    """
    if evidence.island:
        return (evidence.island,)
    return tuple(
        group
        for group in slow_groups(state, evidence)
        if group.good_inside or (group.switch and group.slow_inside and len(group.nodes) >= _MIN_NODES)
    )


def far_below_all(measurements: Sequence[PairMeasurement], bad_below: float) -> frozenset[str]:
    """Return the node whose best sample is `bad_below` below the worst sample of all pairs of other nodes.

    The samples of the other pairs must overlap: then they vary within pairs and not between pairs, and it
    can't be chance that all samples of one node are the lowest.

    Returns
    -------
    A set of one node, or an empty set.
    """
    measured = [each for each in measurements if each.samples]
    if not measured:
        return frozenset()
    lowest = min(measured, key=lambda each: min(each.samples))
    for node in (lowest.first, lowest.second):
        own = [each for each in measured if node in {each.first, each.second}]
        others = [each for each in measured if node not in {each.first, each.second}]
        partners = {name for each in own for name in (each.first, each.second)} - {node}
        few = len(partners) < _MIN_PARTNERS or len(own) < _MIN_ROUNDS
        if few or len(others) < _MIN_OTHER_PAIRS:
            continue
        best = max(max(each.samples) for each in own)
        floor = min(min(each.samples) for each in others)
        overlap = max(min(each.samples) for each in others) <= min(max(each.samples) for each in others)
        if overlap and best < (1.0 - bad_below) * floor:
            return frozenset({node})
    return frozenset()
