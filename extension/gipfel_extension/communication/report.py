"""The report on a job's traffic, without I/O: groups, the matrix of bytes with its figure, times of calls."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gipfel_cluster.model import Frozen, pluralize

from ..telemetry.figures.lines import plain_text
from ..telemetry.figures.palette import HEAT, base_layout, empty_plot
from ..training.flight_recorder.report import name_ranks
from .traffic import Calls, Group, Traffic, bus_factor, pair_bytes

#: Above `MOST_RANKS` ranks, the matrix has a row per node, or per block of consecutive nodes if there are
#: more than `_MOST_BINS`; with one node or unknown nodes, a row per block of consecutive ranks.
MOST_RANKS, _MOST_BINS = 64, 256
_MOST_ROWS, _MOST_PROBLEMS = 100, 8
#: A group is reported as slow if its median time is more than `_SLOW` times the median of the groups of equal
#: name and size, of which there must be at least `_PEERS`.
_SLOW, _PEERS = 1.25, 4
_SPREAD = (
    "Bytes are what ranks need to send for each call, spread evenly over the members: S/n for each pair of "
    "n ranks, twice in an all-reduce. Rings and trees of NCCL take other ways for the same result."
)
_FORMULA = (
    "busbw is algbw times 2(n-1)/n for an all-reduce, 1 for broadcast, reduce and send, (n-1)/n for others "
    "(nccl-tests, doc/PERFORMANCE.md)."
)
#: Highest level of the encoded matrix (uint8), and the level of pairs without traffic.
_LEVELS, _MISSING = 254, 255
_MOST_LABELS = 16
_LEFT_PIXELS, _RIGHT_PIXELS, _TOP_PIXELS, _BOTTOM_PIXELS = 110, 84, 12, 70


class GroupFamily(Frozen):
    """Groups of equal name, size and source, with sums of their ``calls`` by kind and ``sent`` bytes.

    ``groups`` is their number and ``size`` the members of each. ``ranks`` lists the members if there is only
    one group. ``nodes`` is the largest number of nodes that one of the groups spans. ``source`` is what they
    were read from, as text: flight recorder, NCCL Inspector or NCCL RAS.
    """

    label: str
    groups: int
    size: int
    ranks: str
    nodes: int
    source: str
    calls: dict[str, int]
    sent: int


class CallTimes(Frozen):
    """Number and times of the calls of one kind and size in a `GroupFamily`.

    ``size`` is in bytes, times are in microseconds, null if none was recorded. ``algbw`` and ``busbw`` are
    bytes per second at the median. ``slowest`` names the ranks of a group that takes ``factor`` times as long
    as its peers.
    """

    label: str
    kind: str
    size: int
    members: int
    calls: int
    median_us: float | None
    p95_us: float | None
    algbw: float | None
    busbw: float | None
    slowest: str
    factor: float | None


class TrafficMatrix(Frozen):
    """Bytes from each row to each column; ``by`` says what rows are: ``rank``, ``node`` or ``block``."""

    by: str
    labels: tuple[str, ...]
    sent: tuple[tuple[float, ...], ...]


class CommunicationReport(Frozen):
    """Traffic of a job.

    ``lines`` are the report as text, the most important findings first. ``sources`` lists what was read.
    ``sent`` is in bytes. ``seconds`` is the time between the first and the last call. ``across`` is the share
    of the bytes that go to another node, null where nodes are not known.
    """

    lines: tuple[str, ...]
    sources: tuple[str, ...]
    ranks: int
    sent: int
    seconds: float | None
    across: float | None
    groups: tuple[GroupFamily, ...]
    slowest: tuple[CallTimes, ...]
    matrix: TrafficMatrix
    notes: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(slots=True)
class _Family:
    groups: list[Group] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    sent: float = 0.0
    #: Calls of each group by kind and size.
    rows: dict[tuple[str, int], list[tuple[Group, Calls]]] = field(default_factory=dict)


def communication_report(traffic: Traffic, sources: Sequence[str]) -> CommunicationReport:
    """Return the report; `sources` are lines on what was read."""
    families = _families(traffic)
    weights = _weights(traffic)
    ranks = sorted({*traffic.nodes, *(rank for each in traffic.groups for rank in each.ranks)})
    rows = sorted(
        (_call_times(*key, calls) for (*_, family) in families.items() for key, calls in _keyed(family)),
        key=lambda each: (-(each.median_us or -1), -each.size * each.calls),
    )
    matrix = _matrix(traffic, ranks, weights)
    across = _across(traffic, ranks, weights)
    sent = int(sum(each.sent for each in families.values()))
    first, last = traffic.span_ns or (0, 0)
    seconds = (last - first) / 1e9 if last > first else None
    return CommunicationReport(
        lines=tuple(_lines(rows, sent, seconds, across)),
        sources=tuple(sources),
        ranks=len(ranks),
        sent=sent,
        seconds=seconds,
        across=across,
        groups=tuple(_described(family, traffic.nodes) for family in families.values())[:_MOST_ROWS],
        slowest=tuple(rows[:_MOST_ROWS]),
        matrix=matrix,
        notes=(_SPREAD, _FORMULA, *_missing_times(rows), *traffic.notes),
        problems=tuple(traffic.problems[:_MOST_PROBLEMS]) + _more(len(traffic.problems) - _MOST_PROBLEMS),
    )


def _families(traffic: Traffic) -> dict[tuple[str, int, str], _Family]:
    found: dict[tuple[str, int, str], _Family] = {}
    of_group = []
    for group in traffic.groups:
        family = found.setdefault((_name(group), group.size, group.source), _Family())
        family.groups.append(group)
        of_group.append(family)
    for (number, kind, size), calls in traffic.calls.items():
        family, group = of_group[number], traffic.groups[number]
        family.calls[kind] = family.calls.get(kind, 0) + calls.count
        pairs = 1 if kind == "send" else group.size * (group.size - 1)
        bytes_each = size if kind == "send" else pair_bytes(kind, size, group.size)
        family.sent += pairs * bytes_each * calls.count
        family.rows.setdefault((kind, size), []).append((group, calls))
    # NCCL RAS counts the calls of a group, and reports no sizes.
    for (number, kind), count in traffic.counts.items():
        own = of_group[number].calls
        own[kind] = own.get(kind, 0) + count
    order = sorted(found, key=lambda key: (-found[key].sent, -key[1], key[0]))
    return {key: found[key] for key in order}


def _name(group: Group) -> str:
    # NCCL's communicators have no names; those of equal size usually have the same purpose.
    return "communicator" if group.label.startswith("communicator ") else group.label


def _keyed(family: _Family) -> Iterable[tuple[tuple[str, str, int, int], list[tuple[Group, Calls]]]]:
    for (kind, size), calls in family.rows.items():
        if size or kind == "barrier":
            first = family.groups[0]
            yield (_name(first), kind, size, 2 if kind == "send" else first.size), calls


def _described(family: _Family, nodes: Mapping[int, str]) -> GroupFamily:
    first = family.groups[0]
    return GroupFamily(
        label=_name(first),
        groups=len(family.groups),
        size=first.size,
        ranks=name_ranks(first.ranks) if len(family.groups) == 1 and first.ranks else "",
        nodes=max(len({nodes[rank] for rank in each.ranks if rank in nodes}) for each in family.groups),
        source=first.source,
        calls=dict(sorted(family.calls.items())),
        sent=int(family.sent),
    )


def _call_times(
    label: str, kind: str, size: int, members: int, groups: Sequence[tuple[Group, Calls]]
) -> CallTimes:
    times = np.array([each for _, calls in groups for each in calls.times_us])
    timed = [(group, float(np.median(calls.times_us))) for group, calls in groups if calls.times_us]
    middle = float(np.median(times)) if len(times) else None
    slowest, factor = "", None
    if len(timed) >= _PEERS:
        group, own = max(timed, key=lambda each: each[1])
        others = float(np.median([each for _, each in timed]))
        if own > _SLOW * others:
            slowest, factor = name_ranks(group.ranks) if group.ranks else group.label, own / others
    algbw = size / middle * 1e6 if middle and size else None
    return CallTimes(
        label=label,
        kind=kind,
        size=size,
        members=members,
        calls=sum(calls.count for _, calls in groups),
        median_us=middle,
        p95_us=float(np.percentile(times, 95)) if len(times) else None,
        algbw=algbw,
        busbw=algbw * bus_factor(kind, members) if algbw else None,
        slowest=slowest,
        factor=factor,
    )


def _weights(traffic: Traffic) -> NDArray[np.float64]:
    """Return the bytes of all collectives of each group for each pair of its members."""
    found = np.zeros(len(traffic.groups))
    for (number, kind, size), calls in traffic.calls.items():
        if kind != "send":
            found[number] += pair_bytes(kind, size, traffic.groups[number].size) * calls.count
    return found


def _matrix(traffic: Traffic, ranks: Sequence[int], weights: NDArray[np.float64]) -> TrafficMatrix:
    nodes = sorted({traffic.nodes.get(rank, "") for rank in ranks})
    place: Sequence[int]
    if len(ranks) <= MOST_RANKS:
        by, labels, place = "rank", [f"rank {rank}" for rank in ranks], range(len(ranks))
    elif len(nodes) > 1 and "" not in nodes:
        step = -(-len(nodes) // _MOST_BINS)
        numbers = {node: at // step for at, node in enumerate(nodes)}
        parts = [nodes[at : at + step] for at in range(0, len(nodes), step)]
        by, place = "node", [numbers[traffic.nodes[rank]] for rank in ranks]
        labels = [part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts]
    else:
        step = -(-len(ranks) // MOST_RANKS)
        by, place = "block", [at // step for at in range(len(ranks))]
        labels = [name_ranks(list(ranks[at : at + step])) for at in range(0, len(ranks), step)]
    sent = _added(traffic, ranks, place, len(labels), weights)
    return TrafficMatrix(by=by, labels=tuple(labels), sent=tuple(map(tuple, sent.round().tolist())))


def _added(
    traffic: Traffic, ranks: Sequence[int], place: Sequence[int], bins: int, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the bytes between bins of ranks; ``place`` is the bin of each rank."""
    bin_of = dict(zip(ranks, place, strict=True))
    found = np.zeros((bins, bins))
    for group, weight in zip(traffic.groups, weights, strict=True):
        if weight and group.ranks:
            where, counts = np.unique([bin_of[rank] for rank in group.ranks], return_counts=True)
            found[np.ix_(where, where)] += weight * (np.outer(counts, counts) - np.diag(counts))
    for (sender, receiver), size in traffic.pairs.items():
        if sender in bin_of and receiver in bin_of:
            found[bin_of[sender], bin_of[receiver]] += size
    return found


