"""Sums of single calls between ranks: sizes, times, and bytes between pairs; pure.

In a collective of ``n`` ranks and ``S`` bytes, each member sends at least ``factor * S`` bytes, with the
factors of NVIDIA's nccl-tests (doc/PERFORMANCE.md): an all-reduce 2(n-1)/n, the other kinds that move all
data (n-1)/n. Spread evenly over the other members, this is ``S/n`` for each pair, twice in an all-reduce. A
ring or a tree of NCCL takes other ways through the network for the same result; nothing records those.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

_MOST_CALLS = 2_000_000
#: Kinds by a piece of their name without underscores, the more special first.
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
    """Return the bytes of one collective that each member has for each other one."""
    return 0.0 if kind == "barrier" else (2.0 if kind == "all_reduce" else 1.0) * size / max(members, 1)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group or communicator: its name for people, its ranks, and the source that knows it.

    ``size`` is the number of its members, of which ``ranks`` has those that are known.
    """

    label: str
    ranks: tuple[int, ...]
    source: str
    size: int


@dataclass(slots=True)
class Calls:
    """Equal calls of a group: ``times_us`` of those whose time was recorded."""

    count: int = 0
    times_us: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Traffic:
    """Traffic of a job.

    ``calls`` is by group, kind and bytes; ``pairs`` has bytes of point-to-point traffic by sender and
    receiver. ``nodes`` is the node of each known rank, ``counts`` the calls by group and kind of sources that
    know no sizes. ``problems`` are lines on files that can't be read, ``notes`` on what the others lack.
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
        """Return the number of a new group."""
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

    def saw(self, first_ns: int | None, last_ns: int | None) -> None:
        """Widen the time range that the traffic is of."""
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
        """Add what one rank says of a collective."""
        key = (group, number)
        known = self._found.get(key)
        if known is None:
            if len(self._found) < _MOST_CALLS:
                self._found[key] = (kind, size, time_us)
        elif time_us is not None and (known[2] is None or time_us < known[2]):
            self._found[key] = (known[0], max(known[1], size), time_us)

    def into(self, traffic: Traffic, places: Sequence[int]) -> None:
        """Add all collectives to the traffic; ``places`` has the number of each group there."""
        for (group, _), (kind, size, time_us) in self._found.items():
            traffic.add(places[group], kind, size, time_us)
