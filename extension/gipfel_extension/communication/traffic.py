"""Communication of a job: calls from flight recorder dumps, totaled by group, kind, size and pair."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..training.flight_recorder.dump import P2P, Bundles, Dump, GroupId, is_abandoned, number_of, operation_of
from ..training.flight_recorder.read import check_one_job, read_dumps
from ..training.flight_recorder.wait_for import Job

_MOST_CALLS = 2_000_000
#: Kinds by a piece of their name without underscores, the more specific ones first.
_KINDS = (
    ("barrier", "barrier"),
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
    ("sendrecv", "send"),
    ("send", "send"),
    ("recv", "send"),
)
_ROOTED = frozenset({"broadcast", "reduce"})
_SOURCE = "flight recorder"
#: Bytes of an element by the name of its type in PyTorch, in lower case.
_BYTES = {
    "double": 8, "long": 8, "complexfloat": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2,
    "complexdouble": 16, "char": 1, "byte": 1, "bool": 1,
}  # fmt: skip
_LARGEST = 1 << 62
_POLLED = (
    "Times are from the watchdog of PyTorch, which looks about ten times a second. "
    "TORCH_NCCL_ENABLE_TIMING=1 records those of the GPU."
)


def kind_of(name: str) -> str:
    """Return the kind of a call by its name in PyTorch or NCCL; an unknown name is returned as it is."""
    plain = name.replace("_", "").lower()
    return next((kind for piece, kind in _KINDS if piece in plain), name[:40])


def bus_factor(kind: str, members: int) -> float:
    """Return the bus bandwidth for each unit of algorithm bandwidth, as nccl-tests defines it."""
    if members < 2 or kind in _ROOTED or kind == "send":
        return 1.0
    return (2.0 if kind == "all_reduce" else 1.0) * (members - 1) / members


def pair_bytes(kind: str, size: int, members: int) -> float:
    """Return the bytes that each member sends to each other one in a collective."""
    return 0.0 if kind == "barrier" else (2.0 if kind == "all_reduce" else 1.0) * size / max(members, 1)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group or communicator: its display name, its ranks, and the source that it was read from.

    ``size`` is the number of its members, of which ``ranks`` has those that are known.
    """

    label: str
    ranks: tuple[int, ...]
    source: str
    size: int


@dataclass(slots=True)
class Calls:
    """Calls of one group with the same kind and size; ``times_us`` has the times that were recorded."""

    count: int = 0
    times_us: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Traffic:
    """Traffic of a job.

    ``calls`` is keyed by group, kind and bytes; ``pairs`` has bytes of point-to-point traffic by sender and
    receiver. ``nodes`` is the node of each known rank. ``counts`` has numbers of calls by group and kind,
    from sources without sizes. ``problems`` are lines on files that can't be read, ``notes`` on information
    that is missing in other files.
    """

    groups: list[Group] = field(default_factory=list)
    calls: dict[tuple[int, str, int], Calls] = field(default_factory=dict)
    pairs: dict[tuple[int, int], int] = field(default_factory=dict)
    counts: dict[tuple[int, str], int] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    span_ns: tuple[int, int] | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_group(self, group: Group) -> int:
        """Add a group and return its index."""
        self.groups.append(group)
        return len(self.groups) - 1

    def add(self, group: int, kind: str, size: int, time_us: float | None) -> None:
        """Add one collective, or one point-to-point call of a group."""
        found = self.calls.setdefault((group, kind, size), Calls())
        found.count += 1
        if time_us is not None and time_us > 0:
            found.times_us.append(time_us)

    def add_pair(
        self, group: int, pair: tuple[int, int], size: int, times_us: Sequence[float | None]
    ) -> None:
        """Add point-to-point calls of equal size from one rank to another."""
        self.pairs[pair] = self.pairs.get(pair, 0) + size * len(times_us)
        for time_us in times_us:
            self.add(group, "send", size, time_us)

    def extend_span(self, first_ns: int | None, last_ns: int | None) -> None:
        """Extend the time range that the traffic covers."""
        if first_ns is not None and last_ns is not None:
            low, high = self.span_ns or (first_ns, last_ns)
            self.span_ns = min(low, first_ns), max(high, last_ns)


@dataclass(slots=True)
class Collectives:
    """Single collectives that several ranks report, by group and number.

    The time of a collective is that of the member for which it took least: the others had to wait for the
    last one to arrive, and clocks of different nodes are never compared.
    """

    _found: dict[tuple[int, int], tuple[str, int, float | None]] = field(default_factory=dict)

    def add(self, group: int, number: int, kind: str, size: int, time_us: float | None) -> None:
        """Add one rank's record of the collective with this sequence number, up to 2 000 000 of them."""
        key = (group, number)
        known = self._found.get(key)
        if known is None:
            if len(self._found) < _MOST_CALLS:
                self._found[key] = (kind, size, time_us)
        elif time_us is not None and (known[2] is None or time_us < known[2]):
            self._found[key] = (known[0], max(known[1], size), time_us)

    def into(self, traffic: Traffic, places: Sequence[int]) -> None:
        """Add all collectives to the traffic; ``places`` maps each group to its index there."""
        for (group, _), (kind, size, time_us) in self._found.items():
            traffic.add(places[group], kind, size, time_us)


