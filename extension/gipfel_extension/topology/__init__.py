"""Topology of a job: the hardware of one node and its position in the cluster, as a recorder stores it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

#: Directory in a run folder that holds a file for each node.
FOLDER = "topology"
#: File with the output of ``scontrol show topology``, beside the nodes' files.
SLURM_FILE = "slurm.txt"
#: Maximum size of this output; a site of 100 000 nodes prints less.
MOST_SLURM_BYTES = 4 << 20

NicKind = Literal["slingshot", "infiniband", "roce", "ethernet"]
LinkKind = Literal["nvlink", "nvswitch", "c2c", "xgmi"]


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node with cores; ``cores`` is the kernel's list, such as ``0-71``."""

    number: int
    cores: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Parameters
    ----------
    bus
        PCI address as the kernel writes it, ``0009:01:00.0``; empty where it is unknown.
    numa
        The host's NUMA node that the GPU is attached to.
    path
        PCI bridges from the root to the device; the longer the common part of two paths, the nearer they are.
    fabric
        NVLink domain and clique, or XGMI hive; GPUs with the same value reach each other without the network.
    """

    uuid: str
    name: str = ""
    index: int | None = None
    bus: str = ""
    numa: int | None = None
    path: tuple[str, ...] = ()
    fabric: str = ""


@dataclass(frozen=True)
class Nic:
    """A network interface, by its name in ``/sys/class``."""

    name: str
    kind: NicKind
    bus: str = ""
    numa: int | None = None
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Link:
    """Parallel links of one kind between two devices of a node.

    Parameters
    ----------
    first, second
        UUIDs of GPUs, ``nvswitch``, or ``numa:N``.
    count
        Number of parallel links; None where only their existence is known.
    """

    first: str
    second: str
    kind: LinkKind
    count: int | None = None


@dataclass(frozen=True)
class NodeTopology:
    """Hardware of one node.

    Parameters
    ----------
    switches
        Switches above the node from the root to the leaf, from a task's Slurm variables; may be empty.
    plugin
        Slurm's topology plugin, ``tree`` or ``block``; empty without `switches`.
    xname
        Name of the node's position in an HPE Cray cabinet, such as ``x1100c0s6b1n0``; empty elsewhere.
    problems
        What could not be read, a sentence each.
    """

    node: str
    time_ns: int = 0
    numa: tuple[NumaNode, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    links: tuple[Link, ...] = ()
    switches: tuple[str, ...] = ()
    plugin: Literal["tree", "block", ""] = ""
    xname: str = ""
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the node as a dictionary that JSON can hold."""
        return asdict(self)

    def nic_of(self, gpu: Gpu) -> Nic | None:
        """Return the NIC that is nearest to a GPU; None if there is none, or if several are equally near.

        The nearest NIC has the longest common PCI path with the GPU, else the same NUMA node. If a node has
        only one fast NIC, it is that of all GPUs.
        """
        nics = self.fast_nics
        shared = {nic.name: _common(gpu.path, nic.path) for nic in nics}
        deepest = max(shared.values(), default=0)
        nearest = [nic for nic in nics if deepest and shared[nic.name] == deepest]
        if len(nearest) != 1:
            nearest = [nic for nic in nearest or nics if gpu.numa is not None and nic.numa == gpu.numa]
        return _only(nearest) or _only(nics)

    def nic_of_numa(self, numa: int | None) -> Nic | None:
        """Return the only fast NIC of a NUMA node, or of the whole node; None if there is none or several."""
        nics = self.fast_nics
        return _only([nic for nic in nics if numa is not None and nic.numa == numa]) or _only(nics)

    @property
    def fast_nics(self) -> tuple[Nic, ...]:
        """The NICs that training uses: those with RDMA, or all if none has RDMA."""
        fast = tuple(nic for nic in self.nics if nic.kind != "ethernet")
        return fast or self.nics


def slurm_place(environment: Mapping[str, str]) -> tuple[tuple[str, ...], Literal["tree", "block", ""]]:
    """Return the switches or blocks above this node from Slurm's variables, and the kind of topology."""
    kinds = environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    names = environment.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    # Without a topology plugin, Slurm's variables name only the node.
    above = [(kind, name) for kind, name in zip(kinds, names, strict=False) if kind in ("switch", "block")]
    plugin: Literal["tree", "block", ""] = ""
    if above:
        plugin = "tree" if above[-1][0] == "switch" else "block"
    return tuple(name for _, name in above if name), plugin


def _common(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))


def _only(nics: "list[Nic] | tuple[Nic, ...]") -> Nic | None:
    return nics[0] if len(nics) == 1 else None
