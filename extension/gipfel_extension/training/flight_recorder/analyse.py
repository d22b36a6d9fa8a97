"""From dumps to the ranks that cause a hang; pure, and dumps of some ranks may be missing.

Order of the search: different calls under one number; GPUs behind their group; ranks that are waited for and
wait for nobody; ranks without a dump, where nothing else explains what others wait for; circles. Everything
else is folded into the ranks that wait. Where all ranks of a group have called and none has finished, a
network or a GPU is to blame and dumps don't say which: that is "cannot tell".
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gipfel_cluster.model import pluralize

from .dump import Call, Dump
from .mismatches import find_mismatches, find_order_conflicts
from .report import FaultyRank, FlightReport, Mismatch, RankLocation, Straggler, name_ranks
from .wait_for import (
    Edge,
    Job,
    Lag,
    collective_edges,
    core,
    held_by,
    odd_ones,
    p2p_edges,
    ranks_behind,
    shortest_circle,
    sinks,
    stuck_edges,
    unfinished_calls,
)

if TYPE_CHECKING:
    from ...diagnosis.arrivals import LateRanks
    from ...diagnosis.roles import Roles

#: Age in seconds below which open calls are those of a running job. Clocks of nodes and file systems differ
#: by less.
_YOUNG_S = 1.0


def analyse(
    dumps: Sequence[Dump],
    locations: Mapping[int, RankLocation] | None = None,
    unreadable: tuple[str, ...] = (),
    damaged: Iterable[int] = (),
    roles: "Roles | None" = None,
) -> FlightReport:
    """Return who keeps the others waiting.

    Parameters
    ----------
    locations
        Known locations by rank; each of these ranks should have a dump.
    damaged
        Ranks whose dump can't be read.
    roles
        Roles of the ranks, which late ranks are compared by; None if unknown.
    """
    locations = locations or {}
    job = Job.of(dumps, locations)
    search = _Search(job, frozenset(damaged))
    search.run()
    faulty_ranks = tuple(
        # Those on the device side come first.
        sorted(search.faulty_ranks.values(), key=lambda each: (each.side == "host", each.rank))
    )
    verdict = "unknown" if search.reason else "cause" if faulty_ranks or search.is_mismatched else "none"
    waiting = sorted({each.waiter for each in search.edges} | {rank for rank, _ in search.open_calls})
    late = None
    if verdict == "none" or search.is_young:
        late = _find_stragglers(job, locations, roles)
    return FlightReport.model_validate(
        {
            "verdict": verdict,
            "reason": search.reason,
            "ranks": tuple(sorted(job.dumps)),
            "culprits": faulty_ranks,
            "waiting": tuple(rank for rank in waiting if rank not in search.faulty_ranks),
            "mismatches": tuple(search.mismatches),
            "missing_dumps": search.missing if dumps else (),
            "stragglers": ()
            if late is None
            else tuple(
                Straggler(
                    location=locations.get(each.rank) or RankLocation(rank=each.rank),
                    behind_ms=1e3 * each.late_s,
                    collectives=each.calls,
                    group=each.group,
                    unit=each.unit or "",
                )
                for each in late.late
            ),
            "late_reason": "" if late is None else "; ".join(late.reasons),
            "unreadable": unreadable,
            "locations": {rank: locations[rank] for rank in search.faulty_ranks if rank in locations},
        }
    )


class _Search:
    """One search for the cause, see the module; `reason` is why it found none although ranks wait."""

    def __init__(self, job: Job, damaged: frozenset[int]) -> None:
        self.job = job
        self.damaged = damaged
        self.missing = tuple(rank for rank in job.ranks if rank not in job.dumps)
        self.open_calls = unfinished_calls(job)
        self.edges: list[Edge] = []
        self.faulty_ranks: dict[int, FaultyRank] = {}
        self.mismatches: list[Mismatch] = []
        self.is_mismatched = False
        self.is_circular = False
        self.is_young = False
        self.reason = ""

    def run(self) -> None:
        """Run the search, and set the attributes."""
        if not any(each.entries or each.logs for each in self.job.dumps.values()):
            self.reason = (
                "no call was recorded. Start the program with TORCH_FR_BUFFER_SIZE=2000 (before torch 2.12: "
                "TORCH_NCCL_TRACE_BUFFER_SIZE=2000), and dump while it hangs."
            )
            return
        self.mismatches, odd = find_mismatches(self.job)
        if not self.open_calls:
            self.reason = _failure_reason(self.job, self.missing)
            return
        if (age_s := _age_s(self.job, self.open_calls)) is not None and age_s < _YOUNG_S:
            self.is_young = True
            self.reason = (
                f"the oldest open call is {max(age_s, 0):.1f} s old, and the job may be running. "
                "Dump once more while it hangs."
            )
            return
        collectives = collective_edges(self.job)
        self.edges = collectives + p2p_edges(self.job)
        for rank, mismatch in odd.items():
            self._accuse(rank, "host", _odd_words(rank, mismatch), mismatch.group)
        for mismatch, minority in find_order_conflicts(self.job):
            self.mismatches.append(mismatch)
            for rank in minority:
                self._accuse(rank, "host", _odd_words(rank, mismatch), mismatch.group)
        self.is_mismatched = any(each.kind != "shape" for each in self.mismatches)
        self._search_graph(collectives)

    def _search_graph(self, collectives: Sequence[Edge]) -> None:
        differing = {each.group for each in self.mismatches if each.kind != "shape"}
        left_out = {group for group in self.job.logs if self.job.label(group) in differing}
        most, any_group = ranks_behind(self.job, left_out)
        for rank, lag in most.items():
            self._accuse_device(rank, lag)
        if not self.is_mismatched:
            self._search_orders(core(collectives))
        stuck = self._stuck_calls()
        ends = sinks(self.edges)
        held = {rank for rank in ends if self._is_held(rank)}
        excused = {rank for rank in ends if rank in self.job.dumps and self._is_excused(rank, stuck)}
        for rank, found in ends.items():
            if rank in any_group:
                # The rank waits for its own GPU.
                self._accuse_device(rank, any_group[rank])
            elif rank in self.job.dumps and rank not in excused | held:
                self._accuse_host(rank, found)
        self._search_circles(collectives, {*excused, *self.missing})
        open_stuck = [call for call in stuck if not self._is_explained(call) and call.group not in left_out]
        if open_stuck and not self.faulty_ranks:
            for rank, lag in any_group.items():
                self._accuse_device(rank, lag)
        if not self.faulty_ranks and not self.is_mismatched:
            self._search_missing()
        if not self.faulty_ranks and not self.is_mismatched and not self.reason:
            self.reason = _stuck_reason(self.job, open_stuck)

    def _stuck_calls(self) -> list[Call]:
        """Return one open collective of each group that all ranks with a dump have made, the oldest first."""
        oldest: dict[object, Call] = {}
        for _, call in self.open_calls:
            if not call.is_p2p and (call.group not in oldest or call.sequence < oldest[call.group].sequence):
                oldest[call.group] = call
        return [each for each in oldest.values() if self.job.have_all_called(each)]

    def _is_excused(self, rank: int, stuck: Sequence[Call]) -> bool:
        """Return whether the rank is in a call that all have made, in a group where none waits for it."""
        waiters = held_by(self.edges, [rank]) - {rank}
        held = {call.group for who, call in self.open_calls if who == rank and not call.is_p2p}
        return any(
            call.group in held and not waiters.intersection(self.job.members[call.group]) for call in stuck
        )

    def _is_held(self, rank: int) -> bool:
        """Return whether a known cause already explains why a rank with open calls makes no further ones."""
        is_known = self.is_mismatched or self.is_circular or bool(self.faulty_ranks)
        return is_known and any(who == rank for who, _ in self.open_calls)

    def _is_explained(self, call: Call) -> bool:
        """Return whether a member of the call is a faulty rank, or waits for another rank elsewhere."""
        members = self.job.members[call.group]
        waiting = {each.waiter for each in self.edges}
        return any(rank in self.faulty_ranks or rank in waiting for rank in members)

    def _search_orders(self, circular: Sequence[Edge]) -> None:
        """Accuse ranks that wait for each other in collectives, which requires different orders of calls."""
        self.is_circular = bool(circular)
        if odd := odd_ones(self.job, circular):
            for rank, edge in odd.items():
                self._accuse_host(rank, [edge])
        else:
            self._accuse_circle(shortest_circle(circular))

    def _search_circles(self, collectives: Sequence[Edge], excused: set[int]) -> None:
        left = stuck_edges(self.edges, {*self.faulty_ranks, *excused})
        if not left or self.is_mismatched:
            return
        within = {(each.waiter, each.target) for each in left}
        only = [each for each in collectives if (each.waiter, each.target) in within]
        if not only:
            self._accuse_circle(shortest_circle(left))
            return
        # Receives that are posted early wait as well. The rank that was waited for first is what others
        # follow.
        calling = {each.waiter for each in only}
        ends = [each for each in only if each.target not in calling]
        first = min(ends or only, key=lambda each: (each.call.created_ns or 0, each.target))
        self._accuse_host(first.target, [first])

    def _accuse_circle(self, circle: Sequence[Edge]) -> None:
        for edge in circle:
            self._accuse(
                edge.waiter, "host",
                f"it waits in {self.job.name(edge.call)} for rank {edge.target}, which waits for it: "
                "these ranks call in different orders", self.job.label(edge.call.group),
            )  # fmt: skip

    def _search_missing(self) -> None:
        """Accuse ranks without a dump if nothing else explains what others wait for."""
        waited = {rank: found for rank, found in sinks(self.edges).items() if rank in self.missing}
        if not waited:
            return
        damaged = [rank for rank in waited if rank in self.damaged]
        if damaged or len(waited) > 1:
            # Of several, one may have ended, and the files of the others may be lost.
            why = "can't be read" if damaged else "are missing"
            call = self.job.name(next(iter(waited.values()))[0].call)
            self.reason = (
                f"others wait in {call}, and dumps of {name_ranks(damaged or list(waited))} {why}. "
                "Add them to the directory."
            )
            return
        for rank, found in waited.items():
            call = self.job.name(found[0].call)
            others = len({each.waiter for each in found})
            verb = "waits" if others == 1 else "wait"
            self._accuse(
                rank, "host",
                f"it has left no dump, and {pluralize(others, 'other rank')} {verb} for it in {call}: "
                "its process has ended, or hangs so that it can't write one",
                self.job.label(found[0].call.group),
            )  # fmt: skip

    def _accuse_device(self, rank: int, lag: Lag) -> None:
        done = "finished" if lag.is_begun else "begun"
        verb = "has" if lag.others == 1 else "have"
        others = f"{pluralize(lag.others, 'other rank')} {verb} {done}"
        why = f"its GPU has not {done} {self.job.name(lag.call)}, which {others}"
        self._accuse(rank, "device", why, self.job.label(lag.call.group), lag.call.frame)

    def _accuse_host(self, rank: int, found: Sequence[Edge]) -> None:
        call = min((each.call for each in found), key=lambda each: each.created_ns or 0)
        last = self.job.dumps[rank].last
        at = f" ({last.frame})" if last and last.frame else ""
        where = f"its last call is {self.job.name(last)}{at}" if last else "it has recorded no call"
        waits = f"the opposite of {self.job.name(call)}" if call.is_p2p else self.job.name(call)
        self._accuse(rank, "host", f"it never called {waits}; {where}", self.job.label(call.group))

    def _accuse(self, rank: int, side: str, why: str, group: str, frame: str = "") -> None:
        if rank in self.faulty_ranks:
            return
        dump = self.job.dumps.get(rank)
        if not frame and dump is not None and dump.last is not None:
            frame = dump.last.frame
        self.faulty_ranks[rank] = FaultyRank.model_validate(
            {"rank": rank, "side": side, "why": why, "group": group, "frame": frame}
        )


def _odd_words(rank: int, mismatch: Mismatch) -> str:
    usual = mismatch.sides[0]
    own = next(each for each in mismatch.sides if rank in each.ranks)
    if mismatch.kind == "order":
        return f"it called {own.call}, and {pluralize(len(usual.ranks), 'rank')} {usual.call}"
    return (
        f"it called {own.call} where {pluralize(len(usual.ranks), 'rank')} called {usual.call}, as call "
        f"{mismatch.sequence} of {mismatch.group}"
    )


def _failure_reason(job: Job, missing: Sequence[int]) -> str:
    """Return why dumps of a job without open calls don't show that nothing is wrong; empty if they do."""
    ended = [each.last for each in job.dumps.values() if each.last is not None]
    unsure = next((call for call in ended if not call.has_succeeded), None)
    if not missing or unsure is None:
        return ""
    verb = "has" if len(missing) == 1 else "have"
    return (
        f"{name_ranks(list(missing))} {verb} left no dump, and it is not recorded whether {job.name(unsure)} "
        "of the others ended or failed. Look in the log for the rank that failed first."
    )


