"""Analysis of flight recorder dumps: missing ranks, differing calls, stuck collectives, stragglers; pure."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, counted

_LATE_MS = 5.0
_FEWEST = 3
#: More than ten thousand ranks have.
_MOST_GROUPS = 50_000


class Entry(Frozen):
    """One collective or point-to-point call of a rank, as its ring buffer had it.

    Times are nanoseconds since the epoch, None where the rank did not get there.
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
    where: str = ""


class Dump(Frozen):
    """The dump of one rank; ``groups`` maps process groups to their ranks."""

    rank: int
    version: str = ""
    groups: dict[str, tuple[int, ...]] = Field(default={})
    names: dict[str, str] = Field(default={})
    entries: tuple[Entry, ...] = ()


class RankPlace(Frozen):
    """Place of a rank; empty if it is not known."""

    rank: int
    node: str = ""
    gpu: str = ""
    pid: int = 0

    def __str__(self) -> str:
        words = [f"rank {self.rank}"]
        if self.node:
            words.append(f"on {self.node}")
        if self.gpu:
            words.append(f"GPU {self.gpu}")
        return " ".join(words)


class Finding(Frozen):
    """A fault at one collective.

    ``missing`` are ranks that never called it, ``culprits`` those who called something else or differently.
    """

    kind: Literal["missing", "type", "size", "dtype", "stuck", "no_dump"]
    group: str = ""
    sequence: int = -1
    operation: str = ""
    message: str
    missing: tuple[RankPlace, ...] = ()
    culprits: tuple[RankPlace, ...] = ()


class Straggler(Frozen):
    """A rank that comes late: by how many milliseconds, the median over collectives, behind the first."""

    place: RankPlace
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
        lines = [f"dumps of {counted(len(self.ranks), 'rank')}: {', '.join(map(str, self.ranks)) or 'none'}"]
        lines += [each.message for each in self.findings]
        lines += [
            f"{each.place} comes {each.behind_ms:.1f} ms after the first, over {each.collectives} collectives"
            for each in self.stragglers
        ]
        lines += [f"can't be read: {each}" for each in self.unreadable]
        if not self.findings:
            recorded = "Nothing is wrong in what was recorded."
            lines.append(recorded if self.ranks else "Nothing was recorded, so there are no findings.")
        return tuple(lines)


def analyse(
    dumps: Sequence[Dump], places: Mapping[int, RankPlace], unreadable: tuple[str, ...] = ()
) -> FlightReport:
    """Compare the dumps; that of some ranks may be missing.

    Parameters
    ----------
    places
        Where each rank runs, as far as it is known.
    """
    findings: list[Finding] = []
    members: dict[str, set[int]] = {}
    for dump in dumps:
        for group, ranks in dump.groups.items():
            members.setdefault(group, set()).update(ranks)
    everybody = {dump.rank for dump in dumps}
    collectives = _collectives(dumps)
    for group in sorted(collectives)[:_MOST_GROUPS]:
        wanted = members.get(group) or everybody
        calls = {rank: collectives[group].get(rank, {}) for rank in sorted(wanted & everybody)}
        findings += _of_group(group, wanted, calls, places)
    expected = set().union(*members.values()) if members else set()
    silent = sorted(expected - {dump.rank for dump in dumps})
    if silent and dumps:
        who = tuple(_place(rank, places) for rank in silent)
        words = ", ".join(map(str, who))
        findings.append(Finding(kind="no_dump", message=f"There is no dump of {words}.", missing=who))
    return FlightReport(
        ranks=tuple(dump.rank for dump in dumps),
        findings=tuple(findings),
        stragglers=_stragglers(dumps, places),
        unreadable=unreadable,
    )


