"""Evidence in pair measurements: the usual figure, each pair beside it, and who explains the slow ones."""

from collections.abc import Mapping
from dataclasses import dataclass

from .islands import Island, island
from .readings import Reading, busy_rounds, read, usual
from .state import PairState
from .suspicion import Explained, Ledger, explain
from .unmistakable import below_all

#: Where a larger share of the readings is slow and nothing explains it, no node can be cleared.
_UNEXPLAINED = 0.4


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