def _stuck_reason(job: Job, stuck: Sequence[Call]) -> str:
    if not stuck:
        return "calls are open, and no rank is behind. Dump once more while it hangs, with all ranks."
    call = min(stuck, key=lambda each: each.created_ns or 0)
    members = job.members[call.group]
    everybody = pluralize(len(members), "rank")
    return (
        f"all {everybody} called {job.name(call)} and none has finished it: a link or a GPU hangs, or ranks "
        "call in different orders. Test the nodes with `gipfel vet`, or set TORCH_NCCL_ENABLE_TIMING=1 to "
        "see which GPUs begin."
    )


def _age_s(job: Job, open_calls: Sequence[tuple[int, Call]]) -> float | None:
    """Return the age of the oldest open call at its dump; None if unknown, or if a clock was wrong."""
    ages = [
        (written - call.created_ns) / 1e9
        for rank, call in open_calls
        if call.created_ns and (written := job.dumps[rank].written_ns) is not None
    ]
    return max(ages) if ages and max(ages) > -_YOUNG_S else None


def _find_stragglers(job: Job, locations: Mapping[int, RankLocation], roles: "Roles | None") -> "LateRanks":
    """Return the ranks that call collectives late, see `diagnosis.arrivals`."""
    import numpy as np  # noqa: PLC0415 - slow to import, and not needed where a job hangs

    from ...diagnosis.arrivals import GroupArrivals, LateRanks, find_late_ranks  # noqa: PLC0415

    groups = []
    for group, logs in job.logs.items():
        times = {rank: _by_number(log.times) for rank, log in logs.items() if log.times}
        if len(times) < 2 or len(times) < len(logs):
            continue
        common = sorted(set.intersection(*(set(each) for each in times.values())))
        if not common:
            continue
        ranks = tuple(sorted(times))
        both = np.array([[times[rank][number] for rank in ranks] for number in common], dtype=np.float64)
        # Float64 holds the time since the epoch to 0.2 µs.
        both /= 1e9
        ended = np.where(both[:, :, 1] > 0, both[:, :, 1], np.nan)
        is_default = len(ranks) == len(job.dumps)
        groups.append(GroupArrivals(job.label(group), ranks, both[:, :, 0], ended, is_default))
    if not groups:
        return LateRanks()
    nodes = {rank: each.node for rank, each in locations.items()}
    has_p2p = any(log.has_p2p for logs in job.logs.values() for log in logs.values())
    return find_late_ranks(groups, nodes, roles, has_p2p=has_p2p)


def _by_number(times: Sequence[int]) -> dict[int, tuple[int, int]]:
    return {times[n]: (times[n + 1], times[n + 2]) for n in range(0, len(times), 3)}
