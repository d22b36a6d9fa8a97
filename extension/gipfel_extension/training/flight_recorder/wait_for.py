"""Graph of waiting ranks: an edge from a rank to each rank that has not made the call that it waits in.

In a collective, a rank waits for the members whose last number is lower than that of its unfinished call. In
a point-to-point call, it waits for the peer that has not made the opposite call. Ranks that are waited for
and wait for nobody are where a hang begins; ranks that wait for each other in a cycle call in different
orders.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .dump import Call, Dump, GroupId, GroupLog

_DEFAULT = "default_pg"


@dataclass(frozen=True, slots=True)
class Edge:
    """Rank `waiter` waits in `call` for rank `target`."""

    waiter: int
    target: int
    call: Call


@dataclass(slots=True)
class Job:
    """All dumps by process group.

    ``members`` are the ranks of each group, ``logs`` the calls of those that have a dump.
    """

    dumps: dict[int, Dump]
    members: dict[GroupId, tuple[int, ...]] = field(default_factory=dict)
    labels: dict[GroupId, str] = field(default_factory=dict)
    logs: dict[GroupId, dict[int, GroupLog]] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()

    @classmethod
    def of(cls, dumps: Iterable[Dump], expected: Iterable[int] = ()) -> "Job":
        """Return the job of these dumps; ``expected`` are ranks known from elsewhere."""
        job = cls({each.rank: each for each in dumps})
        ranks = {*job.dumps, *expected}
        callers: dict[GroupId, set[int]] = {}
        for rank, dump in job.dumps.items():
            for group, label in dump.groups.items():
                job.members[group] = group.members
                job.labels[group] = label
                ranks.update(group.members)
            for group in dump.logs:
                callers.setdefault(group, set()).add(rank)
        # gloo does not write the members of its groups; all ranks are in the first one.
        everybody = tuple(range(max(ranks, default=-1) + 1)) if len(ranks) < 1_000_000 else tuple(ranks)
        for group, found in callers.items():
            if not group.members:
                job.members[group] = everybody if group.name == "0" else tuple(sorted(found))
                job.labels.setdefault(group, _DEFAULT if group.name == "0" else "")
        job.ranks = tuple(sorted(ranks.union(*job.members.values())))
        for group, members in job.members.items():
            job.logs[group] = {rank: job.dumps[rank].logs[group] for rank in members
                               if rank in job.dumps and group in job.dumps[rank].logs}  # fmt: skip
        return job

    def label(self, group: GroupId) -> str:
        """Return the name of a group for people."""
        text = self.labels.get(group, "")
        return text if text and text != "undefined" else f"group {group.name}"

    def name(self, call: Call) -> str:
        """Return operation, number and group of a call as text."""
        return f"{call.operation} {call.sequence} of {self.label(call.group)}"

    def enqueued(self, group: GroupId, rank: int, call: Call) -> int | None:
        """Return the last collective that a rank has called in a group; None if that is not known."""
        dump = self.dumps.get(rank)
        if dump is None:
            return None
        if (log := self.logs[group].get(rank)) is not None and (log.calls or log.enqueued):
            return log.enqueued
        is_covered = call.created_ns is None or dump.oldest_ns is None or dump.oldest_ns <= call.created_ns
        return 0 if dump.is_whole or is_covered else None

    def have_all_called(self, call: Call) -> bool:
        """Return whether every member has made this collective; False if a member has no dump."""
        members = self.members[call.group]
        return all(rank in self.dumps for rank in members) and all(
            (self.enqueued(call.group, rank, call) or 0) >= call.sequence for rank in members
        )


def unfinished_calls(job: Job) -> list[tuple[int, Call]]:
    """Return rank and call of every call that has not finished."""
    return [
        (rank, call)
        for logs in job.logs.values()
        for rank, log in logs.items()
        for call in (*log.unfinished, *(each for each in log.p2p if not each.finished))
    ]


def collective_edges(job: Job) -> list[Edge]:
    """Return who waits for whom in collectives.

    A rank without a dump is waited for where every other member has made the call.
    """
    edges = []
    for group, logs in job.logs.items():
        waiting = {rank: call for rank, log in logs.items() for call in log.unfinished[-1:]}
        if not waiting:
            continue
        highest = max(each.sequence for each in waiting.values())
        for target in job.members[group]:
            if target in logs and logs[target].enqueued >= highest:
                continue
            for rank, newest in waiting.items():
                last = None if rank == target else job.enqueued(group, target, newest)
                if last is not None and last < newest.sequence:
                    first = next(each for each in logs[rank].unfinished if each.sequence > last)
                    edges.append(Edge(rank, target, first))
        absent = [rank for rank in job.members[group] if rank not in job.dumps]
        called = min((each.enqueued for each in logs.values()), default=0)
        if absent and len(logs) + len(absent) == len(job.members[group]):
            held = {rank: log.unfinished[0] for rank, log in logs.items() if log.unfinished}
            edges += [
                Edge(rank, target, call)
                for rank, call in held.items()
                for target in absent
                if call.sequence <= called
            ]
    return edges


def p2p_edges(job: Job) -> list[Edge]:
    """Return who waits for whom in point-to-point calls.

    Numbers of these calls differ between the two sides, so open sends to a rank are set against its open
    receives: those in excess have no opposite call yet.
    """
    edges: dict[tuple[int, int], Edge] = {}
    for group, logs in job.logs.items():
        members = job.members[group]
        sends, receives = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        calls: dict[tuple[int, int], Call] = {}
        for rank, log in logs.items():
            for call in (each for each in log.p2p if not each.finished):
                for peers, counter in ((call.sends, sends), (call.receives, receives)):
                    for peer in (members[each] for each in peers if each < len(members)):
                        counter[rank, peer] += 1
                        calls[rank, peer] = call
        for (rank, peer), call in calls.items():
            is_open = sends[rank, peer] > receives[peer, rank] or receives[rank, peer] > sends[peer, rank]
            if is_open and peer != rank:
                edges[rank, peer] = Edge(rank, peer, call)
    return list(edges.values())


def sinks(edges: Sequence[Edge]) -> dict[int, list[Edge]]:
    """Return the ranks that are waited for and wait for nobody, with the edges to them."""
    waiters = {each.waiter for each in edges}
    found: dict[int, list[Edge]] = {}
    for edge in edges:
        if edge.target not in waiters:
            found.setdefault(edge.target, []).append(edge)
    return found


def held_by(edges: Sequence[Edge], known: Iterable[int]) -> set[int]:
    """Return the known ranks, and those that wait for one of them, also through others."""
    inwards: dict[int, list[int]] = {}
    for edge in edges:
        inwards.setdefault(edge.target, []).append(edge.waiter)
    explained = set(known)
    queue = deque(explained)
    while queue:
        for waiter in inwards.get(queue.popleft(), ()):
            if waiter not in explained:
                explained.add(waiter)
                queue.append(waiter)
    return explained


def stuck_edges(edges: Sequence[Edge], known: Iterable[int]) -> list[Edge]:
    """Return the edges between ranks that do not wait, through others, for one of the known ranks."""
    explained = held_by(edges, known)
    return [each for each in edges if each.waiter not in explained]


def core(edges: Sequence[Edge]) -> list[Edge]:
    """Return the edges of circles, and those between ranks that wait for one."""
    outwards = Counter(each.waiter for each in edges)
    inwards: dict[int, list[int]] = {}
    for edge in edges:
        inwards.setdefault(edge.target, []).append(edge.waiter)
    queue = deque(target for target in inwards if not outwards[target])
    ended = set(queue)
    while queue:
        for waiter in inwards.get(queue.popleft(), ()):
            outwards[waiter] -= 1
            if not outwards[waiter]:
                ended.add(waiter)
                queue.append(waiter)
    return [each for each in edges if each.waiter not in ended and each.target not in ended]


def odd_ones(job: Job, edges: Sequence[Edge]) -> dict[int, Edge]:
    """Return the fewest ranks that have not made a collective of a circle, with an edge to each.

    Empty if as few have not made another one, or if they are not a minority of the group.
    """
    missing: dict[frozenset[int], Edge] = {}
    for edge in edges:
        call = edge.call
        if not call.is_p2p:
            last = {rank: job.enqueued(call.group, rank, call) for rank in job.members[call.group]}
            absent = frozenset(rank for rank, at in last.items() if at is not None and at < call.sequence)
            missing.setdefault(absent, edge)
    fewest = min(missing, key=len, default=frozenset())
    is_tie = sum(1 for each in missing if len(each) == len(fewest)) > 1
    if not fewest or is_tie or 2 * len(fewest) >= len(job.members[missing[fewest].call.group]):
        return {}
    return dict.fromkeys(sorted(fewest), missing[fewest])


def shortest_circle(edges: Sequence[Edge]) -> list[Edge]:
    """Return the edges of a shortest circle; empty if there is none."""
    outwards: dict[int, dict[int, Edge]] = {}
    for edge in edges:
        outwards.setdefault(edge.waiter, {})[edge.target] = edge
    circles = (_circle_through(start, outwards) for start in sorted(outwards)[:64])
    return min(filter(None, circles), key=len, default=[])


def _circle_through(start: int, outwards: Mapping[int, Mapping[int, Edge]]) -> list[Edge]:
    arrived: dict[int, Edge] = {}
    queue = deque([start])
    while queue:
        rank = queue.popleft()
        for target, edge in outwards.get(rank, {}).items():
            if target == start:
                path = [edge]
                while path[-1].waiter != start:
                    path.append(arrived[path[-1].waiter])
                return path[::-1]
            if target not in arrived:
                arrived[target] = edge
                queue.append(target)
    return []


@dataclass(frozen=True, slots=True)
class Lag:
    """A call that a rank's GPU has not finished (``is_begun``) or not begun, and `others` have."""

    call: Call
    others: int
    is_begun: bool


