"""Analysis of flight recorder dumps: missing ranks, differing calls, stuck collectives, stragglers; pure."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, pluralize

_LATE_MS = 5.0
_FEWEST = 3
#: Limit for damaged dumps; ten thousand ranks have fewer process groups.
_MOST_GROUPS = 50_000


class Entry(Frozen):
    """One collective or point-to-point call of a rank, from its ring buffer.

    Times are nanoseconds since the epoch, None if the call has not reached that state. ``location`` is the
    user's source line.
    """

    group: str
    sequence: int
    operation: str
    state: str
    p2p: bool = False
    inputs: str = ""
    outputs: str = ""
    dtypes: str = ""
    created_ns: int | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    location: str = ""


class Dump(Frozen):
    """The dump of one rank; ``groups`` maps process groups to their ranks."""

    rank: int
    version: str = ""
    groups: dict[str, tuple[int, ...]] = Field(default={})
    names: dict[str, str] = Field(default={})
    entries: tuple[Entry, ...] = ()


class RankLocation(Frozen):
    """Node, GPU and process of a rank; empty if unknown."""

    rank: int
    node: str = ""
    gpu: str = ""
    pid: int = 0

    def __str__(self) -> str:
        label = [f"rank {self.rank}"]
        if self.node:
            label.append(f"on {self.node}")
        if self.gpu:
            label.append(f"GPU {self.gpu}")
        return " ".join(label)


class Finding(Frozen):
    """A fault at one collective.

    ``missing`` are ranks that never called it, ``culprits`` ranks that made a different call.
    """

    kind: Literal["missing", "type", "size", "dtype", "stuck", "no_dump"]
    group: str = ""
    sequence: int = -1
    operation: str = ""
    message: str
    missing: tuple[RankLocation, ...] = ()
    culprits: tuple[RankLocation, ...] = ()


class Straggler(Frozen):
    """A rank that is late: ``behind_ms`` is its median delay behind the first rank, over all collectives."""

    location: RankLocation
    behind_ms: float
    collectives: int


class FlightReport(Frozen):
    """Findings from all dumps; ``unreadable`` are files that are not dumps, with the reason."""

    ranks: tuple[int, ...] = ()
    findings: tuple[Finding, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the report as lines of text."""
        lines = [
            f"dumps of {pluralize(len(self.ranks), 'rank')}: {', '.join(map(str, self.ranks)) or 'none'}"
        ]
        lines += [each.message for each in self.findings]
        lines += [
            f"{each.location} is {each.behind_ms:.1f} ms behind the first rank, the median of "
            f"{each.collectives} collectives"
            for each in self.stragglers
        ]
        lines += [f"can't be read: {each}" for each in self.unreadable]
        if not self.findings:
            no_fault = "The recorded calls show no fault."
            lines.append(no_fault if self.ranks else "Nothing was recorded, so there are no findings.")
        return tuple(lines)


def analyse(
    dumps: Sequence[Dump], locations: Mapping[int, RankLocation], unreadable: tuple[str, ...] = ()
) -> FlightReport:
    """Compare the dumps; dumps of some ranks may be missing.

    Parameters
    ----------
    locations
        Known locations of ranks.
    """
    findings: list[Finding] = []
    members: dict[str, set[int]] = {}
    for dump in dumps:
        for group, ranks in dump.groups.items():
            members.setdefault(group, set()).update(ranks)
    dumped = {dump.rank for dump in dumps}
    collectives = _collectives(dumps)
    for group in sorted(collectives)[:_MOST_GROUPS]:
        wanted = members.get(group) or dumped
        calls = {rank: collectives[group].get(rank, {}) for rank in sorted(wanted & dumped)}
        findings += _group_findings(group, wanted, calls, locations)
    expected = set().union(*members.values()) if members else set()
    silent = sorted(expected - {dump.rank for dump in dumps})
    if silent and dumps:
        faulty = tuple(_location(rank, locations) for rank in silent)
        label = ", ".join(map(str, faulty))
        findings.append(Finding(kind="no_dump", message=f"There is no dump of {label}.", missing=faulty))
    return FlightReport(
        ranks=tuple(dump.rank for dump in dumps),
        findings=tuple(findings),
        stragglers=_stragglers(dumps, locations),
        unreadable=unreadable,
    )


def _group_findings(
    group: str,
    ranks: set[int],
    calls: Mapping[int, Mapping[int, Entry]],
    locations: Mapping[int, RankLocation],
) -> list[Finding]:
    """Return the first collective of a group at which its ranks diverge: later differences follow from it."""
    numbers = sorted({number for each in calls.values() for number in each})
    # Ring buffers begin at different calls, so only calls that every buffer can still hold are compared.
    oldest = max((min(each) for each in calls.values() if each), default=0)
    for number in numbers:
        if number < oldest:
            continue
        callers = {rank: each[number] for rank, each in calls.items() if number in each}
        absent = sorted(rank for rank in calls if rank not in callers)
        found = _mismatch(group, number, callers, locations)
        if found:
            return [found]
        unfinished = [entry for entry in callers.values() if entry.state != "completed"]
        if absent and unfinished:
            return [_missing(group, number, callers, absent, locations)]
        if unfinished and number == numbers[-1] and not absent and set(calls) == ranks:
            return [_stuck(group, number, callers, locations)]
    return []


