"""Rows of a job's figures (a GPU with its rank, or a host), and statistics over many rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..diagnosis.roles import RoleSelection
from ..telemetry.figures.lines import gpu_name, gpus_of, hosts_of, rows_by_device
from ..telemetry.store.overview import Overview
from .ranks import JobContent, JobRank

Floats = NDArray[np.float64]
#: Quantiles by name.
BANDS: Mapping[str, float] = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "max": 1.0}
MOST_OUTLIERS = 8
#: A row is an outlier if its distance exceeds this many robust standard deviations and this share of the
#: largest absolute value.
_DISTANCE, _LEAST = 5.0, 0.05
#: Factor from the median absolute deviation to the standard deviation of a normal distribution.
_TO_SIGMA = 1.4826
#: Among fewer rows no outlier is named: for example, both of two rows are equally far from their median.
_LEAST_ROWS = 4
_LEVELS = 254
#: Byte of a missing value.
MISSING = 255
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
#: Ranks of a NIC that its label names.
_MOST_NAMED = 4


def bands(values: Floats) -> dict[str, Floats]:
    """Return the quantiles of each column by their name in :data:`BANDS`; NaN in columns without values.

    Parameters
    ----------
    values
        float[rows, times]; NaN where a value is missing.
    """
    ordered = np.sort(values, axis=0)  # NaN comes last
    count = np.isfinite(values).sum(axis=0)
    columns = np.arange(values.shape[1])
    found = {}
    for name, part in BANDS.items():
        place = part * np.maximum(count - 1, 0)
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, np.maximum(count - 1, 0))
        between = ordered[low, columns] * (1 - (place - low)) + ordered[high, columns] * (place - low)
        found[name] = np.where(count > 0, between, np.nan)
    return found


def outliers(values: Floats, most: int = MOST_OUTLIERS) -> list[int]:
    """Return the indices of at most `most` outlying rows, the farthest from the others first.

    The deviation of a row is the median over time of its difference from the median of all rows. A row is an
    outlier if its deviation differs from the rows' median deviation by more than 5 robust standard deviations
    (1.4826 times the median absolute deviation), and by more than 5 % of the largest absolute value.
    """
    if values.shape[0] < _LEAST_ROWS or not values.size:
        return []
    middle = bands(values)["median"]
    distance = _median_of_rows(values - middle)
    known = np.isfinite(distance)
    if not known.any():
        return []
    center = float(np.median(distance[known]))
    spread = _TO_SIGMA * float(np.median(np.abs(distance[known] - center)))
    scale = float(np.nanmax(np.abs(np.where(np.isfinite(values), values, 0.0))))
    apart = np.where(known, np.abs(distance - center), -1.0)
    far = np.flatnonzero(apart > max(_DISTANCE * spread, _LEAST * scale))
    ordered: list[int] = far[np.argsort(-apart[far], kind="stable")][:most].tolist()
    return ordered


def level(values: Floats) -> Floats:
    """Return the median over time of each row; NaN for rows without values."""
    return _median_of_rows(values)


def worst_bins(values: Floats, most: int, *, highest: bool) -> tuple[Floats, list[range]]:
    """Merge adjacent rows into at most `most` bins; return each bin's worst value per time, and its rows.

    Parameters
    ----------
    highest
        True if high values are bad, as for temperatures.
    """
    count = values.shape[0]
    size = max(1, -(-count // most))
    parts = [range(first, min(first + size, count)) for first in range(0, count, size)]
    if size == 1:
        return values, parts
    filled = np.where(np.isfinite(values), values, -np.inf if highest else np.inf)
    reduce = np.maximum if highest else np.minimum
    found = reduce.reduceat(filled, np.arange(0, count, size), axis=0)
    return np.where(np.isfinite(found), found, np.nan), parts


def to_bytes(values: Floats, low: float, high: float) -> NDArray[np.uint8]:
    """Return values as bytes: 0 to 254 for `low` to `high`, :data:`MISSING` for NaN."""
    width = high - low or 1.0
    with np.errstate(invalid="ignore"):
        scaled = np.clip(np.round((values - low) / width * _LEVELS), 0, _LEVELS)
    return np.where(np.isfinite(values), scaled, MISSING).astype(np.uint8)


def on_grid(
    series: Sequence[tuple[NDArray[np.int64], Floats]], start_ns: int, bucket_ns: int, buckets: int
) -> Floats:
    """Return the mean of each series in each bucket, float[series, buckets]; NaN in empty buckets."""
    found = np.full((len(series), buckets), np.nan)
    for row, (time_ns, values) in enumerate(series):
        place = (time_ns - start_ns) // bucket_ns
        inside = (place >= 0) & (place < buckets) & np.isfinite(values)
        place = place[inside]
        count = np.bincount(place, minlength=buckets)
        total = np.bincount(place, weights=values[inside], minlength=buckets)
        found[row] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return found


def _median_of_rows(values: Floats) -> Floats:
    return bands(np.ascontiguousarray(values.T))["median"]


@dataclass(frozen=True)
class DeviceRow:
    """One row: a device, and the rank on it, if it is known.

    Parameters
    ----------
    index
        Index of the device's row in the overview's arrays.
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
    """Return a row per GPU, or without GPUs a row per host, sorted by node and index."""
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