def ranks_behind(job: Job, left_out: Collection[GroupId]) -> tuple[dict[int, Lag], dict[int, Lag]]:
    """Return the ranks whose GPU is behind in most of their groups, and those behind in any group."""
    behind: dict[int, list[Lag]] = {}
    groups: Counter[int] = Counter()
    for group, logs in job.logs.items():
        if group in left_out or any(each.has_p2p for each in logs.values()) or len(logs) < 2:
            continue
        groups.update(rank for rank, log in logs.items() if log.enqueued)
        for rank, lag in _lags(job, group, logs).items():
            behind.setdefault(rank, []).append(lag)
    most = {rank: lags[0] for rank, lags in behind.items() if 2 * len(lags) > groups[rank]}
    return most, {rank: lags[0] for rank, lags in behind.items()}


def _lags(job: Job, group: GroupId, logs: Mapping[int, GroupLog]) -> dict[int, Lag]:
    """Return the ranks of one group that are behind; none if they are more than half of it."""
    if any(rank in job.dumps and rank not in logs for rank in job.members[group]):
        return {}
    called = min(each.enqueued for each in logs.values())
    finished = max(each.completed for each in logs.values())
    found: dict[int, Lag] = {}
    for rank, log in logs.items():
        late = next((each for each in log.unfinished if each.sequence <= min(called, finished)), None)
        if late is not None:
            others = sum(1 for each in logs.values() if each.completed >= late.sequence)
            found[rank] = Lag(late, others, is_begun=True)
    if not found:
        found = _not_begun(job, logs, called)
    return found if 2 * len(found) <= len(logs) else {}


def _not_begun(job: Job, logs: Mapping[int, GroupLog], called: int) -> dict[int, Lag]:
    """Return the ranks whose GPU has not begun the oldest open call, while others have.

    torch records the start of a call only with TORCH_NCCL_ENABLE_TIMING=1; without it, no call has begun.
    """
    number = min((call.sequence for log in logs.values() for call in log.unfinished), default=called + 1)
    calls = {rank: log.calls[number] for rank, log in logs.items() if number in log.calls}
    begun = sum(1 for each in calls.values() if each.started)
    if number > called or not begun:
        return {}
    return {
        rank: Lag(call, begun, is_begun=False)
        for rank, call in calls.items()
        # An earlier open call of the same rank may be what its GPU waits for.
        if not call.started and not call.finished and call.order == _first_open(job, rank)
    }


def _first_open(job: Job, rank: int) -> int:
    logs = job.dumps[rank].logs.values()
    return min(call.order for log in logs for call in (*log.calls.values(), *log.p2p) if not call.finished)