def _across(traffic: Traffic, ranks: Sequence[int], weights: NDArray[np.float64]) -> float | None:
    names = sorted({traffic.nodes.get(rank, "") for rank in ranks})
    if len(names) < 2 or "" in names:
        return None
    numbers = {node: at for at, node in enumerate(names)}
    place = [numbers[traffic.nodes[rank]] for rank in ranks]
    sent = _added(traffic, ranks, place, len(names), weights)
    total = float(sent.sum())
    return 1 - float(np.trace(sent)) / total if total else None


def _lines(
    rows: Sequence[CallTimes], sent: int, seconds: float | None, across: float | None
) -> Iterable[str]:
    for row in sorted((each for each in rows if each.factor), key=lambda each: -(each.factor or 0))[:3]:
        yield (
            f"{row.slowest[:1].upper()}{row.slowest[1:]}: {row.kind} of {size_text(row.size)} in {row.label} "
            f"takes {row.factor:.1f} times as long as in the other groups of that name."
        )
    words = f"The ranks sent each other {size_text(sent)}"
    words += f" in {seconds:.3g} s of recorded calls" if seconds else ""
    yield words + (f", {100 * across:.0f} % of it between nodes." if across is not None else ".")
    slow = rows[0] if rows else None
    if slow is not None and slow.median_us is not None:
        rate = f", {size_text(slow.busbw)}/s of bus bandwidth" if slow.busbw else ""
        yield (
            f"Slowest: {slow.kind} of {size_text(slow.size)} in {slow.label}, "
            f"{time_text(slow.median_us)} at the median of {pluralize(slow.calls, 'call')}{rate}."
        )