class FlightCalls:
    """Traffic from the dumps of a job: call `add` for each as it is read, then `into` once."""

    def __init__(self) -> None:
        self._numbers: dict[GroupId, int] = {}
        self._collectives = Collectives()
        # Times of the sends, and numbers of the receives, by group, sender, receiver and bytes.
        self._sends: dict[tuple[int, int, int, int], list[float | None]] = {}
        self._receives: dict[tuple[int, int, int, int], int] = {}
        self._is_polled = False

    def add(self, dump: Dump, bundles: Bundles) -> None:
        """Add the calls of one rank; ``bundles`` has its entries by group, kind of call and number."""
        numbers = {
            group.name: self._numbers.setdefault(group, len(self._numbers))
            for group in (*dump.groups, *dump.logs)
            if group.name  # gloo lists a group without a name.
        }
        for (name, is_p2p, number), entries in bundles.items():
            if name not in numbers or is_abandoned(entries):
                continue
            # A coalesced call ends with an entry of its own, which has its times and no tensors.
            parts, time_us = entries[:-1] or entries, _time_us(entries[-1])
            self._is_polled |= time_us is not None and "duration_ms" not in entries[-1]
            if is_p2p:
                self._add_p2p(numbers[name], parts, time_us)
            else:
                kind, size = kind_of(operation_of(parts[0])), sum(map(_size, parts))
                self._collectives.add(numbers[name], number, kind, size, time_us)

    def into(self, traffic: Traffic, job: Job) -> None:
        """Add the calls of all dumps to the traffic."""
        members = [job.members.get(group, ()) for group in self._numbers]
        places = [
            traffic.add_group(Group(job.label(group), ranks, _SOURCE, len(ranks)))
            for group, ranks in zip(self._numbers, members, strict=True)
        ]
        self._collectives.into(traffic, places)
        if self._is_polled:
            traffic.notes.append(_POLLED)
        for (group, sender, receiver, size), times in self._sends.items():
            if max(sender, receiver) < len(members[group]):
                pair = members[group][sender], members[group][receiver]
                traffic.add_pair(places[group], pair, size, times)
        for (group, sender, receiver, size), count in self._receives.items():
            if max(sender, receiver) < len(members[group]):
                pair = members[group][sender], members[group][receiver]
                # If the sender has a dump, its sends are counted instead.
                if pair[0] not in job.dumps:
                    traffic.add_pair(places[group], pair, size, [None] * count)

    def _add_p2p(self, group: int, parts: Sequence[Mapping[str, Any]], time_us: float | None) -> None:
        for each in parts:
            if match := P2P.search(operation_of(each)):
                first, second, size = int(match[2]), int(match[4]), _size(each)
                if match[1] == "send":
                    self._sends.setdefault((group, first, second, size), []).append(time_us)
                else:
                    key = group, second, first, size
                    self._receives[key] = self._receives.get(key, 0) + 1


def read_flight_calls(folder: Path, traffic: Traffic, *, limit_s: float) -> int:
    """Add the dumps of a directory to the traffic, and return how many there are.

    Raises
    ------
    GipfelError
        The dumps are of several jobs.
    OSError
        The directory can't be read.
    """
    calls = FlightCalls()
    found = read_dumps(folder, limit_s=limit_s, also=calls.add)
    traffic.problems.extend(found.unreadable)
    check_one_job(folder, found.dumps)
    calls.into(traffic, Job.of(found.dumps))
    for dump in found.dumps:
        traffic.extend_span(dump.oldest_ns, dump.newest_ns)
    return len(found.dumps)


def _time_us(entry: Mapping[str, Any]) -> float | None:
    """Return the time of a call: GPU time if recorded, else from its observed start to its observed end."""
    duration = entry.get("duration_ms")
    if isinstance(duration, int | float) and 0 < duration < 1e9:
        return float(duration) * 1e3
    begun = number_of(entry.get("time_discovered_started_ns")) or number_of(entry.get("time_created_ns"))
    ended = number_of(entry.get("time_discovered_completed_ns"))
    return (ended - begun) / 1e3 if begun and ended and ended > begun else None


def _size(entry: Mapping[str, Any]) -> int:
    """Return the bytes of a call: those of its inputs or outputs, whichever are more."""
    return max(
        _tensor_bytes(entry.get("input_sizes"), entry.get("input_dtypes")),
        _tensor_bytes(entry.get("output_sizes"), entry.get("output_dtypes")),
    )


def _tensor_bytes(sizes: Any, dtypes: Any) -> int:
    if not isinstance(sizes, list | tuple) or not isinstance(dtypes, list | tuple) or not dtypes:
        return 0
    total = 0
    for number, shape in enumerate(sizes[:256]):
        name = dtypes[min(number, len(dtypes) - 1)]
        count = _BYTES.get(name.lower(), 1) if isinstance(name, str) else 1
        for each in shape[:16] if isinstance(shape, list | tuple) else ():
            if not isinstance(each, int) or not 0 <= each < _LARGEST:
                return 0
            count = min(count * each, _LARGEST)
        total += count
    return min(total, _LARGEST)
