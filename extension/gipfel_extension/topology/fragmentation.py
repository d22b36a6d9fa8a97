"""Fragmentation of a job over leaf switches, and the share of its traffic that crosses them; pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

#: Axes whose neighbours exchange data in every step.
AXES = ("pp", "dp")
_PLURALS = {"leaf switch": "leaf switches", "block": "blocks", "chassis": "chassis"}


@dataclass(frozen=True)
class Crossing:
    """Neighbouring ranks on an axis: pairs, and those of them on different leaf switches."""

    pairs: int
    crossing: int

    @property
    def share(self) -> float:
        """Share of pairs that cross; 0 without pairs."""
        return self.crossing / self.pairs if self.pairs else 0.0


@dataclass(frozen=True)
class Fragmentation:
    """Leaf switches of a job.

    Parameters
    ----------
    nodes
        Number of nodes whose leaf is known.
    leaves
        Number of nodes of the job on each leaf that it uses.
    fewest
        Number of leaves that so many nodes need at least; None where sizes of leaves are unknown.
    crossings
        Of each axis that the job has, in the order of :data:`AXES`.
    """

    nodes: int
    leaves: Mapping[str, int] = field(default_factory=dict)
    fewest: int | None = None
    crossings: Mapping[str, Crossing] = field(default_factory=dict)

    def sentence(self, unit: str = "leaf switch") -> str:
        """Return the finding as one sentence; empty where no leaf is known.

        Parameters
        ----------
        unit
            ``leaf switch``, ``block`` or ``chassis``.
        """
        if not self.leaves:
            return ""
        used = len(self.leaves)
        text = f"{used} {unit if used == 1 else _PLURALS[unit]} used"
        if self.fewest is not None:
            text += ", the fewest possible" if used <= self.fewest else f", {self.fewest} would do"
        shares = [
            f"{100 * each.share:.0f} % of {axis} neighbours ({each.crossing} of {each.pairs} pairs)"
            for axis, each in self.crossings.items()
            if each.pairs
        ]
        return f"{text}; {' and '.join(shares)} cross one." if shares else f"{text}."


def fragmentation(
    leaf_of: Mapping[str, str],
    sizes: Mapping[str, int],
    coordinates: Mapping[int, Mapping[str, int]],
    node_of: Mapping[int, str],
) -> Fragmentation:
    """Return how scattered a job is.

    Parameters
    ----------
    leaf_of
        Node of the job to its leaf switch; nodes whose leaf is unknown are left out.
    sizes
        Number of the cluster's nodes on each leaf; empty where unknown.
    coordinates, node_of
        Role and node of each rank.
    """
    leaves: dict[str, int] = {}
    for leaf in leaf_of.values():
        leaves[leaf] = leaves.get(leaf, 0) + 1
    axes = [axis for axis in AXES if any(axis in own for own in coordinates.values())]
    crossings = {}
    for axis in axes:
        places = [
            (leaf_of.get(node_of.get(first, ""), ""), leaf_of.get(node_of.get(second, ""), ""))
            for first, second in neighbours(coordinates, axis)
        ]
        known = [pair for pair in places if all(pair)]
        crossings[axis] = Crossing(len(known), sum(first != second for first, second in known))
    return Fragmentation(len(leaf_of), leaves, fewest_leaves(len(leaf_of), sizes.values()), crossings)


def fewest_leaves(nodes: int, sizes: Iterable[int]) -> int | None:
    """Return how many leaves that many nodes need at least; None where all leaves have fewer nodes."""
    left = nodes
    for count, size in enumerate(sorted(sizes, reverse=True), start=1):
        left -= size
        if left <= 0:
            return count if nodes else 0
    return None


def neighbours(coordinates: Mapping[int, Mapping[str, int]], axis: str) -> Iterator[tuple[int, int]]:
    """Yield pairs of ranks that are next to each other on an axis and equal on all others.

    Pipeline stages are a chain; other axes are rings, as collectives use them, so that of more than two ranks
    the last is next to the first.
    """
    lines: dict[tuple[tuple[str, int], ...], list[tuple[int, int]]] = {}
    for rank, own in coordinates.items():
        if axis in own:
            others = tuple(sorted((name, value) for name, value in own.items() if name != axis))
            lines.setdefault(others, []).append((own[axis], rank))
    for line in lines.values():
        ranks = [rank for _, rank in sorted(line)]
        yield from pairwise(ranks)
        if axis != "pp" and len(ranks) > 2:
            yield ranks[-1], ranks[0]
