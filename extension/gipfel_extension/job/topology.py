"""The topology of a job for page and terminal: its hardware, the ranks on it, and how scattered they are."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..diagnosis.roles import RoleSelection
from ..telemetry.sample import Device
from ..topology import LinkKind, NicKind, NodeTopology
from ..topology.read import LEAVES, SOURCES, Fragmentation, Topology, fragmentation
from .ranks import JobContent, JobRank, Problem

Vetted = Literal["", "pass", "fail"]


class NumaBox(Frozen):
    """A NUMA node; ``cores`` is the kernel's list, such as ``0-71``."""

    number: int
    cores: str


class GpuBox(Frozen):
    """A GPU: its ranks, the nearest NUMA node and NIC, and its NVLink domain or XGMI hive (``fabric``)."""

    uuid: str
    label: str
    name: str = ""
    numa: int | None = None
    nic: str = ""
    fabric: str = ""
    ranks: tuple[int, ...] = ()
    simulated: bool = False


class NicBox(Frozen):
    """A NIC; ``id`` is ``NIC@NODE``."""

    id: str
    name: str
    kind: NicKind
    numa: int | None = None
    ranks: tuple[int, ...] = ()


class LinkLine(Frozen):
    """Parallel links. Ends are UUIDs of GPUs, ``nvswitch`` or ``numa:N``; ``count`` is null if unknown."""

    first: str
    second: str
    kind: LinkKind
    count: int | None


class NodeBox(Frozen):
    """A node. ``ranks`` are those without a known GPU. ``stored`` is true if the node's hardware is known."""

    node: str
    switches: tuple[str, ...] = ()
    numa: tuple[NumaBox, ...] = ()
    gpus: tuple[GpuBox, ...] = ()
    nics: tuple[NicBox, ...] = ()
    links: tuple[LinkLine, ...] = ()
    ranks: tuple[int, ...] = ()
    stored: bool = False
    vetted: Vetted = ""


class RankPlace(Frozen):
    """Role of a rank, and its node, switch, NIC and GPUs."""

    rank: int
    role: dict[str, int]
    node: str
    switch: str
    nic: str
    gpus: tuple[str, ...]


class AxisCrossing(Frozen):
    """Number of pairs of neighbouring ranks on an axis, and number of those on different leaf switches."""

    axis: str
    pairs: int
    crossing: int


class Scatter(Frozen):
    """Leaf switches of a job.

    ``leaves`` has the number of the job's nodes by leaf, ``used`` the number of leaves. ``fewest`` is the
    smallest number of leaves that would suffice, null if the cluster's leaves are unknown.
    """

    sentence: str = ""
    unit: str = ""
    used: int = 0
    fewest: int | None = None
    leaves: dict[str, int] = Field(default_factory=dict)
    crossings: tuple[AxisCrossing, ...] = ()


class JobTopology(Frozen):
    """Topology of a job. ``source`` is the source of the switches; ``selected`` is null if all ranks are."""

    run: str
    source: str
    nodes: tuple[NodeBox, ...]
    ranks: tuple[RankPlace, ...]
    axes: dict[str, int]
    scatter: Scatter
    selected: tuple[int, ...] | None
    problems: tuple[Problem, ...]


def job_topology(
    content: JobContent,
    topology: Topology,
    devices: Sequence[Device] = (),
    *,
    selection: RoleSelection | None = None,
    vetted: Mapping[str, Vetted] | None = None,
) -> JobTopology:
    """Return the topology of a job.

    Parameters
    ----------
    devices
        GPUs of the samples, for nodes that stored no topology and for simulated GPUs.
    vetted
        Verdict of the last vetting by node.

    Raises
    ------
    SourceError
        The selection names an axis that the job does not have.
    """
    job = content.job
    used = {*(each.node for each in job.ranks), *(each.node for each in devices)} - {""}
    names = sorted({*topology.nodes, *used})
    gpus = [each for each in devices if each.kind == "gpu"]
    verdicts = vetted or {}
    nodes = tuple(_node(name, topology, job.ranks, gpus, verdicts.get(name, "")) for name in names)
    leaf_of = {name: leaf for name in names if (leaf := topology.leaf(name))}
    roles = {each.rank: each.role for each in job.ranks}
    found = fragmentation(leaf_of, topology.sizes, roles, {each.rank: each.node for each in job.ranks})
    chosen = None
    if selection is not None and selection.terms:
        chosen = selection.ranks((each.rank for each in job.ranks), content.roles)
    return JobTopology(
        run=job.run,
        source=SOURCES[topology.source],
        nodes=nodes,
        ranks=tuple(_place(each) for each in job.ranks),
        axes=job.axes,
        scatter=_scatter(found, LEAVES[topology.source]),
        selected=chosen,
        problems=(*job.problems, *(Problem(text=each) for each in topology.problems)),
    )


