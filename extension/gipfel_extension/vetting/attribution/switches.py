"""Switches whose nodes are slow with all others but good among themselves: the path is to blame, not they."""

from collections.abc import Iterable

from .evidence import Evidence
from .state import PairState

#: So many nodes of a switch, and this share of those that were measured, must be slow.
_LEAST_NODES, _LEAST_SHARE = 3, 0.6


def slow_together(state: PairState, evidence: Evidence) -> dict[str, tuple[str, ...]]:
    """Switch to its convicted nodes, where most of its nodes are convicted."""
    members: dict[str, list[str]] = {}
    for node in state.nodes:
        if node in state.switches and node in evidence.readings:
            members.setdefault(state.switches[node], []).append(node)
    found = {}
    for switch, nodes in members.items():
        slow = tuple(node for node in nodes if node in evidence.convicted)
        if len(slow) >= _LEAST_NODES and len(slow) >= _LEAST_SHARE * len(nodes):
            found[switch] = slow
    # If every switch looks like this, no path is special.
    return found if len(found) < len(members) else {}


def among_themselves(evidence: Evidence, nodes: Iterable[str]) -> list[bool]:
    """For each measurement between two of these nodes: whether it was slow."""
    inside = set(nodes)
    return [
        reading.slow
        for node in inside
        for reading in evidence.readings.get(node, ())
        if reading.other(node) in inside and node == reading.measurement.first
    ]


def slow_switches(state: PairState, evidence: Evidence) -> dict[str, tuple[str, ...]]:
    """The switches that are to blame: their slow nodes were measured with each other, and most were good."""
    found = {}
    for switch, nodes in slow_together(state, evidence).items():
        inside = among_themselves(evidence, nodes)
        if inside and 2 * sum(inside) < len(inside):
            found[switch] = nodes
    return found
