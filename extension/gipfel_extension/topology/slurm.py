"""Switches and blocks from what ``scontrol show topology`` prints; cabinets and chassis from node names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gipfel_cluster.scheduler.notation import expand_hostlist

_WORD = re.compile(r"([A-Za-z]+)=(\S*)")
_XNAME = re.compile(r"((x\d{1,5})c\d{1,2})s\d{1,3}b\d{1,2}n\d{1,2}", re.ASCII)
_MOST_LEVELS = 16
_MOST_NODES = 200_000


@dataclass(frozen=True)
class Fabric:
    """Switches of a cluster.

    Parameters
    ----------
    kind
        ``tree`` or ``block``; empty without any.
    leaf_of
        Node to its leaf switch or block.
    parent_of
        Switch to the one above it.
    sizes
        Number of the cluster's nodes on each leaf.
    """

    kind: str = ""
    leaf_of: Mapping[str, str] = field(default_factory=dict)
    parent_of: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def path(self, node: str) -> tuple[str, ...]:
        """Return the switches above a node from the root to the leaf; empty for an unknown node."""
        found: list[str] = []
        name = self.leaf_of.get(node)
        while name is not None and name not in found and len(found) < _MOST_LEVELS:
            found.append(name)
            name = self.parent_of.get(name)
        return tuple(reversed(found))


def parse_fabric(text: str) -> Fabric:
    """Return the switches or blocks in the output of ``scontrol show topology``.

    A node that is on several leaves is counted on the first. Lines of other kinds are skipped.

    Raises
    ------
    ValueError
        A list of nodes is not valid, or the lists name too many nodes.
    """
    kind = ""
    leaf_of: dict[str, str] = {}
    parent_of: dict[str, str] = {}
    sizes: dict[str, int] = {}
    named = 0
    for line in text.splitlines():
        words = dict(_WORD.findall(line))
        name = words.get("SwitchName") or words.get("BlockName") or ""
        if not name:
            continue
        is_block = "BlockName" in words
        kind = "block" if is_block else "tree"
        for child in _names(words.get("Switches", "")):
            parent_of.setdefault(child, name)
        # Switches above the leaves repeat all nodes below them.
        if not is_block and words.get("Level", "0") != "0":
            continue
        nodes = _names(words.get("Nodes", ""))
        named += len(nodes)
        if named > _MOST_NODES:
            raise ValueError(f"its lists name more than {_MOST_NODES} nodes")
        sizes[name] = len(nodes)
        for node in nodes:
            leaf_of.setdefault(node, name)
    return Fabric(kind, leaf_of, parent_of, sizes)


def cabinet_path(name: str) -> tuple[str, ...]:
    """Return cabinet and chassis of an HPE Cray name, ``x1100c0s6b1n0``; empty for other names."""
    found = _XNAME.fullmatch(name)
    return (found[2], found[1]) if found else ()


def _names(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else expand_hostlist(text)
