"""Rows of a job's figures: a GPU and its rank, or a host where there is no GPU; their order and selection."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..diagnosis.role_selection import RoleSelection
from ..telemetry.figures.lines import gpu_name, gpus_of, hosts_of, rows_by_device
from ..telemetry.store.overview import Overview
from .ranks import JobContent, JobRank
from .statistics import Floats, level

Order = Literal["rank", "role", "node", "switch", "median"]
#: Every order of rows, with its label.
ORDERS: Mapping[Order, str] = {
    "rank": "rank",
    "role": "role",
    "node": "node",
    "switch": "switch",
    "median": "median",
}
_LAST = 1 << 30


@dataclass(frozen=True)
class DeviceRow:
    """One row: a device, and the rank on it, if it is known.

    Parameters
    ----------
    index
        Row of the device in the overview's arrays.
    """

    index: int
    uuid: str
    label: str
    node: str = ""
    switch: str = ""
    rank: int | None = None
    role: Mapping[str, int] = field(default_factory=dict)
    simulated: bool = False


def device_rows(content: JobContent, overview: Overview) -> list[DeviceRow]:
    """Return a row per GPU, without GPUs a row per host, in the order of node and index."""
    place = rows_by_device(overview)
    ranks = {each.rank: each for each in content.job.ranks}
    by_gpu = {uuid: rank for rank, uuids in reversed(list(content.gpus.items())) for uuid in uuids}
    gpus = gpus_of(overview)
    several = len({gpu.node for gpu in gpus}) > 1
    found = []
    for gpu in gpus:
        rank = ranks.get(by_gpu.get(gpu.uuid, -1))
        name = gpu_name(gpu, several=several)
        own = _own(rank)
        label = name if rank is None else f"rank {rank.rank} · {name}"
        found.append(DeviceRow(place[gpu.uuid], gpu.uuid, label, gpu.node, simulated=gpu.simulated, **own))
    if found:
        return found
    return [
        DeviceRow(place[host.uuid], host.uuid, host.node, host.node, simulated=host.simulated)
        for host in hosts_of(overview)
    ]


def _own(rank: JobRank | None) -> dict[str, Any]:
    return {} if rank is None else {"rank": rank.rank, "role": rank.role, "switch": rank.switch}


def ordered(rows: Sequence[DeviceRow], order: Order, values: Floats, *, highest: bool) -> list[DeviceRow]:
    """Return rows in an order; rows of which it tells nothing come last.

    Parameters
    ----------
    values
        float[devices, times] of the metric that is drawn, for the order by median: the worst come first.
    highest
        True where high values are the bad ones.
    """
    place = {id(row): number for number, row in enumerate(rows)}

    def by_rank(row: DeviceRow) -> tuple[Any, ...]:
        return (_LAST if row.rank is None else row.rank, place[id(row)])

    keys: dict[Order, Callable[[DeviceRow], tuple[Any, ...]]] = {
        "rank": by_rank,
        # Pipeline stages first: what a stage's ranks have in common is what differs most.
        "role": lambda row: (not row.role, *_role_key(row.role), *by_rank(row)),
        "node": lambda row: (row.node, *by_rank(row)),
        "switch": lambda row: (not row.switch, row.switch, row.node, *by_rank(row)),
    }
    if order != "median":
        return sorted(rows, key=keys[order])
    levels = level(values[[row.index for row in rows]]) * (-1.0 if highest else 1.0)
    known = np.where(np.isfinite(levels), levels, np.inf)
    return [rows[index] for index in np.argsort(known, kind="stable").tolist()]


def selected_rows(rows: Sequence[DeviceRow], selection: RoleSelection, content: JobContent) -> frozenset[str]:
    """Return the UUIDs of the rows that a selection chooses.

    Raises
    ------
    SourceError
        A term names an axis that the job does not have.
    """
    ranks = set(selection.ranks((each.rank for each in content.job.ranks), content.roles))
    places = {row.uuid: {"node": row.node, "gpu": row.uuid} for row in rows if row.rank is None}
    free = {
        row.uuid
        for row in rows
        if row.rank is None and all(places[row.uuid].get(term.key) in term.names for term in selection.terms)
    }
    return frozenset({row.uuid for row in rows if row.rank in ranks} | free)


def _role_key(role: Mapping[str, int]) -> tuple[Any, ...]:
    axes = sorted(role, key=lambda axis: (axis != "pp", axis))
    return tuple(role[axis] for axis in axes)