def _missing_times(rows: Sequence[CallTimes]) -> tuple[str, ...]:
    if not rows or any(each.median_us is not None for each in rows):
        return ()
    return ("No time was recorded: only NCCL writes the end of a call, and gloo does not.",)


def _more(count: int) -> tuple[str, ...]:
    return (f"… and {pluralize(count, 'other problem')}.",) if count > 0 else ()


def size_text(size: float) -> str:
    """Return bytes as text, such as 3.2 GB."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 999.5 or unit == "PB":
            return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"
        size /= 1000
    raise AssertionError


def time_text(microseconds: float) -> str:
    """Return a time as text, such as 12.3 ms."""
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    return f"{microseconds / 1e3:.3g} ms" if microseconds >= 1e3 else f"{microseconds:.3g} us"


def matrix_figure(matrix: TrafficMatrix, *, dark: bool = False) -> dict[str, Any]:
    """Return the matrix with a row per sender and a column per receiver, on a logarithmic scale.

    Returns
    -------
    dict
        ``data`` holds one trace ``heatmap`` without values; ``layout.meta`` has them as ``bytes``, base64 of
        uint8[rows, columns] (255 is nothing sent), which mean powers of ten from ``low`` to ``high``, and the
        ``labels`` of rows and columns.
    """
    sent = np.array(matrix.sent, np.float64)
    if not sent.any():
        return {"data": [], "layout": base_layout("", 120, dark=dark) | empty_plot("No bytes.", dark=dark)}
    with np.errstate(divide="ignore"):
        powers = np.log10(sent)
    low, high = float(powers[sent > 0].min()), float(powers.max())
    low = min(low, high - 0.1)
    levels = np.full(sent.shape, _MISSING, np.uint8)
    levels[sent > 0] = np.rint((powers[sent > 0] - low) / (high - low) * _LEVELS)
    pixels = int(np.clip(len(sent) * 20, 160, 520))
    layout = base_layout(
        "", _TOP_PIXELS + _BOTTOM_PIXELS + pixels, dark=dark, top=_TOP_PIXELS, bottom=_BOTTOM_PIXELS
    )
    # Room for axis titles beside the names of nodes, and for the color scale.
    layout["margin"] |= {"l": _LEFT_PIXELS, "r": _RIGHT_PIXELS}
    labels = [plain_text(each) for each in matrix.labels]
    step = -(-len(labels) // _MOST_LABELS)
    ticks = {"tickvals": list(range(0, len(labels), step)), "ticktext": labels[::step], "showgrid": False}
    layout["xaxis"] = {**ticks, "title": {"text": "receives"}, "zeroline": False, "fixedrange": True}
    layout["yaxis"] = {
        **ticks,
        "title": {"text": "sends"},
        "zeroline": False,
        "fixedrange": True,
        "autorange": "reversed",
    }
    layout["meta"] = {
        "bytes": base64.b64encode(levels.tobytes()).decode(),
        "shape": list(levels.shape),
        "low": low,
        "high": high,
        "labels": labels,
    }
    return {"data": [_trace(low, high, dark=dark)], "layout": layout}


def _trace(low: float, high: float, *, dark: bool) -> dict[str, Any]:
    powers = [float(each) for each in range(int(np.ceil(low)), int(np.floor(high)) + 1)]
    # A scale needs two labels to be readable: without two powers of ten, label its ends.
    ticks = powers if len(powers) > 1 else [low, high]
    return {
        "type": "heatmap",
        "uid": "communication",
        "z": [],
        "colorscale": HEAT[dark],
        "zmin": low,
        "zmax": high,
        "hoverongaps": False,
        "hovertemplate": "%{text}<extra></extra>",
        "colorbar": {
            "thickness": 12,
            "tickvals": ticks,
            "ticktext": [size_text(10**each) for each in ticks],
        },
    }
