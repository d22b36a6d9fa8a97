"""Groups of nodes that are slow with all others but good among themselves: a switch or path is to blame."""

from dataclasses import dataclass

from .evidence import Evidence
from .islands import EITHER
from .state import PairState

#: So many nodes of a switch, and this share of those that were measured, must be slow.
_LEAST_NODES, _LEAST_SHARE = 3, 0.6


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