def _of_group(
    group: str, ranks: set[int], calls: Mapping[int, Mapping[int, Entry]], places: Mapping[int, RankPlace]
) -> list[Finding]:
    """Return the first collective of a group at which its ranks diverge: later differences follow from it."""
    numbers = sorted({number for each in calls.values() for number in each})
    # Ring buffers begin at different calls: only what every one can still hold is compared.
    oldest = max((min(each) for each in calls.values() if each), default=0)
    for number in numbers:
        if number < oldest:
            continue
        there = {rank: each[number] for rank, each in calls.items() if number in each}
        absent = sorted(rank for rank in calls if rank not in there)
        found = _mismatch(group, number, there, places)
        if found:
            return [found]
        unfinished = [entry for entry in there.values() if entry.state != "completed"]
        if absent and unfinished:
            return [_missing(group, number, there, absent, places)]
        if unfinished and number == numbers[-1] and not absent and set(calls) == ranks:
            return [_stuck(group, number, there, places)]
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
    group: str, number: int, there: Mapping[int, Entry], absent: list[int], places: Mapping[int, RankPlace]
) -> Finding:
    one = next(iter(there.values()))
    who = tuple(_place(rank, places) for rank in absent)
    where = f" ({one.where})" if one.where else ""
    return Finding(
        kind="missing",
        group=group,
        sequence=number,
        operation=one.operation,
        message=f"{', '.join(map(str, who))} never called {one.operation} number {number}{where}, for which "
        f"{counted(len(there), 'rank')} {'waits' if len(there) == 1 else 'wait'}.",
        missing=who,
    )


def _mismatch(
    group: str, number: int, there: Mapping[int, Entry], places: Mapping[int, RankPlace]
) -> Finding | None:
    for kind, words, of in (
        ("type", "operation", lambda each: each.operation),
        ("size", "sizes", _sizes),
        ("dtype", "data types", lambda each: each.dtypes),
    ):
        kinds: dict[str, list[int]] = {}
        for rank, entry in there.items():
            kinds.setdefault(of(entry), []).append(rank)
        if len(kinds) < 2:
            continue
        usual = max(kinds, key=lambda each: len(kinds[each]))
        odd = tuple(_place(rank, places) for each, ranks in kinds.items() if each != usual for rank in ranks)
        named = {value: ", ".join(map(str, ranks)) for value, ranks in kinds.items()}
        described = "; ".join(f"{value} by rank {ranks}" for value, ranks in named.items())
        operation = next(iter(there.values())).operation
        return Finding.model_validate(
            {
                "kind": kind,
                "group": group,
                "sequence": number,
                "operation": operation,
                "message": f"At collective number {number} the {words} differ: {described}.",
                "culprits": odd,
            }
        )
    return None


def _sizes(entry: Entry) -> str:
    # Of these every rank may bring another size, or only one brings any.
    free = ("all_to_all", "gather", "scatter", "broadcast", "reduce_scatter", "send", "recv")
    if any(word in entry.operation for word in free):
        return ""
    return f"{entry.inputs} -> {entry.outputs}"


def _stuck(group: str, number: int, there: Mapping[int, Entry], places: Mapping[int, RankPlace]) -> Finding:
    waiting = [rank for rank, entry in there.items() if entry.state == "scheduled"]
    who = tuple(_place(rank, places) for rank in waiting) if len(waiting) < len(there) else ()
    operation = next(iter(there.values())).operation
    who_called = f"All {len(there)} ranks" if len(there) > 1 else "The only rank"
    more = f" {', '.join(map(str, who))} had not begun." if who else ""
    return Finding(
        kind="stuck",
        group=group,
        sequence=number,
        operation=operation,
        message=f"{who_called} called {operation} number {number}, and it did not end.{more}",
        culprits=who,
    )


def _stragglers(dumps: Sequence[Dump], places: Mapping[int, RankPlace]) -> tuple[Straggler, ...]:
    """Return ranks that reach most collectives late, taking the clocks of nodes as equal."""
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
        Straggler(place=_place(rank, places), behind_ms=median(each), collectives=len(each))
        for rank, each in behind.items()
        if len(each) >= _FEWEST and median(each) > _LATE_MS
    ]
    return tuple(sorted(found, key=lambda each: -each.behind_ms))


def _place(rank: int, places: Mapping[int, RankPlace]) -> RankPlace:
    return places.get(rank) or RankPlace(rank=rank)