def _place(rank: JobRank) -> RankPlace:
    return RankPlace(
        rank=rank.rank,
        role=rank.role,
        node=rank.node,
        switch=rank.switch,
        nic=rank.nic,
        gpus=rank.gpus,
    )


def _scatter(found: Fragmentation, unit: str) -> Scatter:
    return Scatter(
        sentence=found.sentence(unit),
        unit=unit,
        used=len(found.leaves),
        fewest=found.fewest,
        leaves=dict(found.leaves),
        crossings=tuple(
            AxisCrossing(axis=axis, pairs=each.pairs, crossing=each.crossing)
            for axis, each in found.crossings.items()
        ),
    )


def _node(
    name: str, topology: Topology, ranks: Iterable[JobRank], devices: Iterable[Device], vetted: Vetted
) -> NodeBox:
    own = topology.nodes.get(name)
    here = [each for each in ranks if each.node == name]
    by_gpu = _ranks_by((uuid, each.rank) for each in here for uuid in each.gpus)
    by_nic = _ranks_by((each.nic, each.rank) for each in here if each.nic)
    gpus = _gpus(name, own, devices, by_gpu)
    drawn = {gpu.uuid for gpu in gpus}
    return NodeBox(
        node=name,
        switches=topology.paths.get(name, ()),
        numa=tuple(NumaBox(number=each.number, cores=each.cores) for each in own.numa) if own else (),
        gpus=gpus,
        nics=tuple(
            NicBox(
                id=f"{nic.name}@{name}",
                name=nic.name,
                kind=nic.kind,
                numa=nic.numa,
                ranks=by_nic.get(f"{nic.name}@{name}", ()),
            )
            for nic in (own.fast_nics if own else ())
        ),
        links=tuple(
            LinkLine(first=each.first, second=each.second, kind=each.kind, count=each.count)
            for each in (own.links if own else ())
        ),
        ranks=tuple(each.rank for each in here if not drawn.intersection(each.gpus)),
        stored=own is not None,
        vetted=vetted,
    )


def _gpus(
    name: str, own: NodeTopology | None, devices: Iterable[Device], by_gpu: Mapping[str, tuple[int, ...]]
) -> tuple[GpuBox, ...]:
    """Return the GPUs that a node stored, then those that are known only from samples or ranks."""
    found = {}
    for gpu in own.gpus if own else ():
        nic = own.nic_of(gpu) if own else None
        found[gpu.uuid] = GpuBox(
            uuid=gpu.uuid,
            label="GPU" if gpu.index is None else f"GPU {gpu.index}",
            name=gpu.name,
            numa=gpu.numa,
            nic=f"{nic.name}@{name}" if nic else "",
            fabric=gpu.fabric,
            ranks=by_gpu.get(gpu.uuid, ()),
        )
    for device in devices:
        if device.node == name and device.uuid not in found:
            found[device.uuid] = GpuBox(
                uuid=device.uuid,
                label="GPU" if device.index is None else f"GPU {device.index}",
                name=device.name,
                ranks=by_gpu.get(device.uuid, ()),
                simulated=device.simulated,
            )
    for uuid, ranks in by_gpu.items():
        if uuid not in found:
            found[uuid] = GpuBox(uuid=uuid, label=uuid[:12], ranks=ranks)
    return tuple(found.values())


def _ranks_by(pairs: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, rank in pairs:
        found[name] = (*found.get(name, ()), rank)
    return found
