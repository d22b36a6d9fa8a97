"""Evidence in pair measurements: the usual measurement, each pair beside it, and what explains slow ones.

`weigh` gathers the evidence; `below_all` finds a node that is far below all others whatever the noise;
`slow_switches` finds nodes that are slow with all others but good among themselves, where the switch or path
is at fault.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .readings import EITHER, Island, Reading, busy_rounds, island, read, usual
from .state import PairMeasurement, PairState
from .suspicion import Explained, Ledger, explain

#: With fewer pairs that the node is not in, their order may be chance.
_LEAST_OTHERS = 3
_LEAST_PARTNERS = 3
#: In fewer rounds each of its pairs may have been congested.
_LEAST_ROUNDS = 5
#: Where a larger share of the readings is slow and nothing explains it, no node can be cleared.
_UNEXPLAINED = 0.4
#: So many nodes of a switch, and this share of those that were measured, must be slow.
_LEAST_NODES, _LEAST_SHARE = 3, 0.6


@dataclass(frozen=True)
class Evidence:
    """All readings, and what follows for each node.

    Parameters
    ----------
    reference, noise, spread
        See `readings.Usual`.
    readings
        Node to its readings that count, in their order: slow ones in busy rounds don't.
    busy
        Rounds in which the fabric was busy.
    explained
        Nodes and pairs that explain slow readings.
    recheck
        Pairs that were slow each time they were read, and neither node explains it: more readings tell.
    cleared
        Nodes that nothing is held against, and that were good with a partner at least.
    met
        Node to the partners, none of them convicted, with which it was good.
    unmistakable
        A node that is below all others whatever the noise is, if there is one.
    island
        A group of nodes that is slow with all others, where no topology is known.
    """

    reference: float | None
    noise: float
    spread: float
    readings: Mapping[str, tuple[Reading, ...]]
    busy: frozenset[int]
    explained: Explained
    recheck: tuple[tuple[str, str], ...]
    cleared: frozenset[str]
    met: Mapping[str, frozenset[str]]
    unmistakable: frozenset[str] = frozenset()
    island: Island | None = None

    @property
    def convicted(self) -> frozenset[str]:
        """Return the nodes that are at fault."""
        return self.explained.convicted

    @property
    def suspected(self) -> tuple[str, ...]:
        """Return the nodes that are slow with most partners and not convicted, the strongest first."""
        return tuple(node for node in self.explained.suspected if node not in self.convicted)

    @property
    def links(self) -> frozenset[tuple[str, str]]:
        """Return the pairs that are at fault."""
        return self.explained.links

    @property
    def unexplained(self) -> bool:
        """Return whether so much is slow without an explanation that nothing can be cleared."""
        return self.explained.slow_share > _UNEXPLAINED


def weigh(state: PairState) -> Evidence:
    """Return the evidence in a state."""
    of = usual(state)
    found = read(state, of)
    busy = busy_rounds(found, surveys=not state.every_pair)
    counted = [
        each
        for each in found
        if not (each.slow and each.measurement.round in busy and each.measurement.samples)
    ]
    ledger = Ledger(state.nodes, counted)
    known = {node for each in state.measurements for node in each.accused}
    unmistakable = below_all([each.measurement for each in counted], state.settings.bad_below)
    apart = None if state.switches else island(counted, len(state.nodes))
    # What they share explains all of their pairs with others, though it is not theirs.
    accounted = frozenset() if apart is None or apart.either else apart.nodes
    explained = explain(ledger, known | unmistakable | accounted)
    accountable = set(explained.suspected) | explained.convicted
    recheck = tuple(
        pair
        for pair, (slow, times) in ledger.pairs.items()
        if slow == times and pair not in explained.links and not accountable & set(pair)
    )
    again = {node for pair in recheck if ledger.pairs[pair][1] >= 2 for node in pair}
    met = {
        node: frozenset(
            each.other(node) for each in ledger.own[node]
            if not each.slow and each.other(node) not in explained.convicted
        )
        for node in state.nodes
    }  # fmt: skip
    cleared = frozenset(
        node
        for node in state.nodes
        if node not in accountable and node not in again and node not in explained.doubted and met[node]
    )
    own = {node: tuple(ledger.own[node]) for node in state.nodes if ledger.own[node]}
    return Evidence(
        of.reference, of.noise, of.spread, own, busy, explained, recheck, cleared, met, unmistakable, apart
    )


@dataclass(frozen=True)
class SlowGroup:
    """Nodes that share what is slow.

    Parameters
    ----------
    switch
        Its name, where the topology is known; empty where the group follows from the readings alone.
    among
        For each reading between two of them: whether it was slow.
    either
        The group is so large that the rest may be at fault as well.
    """

    nodes: tuple[str, ...]
    switch: str
    among: tuple[bool, ...]
    either: bool

    @property
    def good_inside(self) -> bool:
        """Return whether the nodes are fast with each other."""
        return len(self.among) >= 2 and 2 * sum(self.among) < len(self.among)


def slow_together(state: PairState, evidence: Evidence) -> tuple[SlowGroup, ...]:
    """Return groups of nodes that are slow with most others; whether also with each other is not asked."""
    slow = [*evidence.explained.suspected, *sorted(evidence.convicted - set(evidence.explained.suspected))]
    slow = [
        node for node in slow if any(each.measurement.samples for each in evidence.readings.get(node, ()))
    ]
    members: dict[str, list[str]] = {}
    for node in state.nodes:
        if node in state.switches and node in evidence.readings:
            members.setdefault(state.switches[node], []).append(node)
    found = []
    for switch, nodes in members.items():
        own = [node for node in nodes if node in slow]
        if len(own) >= _LEAST_NODES and len(own) >= _LEAST_SHARE * len(nodes):
            found.append(_group(own, switch, state, evidence))
    # If every switch looks like this, no path is special.
    if found:
        return tuple(found) if len(found) < len(members) else ()
    return (_group(slow, "", state, evidence),) if not members and len(slow) >= _LEAST_NODES else ()


def _group(nodes: list[str], switch: str, state: PairState, evidence: Evidence) -> SlowGroup:
    inside = set(nodes)
    among = tuple(
        reading.slow
        for node in nodes
        for reading in evidence.readings.get(node, ())
        if node == reading.measurement.first and reading.other(node) in inside
    )
    return SlowGroup(tuple(nodes), switch, among, len(nodes) > EITHER * len(state.nodes))


def slow_switches(state: PairState, evidence: Evidence) -> tuple[SlowGroup, ...]:
    """Return the groups whose switch or path is to blame, not the nodes.

    Nodes of one known switch that are slow with each other as well share it too; without a topology, such
    nodes are slow by themselves.
    """
    if evidence.island:
        apart = evidence.island
        return (SlowGroup(tuple(sorted(apart.nodes)), "", apart.among, apart.either),)
    return tuple(
        group
        for group in slow_together(state, evidence)
        if group.good_inside or (group.switch and group.among and len(group.nodes) >= _LEAST_NODES)
    )


def below_all(measurements: Sequence[PairMeasurement], bad_below: float) -> frozenset[str]:
    """Return the node whose best sample with any partner is `bad_below` below the worst of all other pairs.

    The other pairs must overlap, each with each: then samples vary by themselves and not from pair to pair,
    and it can't be chance that those of one node are all the lowest.

    Returns
    -------
    One node, or none.
    """
    measured = [each for each in measurements if each.samples]
    if not measured:
        return frozenset()
    lowest = min(measured, key=lambda each: min(each.samples))
    for node in (lowest.first, lowest.second):
        own = [each for each in measured if node in {each.first, each.second}]
        others = [each for each in measured if node not in {each.first, each.second}]
        partners = {name for each in own for name in (each.first, each.second)} - {node}
        few = len(partners) < _LEAST_PARTNERS or len(own) < _LEAST_ROUNDS
        if few or len(others) < _LEAST_OTHERS:
            continue
        best = max(max(each.samples) for each in own)
        floor = min(min(each.samples) for each in others)
        overlap = max(min(each.samples) for each in others) <= min(max(each.samples) for each in others)
        if overlap and best < (1.0 - bad_below) * floor:
            return frozenset({node})
    return frozenset()
