"""Two groups of nodes, fast inside and slow with each other: what follows where no topology is known."""

from collections.abc import Sequence
from dataclasses import dataclass

from .readings import Reading

#: Smaller groups are nodes that are slow by themselves.
_LEAST_NODES = 3
#: So many slow pairs between two groups are no chance, unless more than this share inside them is slow, too.
_LEAST_BETWEEN, _MOST_SLOW_INSIDE = 6, 0.2
#: Beyond this share of all nodes, a group can't be told from the rest: either may be the slow one.
EITHER = 0.34


@dataclass(frozen=True)
class Island:
    """The smaller of two groups.

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
