"""Reading of a run's topology, and the fragmentation of its job over leaf switches."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gipfel_cluster.scheduler.notation import expand_hostlist

from ..telemetry.files import read_json, read_regular
from . import FOLDER, MOST_SLURM_BYTES, SLURM_FILE, Gpu, NodeTopology

_WORD = re.compile(r"([A-Za-z]+)=(\S*)")
_XNAME = re.compile(r"((x\d{1,5})c\d{1,2})s\d{1,3}b\d{1,2}n\d{1,2}", re.ASCII)
_MOST_LEVELS = 16
_MOST_NODES = 200_000
#: Axes whose neighbours exchange data in every step.
AXES = ("pp", "dp")
_PLURALS = {"leaf switch": "leaf switches", "block": "blocks", "chassis": "chassis"}


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
        Number of nodes of the cluster on each leaf.
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

    A node that is listed on several leaves counts only for the first. Lines in other formats are skipped.

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
        # Lines of switches above the leaves list the nodes of the leaves again.
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
    """Return cabinet and chassis from an HPE Cray name such as ``x1100c0s6b1n0``; empty for other names."""
    found = _XNAME.fullmatch(name)
    return (found[2], found[1]) if found else ()


def _names(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else expand_hostlist(text)


_MOST_FILES = 16_384
_MOST_BYTES = 1 << 20
_MOST_PROBLEMS = 8
#: Displayed name of each source of switches.
SOURCES: Mapping[str, str] = {
    "tree": "Slurm's switches",
    "block": "Slurm's blocks",
    "cabinet": "cabinets and chassis, from HPE Cray's names of the nodes",
    "": "unknown, since neither Slurm nor the names of nodes contain them",
}
#: Displayed name of a leaf, by source.
LEAVES: Mapping[str, str] = {"tree": "leaf switch", "block": "block", "cabinet": "chassis", "": "leaf switch"}


@dataclass(frozen=True)
class Topology:
    """Hardware of all nodes of a run that stored it, and the switches above them.

    Parameters
    ----------
    paths
        Node to its switches, from the root to the leaf; nodes without known switches are left out.
    source
        Key of :data:`SOURCES`.
    sizes
        Number of the cluster's nodes on each leaf; empty where unknown.
    problems
        What could not be read, a sentence each.
    """

    nodes: Mapping[str, NodeTopology] = field(default_factory=dict)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def leaf(self, node: str) -> str:
        """Return the leaf switch of a node; empty where unknown."""
        path = self.paths.get(node, ())
        return path[-1] if path else ""

    def gpu(self, node: str, uuid: str) -> Gpu | None:
        """Return a GPU of a node; None where the node did not store it."""
        return next((gpu for gpu in self._gpus(node) if gpu.uuid == uuid), None)

    def nic(self, node: str, gpus: Iterable[str], numa: int | None = None) -> str:
        """Return ``NIC@NODE``: the NIC nearest to a process's GPUs, else on its NUMA node; may be empty.

        Parameters
        ----------
        gpus
            UUIDs of the process's GPUs.
        numa
            NUMA node of its cores, for a process without a known GPU.
        """
        own = self.nodes.get(node)
        if own is None:
            return ""
        known = [gpu for uuid in gpus if (gpu := self.gpu(node, uuid)) is not None]
        found = {own.nic_of(gpu) for gpu in known} or {own.nic_of_numa(numa)}
        nic = next(iter(found)) if len(found) == 1 else None
        return f"{nic.name}@{node}" if nic else ""

    def _gpus(self, node: str) -> tuple[Gpu, ...]:
        own = self.nodes.get(node)
        return own.gpus if own else ()


def read_topology(run: Path, nodes: Iterable[str] = ()) -> Topology:
    """Return the topology in a run folder; damaged files become problems and raise no error.

    Parameters
    ----------
    nodes
        Nodes of the run, including those that may not have stored their topology.
    """
    folder = run / FOLDER
    try:
        changed_ns = folder.stat().st_mtime_ns
    except OSError:
        stored: tuple[tuple[NodeTopology, ...], Fabric, tuple[str, ...]] = ((), Fabric(), ())
    else:
        stored = _stored(folder, changed_ns)
    return merge(stored[0], stored[1], nodes, stored[2])


def merge(
    found: Iterable[NodeTopology], fabric: Fabric, nodes: Iterable[str] = (), problems: Iterable[str] = ()
) -> Topology:
    """Return nodes and the cluster's switches as one model.

    Switches come from the first of these sources that has them: the output of ``scontrol``, which has those
    of all nodes; Slurm's variables on each node; cabinets and chassis in HPE Cray node names.
    """
    by_name = {each.node: each for each in found}
    names = dict.fromkeys((*by_name, *nodes))
    paths = {name: path for name in names if (path := fabric.path(name))}
    if paths:
        return Topology(by_name, paths, fabric.kind, fabric.sizes, tuple(problems))
    paths = {name: each.switches for name, each in by_name.items() if each.switches}
    if paths:
        kinds = {each.plugin for each in by_name.values() if each.switches}
        return Topology(by_name, paths, kinds.pop() if len(kinds) == 1 else "tree", {}, tuple(problems))
    placed = {name: (by_name[name].xname if name in by_name else "") or name for name in names}
    paths = {name: path for name, text in placed.items() if (path := cabinet_path(text))}
    return Topology(by_name, paths, "cabinet" if paths else "", {}, tuple(problems))


# Cached because a page asks every few seconds; the key includes the directory's modification time, which
# changes when a file is replaced.
@lru_cache(maxsize=8)
def _stored(folder: Path, changed_ns: int) -> tuple[tuple[NodeTopology, ...], Fabric, tuple[str, ...]]:  # noqa: ARG001
    problems: list[str] = []
    found = []
    for path in sorted(folder.glob("[!.]*.json"))[:_MOST_FILES]:
        try:
            node = _adapter().validate_python(read_json(path, _MOST_BYTES))
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            problems.append(f"{path.name} is not a node's topology: {place} is not valid.")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            problems.append(f"{path.name} can't be read: {reason}.")
        else:
            found.append(replace(node, node=node.node or path.stem))
    fabric, slurm_problem = _fabric(folder / SLURM_FILE)
    problems += slurm_problem
    if len(problems) > _MOST_PROBLEMS:
        problems[_MOST_PROBLEMS:] = [f"{len(problems) - _MOST_PROBLEMS} more files can't be read."]
    return tuple(found), fabric, tuple(problems)


def _fabric(path: Path) -> tuple[Fabric, list[str]]:
    try:
        return parse_fabric(read_regular(path, MOST_SLURM_BYTES).decode(errors="replace")), []
    except FileNotFoundError:
        return Fabric(), []
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Fabric(), [f"{path.name} can't be read: {reason}."]


@cache
def _adapter() -> "TypeAdapter[NodeTopology]":
    return TypeAdapter(NodeTopology)


@dataclass(frozen=True)
class Crossing:
    """Number of pairs of neighbouring ranks on an axis, and number of those on different leaf switches."""

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
        Smallest number of leaves on which these nodes fit; None if the sizes of leaves are unknown.
    crossings
        Crossing by axis, for the axes of :data:`AXES` that the job has.
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
    """Return how a job is scattered over leaf switches.

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
    """Return the smallest number of leaves that hold so many nodes; None if all leaves together can't."""
    left = nodes
    for count, size in enumerate(sorted(sizes, reverse=True), start=1):
        left -= size
        if left <= 0:
            return count if nodes else 0
    return None


def neighbours(coordinates: Mapping[int, Mapping[str, int]], axis: str) -> Iterator[tuple[int, int]]:
    """Yield pairs of ranks that are next to each other on an axis and equal on all others.

    Pipeline stages form a chain; other axes form rings, as collectives use them: the last of more than two
    ranks is next to the first.
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