def nic_rows(content: JobContent, overview: Overview) -> list[DeviceRow]:
    """Return a row per NIC, with the rank that uses it if there is only one; sorted by node and name."""
    place = rows_by_device(overview)
    users: dict[str, list[JobRank]] = {}
    for rank in content.job.ranks:
        users.setdefault(rank.nic, []).append(rank)
    found = []
    nics = (each for each in overview.devices if each.kind == "nic")
    for nic in sorted(nics, key=lambda each: (each.node, each.index or 0, each.uuid)):
        name = nic.uuid.removeprefix("nic:")
        ranks = users.get(name, [])
        numbers = ", ".join(str(each.rank) for each in ranks[:_MOST_NAMED]) + ", …" * (
            len(ranks) > _MOST_NAMED
        )
        label = f"{name} · rank {numbers}" if len(ranks) == 1 else f"{name} · ranks {numbers}"
        own = _own(ranks[0] if len(ranks) == 1 else None)
        found.append(
            DeviceRow(
                place[nic.uuid], name, label if ranks else name, nic.node, simulated=nic.simulated, **own
            )
        )
    return found


def selected_nics(rows: Sequence[DeviceRow], selection: RoleSelection, content: JobContent) -> frozenset[str]:
    """Return the names of the NICs that selected ranks use, or that the selection names itself."""
    ranks = set(selection.ranks((each.rank for each in content.job.ranks), content.roles))
    used = {each.nic for each in content.job.ranks if each.rank in ranks}
    named = {
        row.uuid
        for row in rows
        if all({"nic": row.uuid, "node": row.node}.get(term.key) in term.names for term in selection.terms)
    }
    return frozenset({row.uuid for row in rows if row.uuid in used} | named)


def _own(rank: JobRank | None) -> dict[str, Any]:
    return {} if rank is None else {"rank": rank.rank, "role": rank.role, "switch": rank.switch}


def ordered(rows: Sequence[DeviceRow], order: Order, values: Floats, *, highest: bool) -> list[DeviceRow]:
    """Return rows sorted by `order`; rows that lack the value by which they are sorted come last.

    Parameters
    ----------
    values
        float[devices, times] of the drawn metric, for the order by median, in which the worst rows are first.
    highest
        True if high values are bad.
    """
    place = {id(row): number for number, row in enumerate(rows)}

    def by_rank(row: DeviceRow) -> tuple[Any, ...]:
        return (_LAST if row.rank is None else row.rank, place[id(row)])

    keys: dict[Order, Callable[[DeviceRow], tuple[Any, ...]]] = {
        "rank": by_rank,
        # By pipeline stage first, since ranks differ most between stages.
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
    """Return the UUIDs of the selected rows.

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