def _collectives(dumps: Sequence[Dump]) -> dict[str, dict[int, dict[int, Entry]]]:
    """Return the collectives by group, rank and number."""
    found: dict[str, dict[int, dict[int, Entry]]] = {}
    for dump in dumps:
        for each in dump.entries:
            calls = found.setdefault(each.group, {})
            if not each.p2p:
                calls.setdefault(dump.rank, {})[each.sequence] = each
    return found


def _missing(
    group: str,
    number: int,
    callers: Mapping[int, Entry],
    absent: list[int],
    locations: Mapping[int, RankLocation],
) -> Finding:
    one = next(iter(callers.values()))
    faulty = tuple(_location(rank, locations) for rank in absent)
    location = f" ({one.location})" if one.location else ""
    names = ", ".join(map(str, faulty))
    waiting = f"{pluralize(len(callers), 'rank')} {'waits' if len(callers) == 1 else 'wait'}"
    return Finding(
        kind="missing",
        group=group,
        sequence=number,
        operation=one.operation,
        message=f"{names} never called {one.operation} number {number}{location}, for which {waiting}.",
        missing=faulty,
    )


def _mismatch(
    group: str, number: int, callers: Mapping[int, Entry], locations: Mapping[int, RankLocation]
) -> Finding | None:
    for kind, label, key_of in (
        ("type", "operation", lambda each: each.operation),
        ("size", "sizes", _sizes),
        ("dtype", "data types", lambda each: each.dtypes),
    ):
        kinds: dict[str, list[int]] = {}
        for rank, entry in callers.items():
            kinds.setdefault(key_of(entry), []).append(rank)
        if len(kinds) < 2:
            continue
        usual = max(kinds, key=lambda each: len(kinds[each]))
        odd = tuple(
            _location(rank, locations) for each, ranks in kinds.items() if each != usual for rank in ranks
        )
        named = {value: ", ".join(map(str, ranks)) for value, ranks in kinds.items()}
        described = "; ".join(f"{value} by rank {ranks}" for value, ranks in named.items())
        operation = next(iter(callers.values())).operation
        return Finding.model_validate(
            {
                "kind": kind,
                "group": group,
                "sequence": number,
                "operation": operation,
                "message": f"At collective number {number} the {label} differ: {described}.",
                "culprits": odd,
            }
        )
    return None


def _sizes(entry: Entry) -> str:
    # In these operations sizes may differ between ranks.
    free = ("all_to_all", "gather", "scatter", "broadcast", "reduce_scatter", "send", "recv")
    if any(word in entry.operation for word in free):
        return ""
    return f"{entry.inputs} -> {entry.outputs}"


def _stuck(
    group: str, number: int, callers: Mapping[int, Entry], locations: Mapping[int, RankLocation]
) -> Finding:
    waiting = [rank for rank, entry in callers.items() if entry.state == "scheduled"]
    faulty = tuple(_location(rank, locations) for rank in waiting) if len(waiting) < len(callers) else ()
    operation = next(iter(callers.values())).operation
    who_called = f"All {len(callers)} ranks" if len(callers) > 1 else "The only rank"
    more = f" {', '.join(map(str, faulty))} had not begun." if faulty else ""
    return Finding(
        kind="stuck",
        group=group,
        sequence=number,
        operation=operation,
        message=f"{who_called} called {operation} number {number}, and it did not end.{more}",
        culprits=faulty,
    )


def _stragglers(dumps: Sequence[Dump], locations: Mapping[int, RankLocation]) -> tuple[Straggler, ...]:
    """Return ranks that reach most collectives late; the clocks of nodes are assumed to be synchronized."""
    times: dict[tuple[str, int], dict[int, int]] = {}
    for dump in dumps:
        for each in dump.entries:
            if not each.p2p and each.created_ns is not None:
                times.setdefault((each.group, each.sequence), {})[dump.rank] = each.created_ns
    behind: dict[int, list[float]] = {}
    for arrivals in times.values():
        if len(arrivals) > 1:
            first = min(arrivals.values())
            for rank, at in arrivals.items():
                behind.setdefault(rank, []).append((at - first) / 1e6)
    found = [
        Straggler(location=_location(rank, locations), behind_ms=median(each), collectives=len(each))
        for rank, each in behind.items()
        if len(each) >= _FEWEST and median(each) > _LATE_MS
    ]
    return tuple(sorted(found, key=lambda each: -each.behind_ms))


def _location(rank: int, locations: Mapping[int, RankLocation]) -> RankLocation:
    return locations.get(rank) or RankLocation(rank=rank)
