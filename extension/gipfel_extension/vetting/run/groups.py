"""Run a probe on groups of nodes side by side: ports, ranks, and an end for those that wait in vain."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..probing import ProbeAnswer, ProbeSpec
from .dispatch import Dispatcher, PendingTask
from .messages import FindPort, PortFound, RankEnd, RanksDone, RunRanks, Stop

_PORT_LIMIT_S = 10.0
#: Seconds that ranks may go on after one of their group has died: most notice by themselves.
_AFTER_DEATH_S = 4.0
#: Ranks of a group of one node without GPUs, so that there is something between them.
_RANKS_OF_A_NODE = 2


@dataclass(frozen=True)
class GroupOutcome:
    """Result of a group of nodes.

    Parameters
    ----------
    answer
        The measurement, or in its `error` why there is none.
    accused
        Nodes whose ranks died, were stopped or lost; empty where that is not known.
    """

    nodes: tuple[str, ...]
    answer: ProbeAnswer
    accused: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass
class _Group:
    nodes: tuple[str, ...]
    started: float = field(default_factory=time.monotonic)
    port: PendingTask | None = None
    ranks: list[PendingTask] = field(default_factory=list)
    given: dict[int, tuple[int, ...]] = field(default_factory=dict)
    died_at: float | None = None
    stopped: bool = False
    outcome: GroupOutcome | None = None


def run_groups(
    dispatcher: Dispatcher, spec: ProbeSpec, groups: Sequence[tuple[str, ...]]
) -> list[GroupOutcome]:
    """Run a probe once on each of these groups, which share no node; the limit is the probe's own.

    Raises
    ------
    RunEnded
        The run ends first.
    """
    open_groups = [_Group(nodes) for nodes in groups]
    for group in open_groups:
        group.port = dispatcher.give(group.nodes[0], lambda task: FindPort(task=task), _PORT_LIMIT_S)
    while not all(each.outcome for each in open_groups):
        dispatcher.pump()
        for group in open_groups:
            if group.outcome is None:
                _advance(dispatcher, spec, group)
    return [each.outcome for each in open_groups if each.outcome]


def _advance(dispatcher: Dispatcher, spec: ProbeSpec, group: _Group) -> None:
    if not group.ranks:
        if group.port and group.port.done:
            _start_ranks(dispatcher, spec, group)
        return
    if group.died_at is None and any(each.died or _broken(each) for each in group.ranks):
        group.died_at = time.monotonic()
    if group.died_at and not group.stopped and time.monotonic() - group.died_at > _AFTER_DEATH_S:
        group.stopped = True
        for pending in group.ranks:
            if not pending.done:
                dispatcher.pool.send(pending.node, Stop(task=pending.number))
    if all(each.done for each in group.ranks):
        group.outcome = _outcome(group, spec)


def _start_ranks(dispatcher: Dispatcher, spec: ProbeSpec, group: _Group) -> None:
    found = group.port.answer if group.port else None
    absent = tuple(node for node in group.nodes if node not in dispatcher.pool.present)
    if absent or not isinstance(found, PortFound):
        accused = absent or group.nodes[:1]
        answer = ProbeAnswer(error=f"{', '.join(accused)} did not take part: the agent there is lost.")
        group.outcome = GroupOutcome(group.nodes, answer, accused)
        return
    hellos = [dispatcher.pool.present[node].hello for node in group.nodes]
    counts = [_ranks_of(spec, hello.gpus, alone=len(hellos) == 1) for hello in hellos]
    # One to listen for, and each node as many as it has: ranks are numbered node by node.
    first = 0
    for hello, count in zip(hellos, counts, strict=True):
        ranks = tuple(range(first, first + count))
        first += count

        def run(task: int, ranks: tuple[int, ...] = ranks, address: str = hello.address) -> RunRanks:
            return RunRanks(
                task=task,
                spec=spec,
                ranks=ranks,
                world=sum(counts),
                master=hellos[0].address,
                port=found.port,
                address=address,
            )

        pending = dispatcher.give(hello.node, run, spec.time_limit_s)
        group.ranks.append(pending)
        group.given[pending.number] = ranks


def _ranks_of(spec: ProbeSpec, gpus: int, *, alone: bool) -> int:
    count = max(1, gpus) if spec.per_gpu else 1
    return _RANKS_OF_A_NODE if alone and not (spec.per_gpu and gpus) else count


def _broken(pending: PendingTask) -> bool:
    """Return whether a node has given up, so that others may wait in vain."""
    if not pending.done:
        return False
    return not isinstance(pending.answer, RanksDone) or any(each.answer.error for each in pending.answer.ends)


def _outcome(group: _Group, spec: ProbeSpec) -> GroupOutcome:
    seconds = time.monotonic() - group.started
    answered = [(pending, _ends(pending, group.given[pending.number])) for pending in group.ranks]
    ends = [(pending.node, end) for pending, found in answered for end in found or ()]
    lost = tuple(pending.node for pending, found in answered if found is None)
    dead = tuple(node for node, end in ends if end.died)
    accused = tuple(dict.fromkeys((*lost, *dead)))
    problem = _problem(ends, lost, dead)
    if problem is None and (short := _short_of_samples(ends, spec)):
        node, end, wanted = short[0]
        text = f"Rank {end.rank} on {node} delivered {len(end.answer.samples)} of {wanted} samples."
        problem, accused = ProbeAnswer(error=text), tuple(dict.fromkeys(node for node, _, _ in short))
    if problem is None:
        return GroupOutcome(group.nodes, _merged([end.answer for _, end in ends]), (), seconds)
    return GroupOutcome(group.nodes, problem, accused, seconds)


def _ends(pending: PendingTask, ranks: tuple[int, ...]) -> tuple[RankEnd, ...] | None:
    """Return how the ranks of a node ended; None where one of them is missing."""
    if not isinstance(pending.answer, RanksDone):
        return None
    return pending.answer.ends if sorted(each.rank for each in pending.answer.ends) == list(ranks) else None


def _problem(
    ends: Sequence[tuple[str, RankEnd]], lost: Sequence[str], dead: Sequence[str]
) -> ProbeAnswer | None:
    """Return why there is no measurement: of several reasons the one of the faulty node."""
    if lost:
        return ProbeAnswer(error=f"{lost[0]} gave no answer for all of its ranks.")
    failed = [(node, end) for node, end in ends if end.answer.error]
    if not failed:
        return None
    node, end = next(((node, end) for node, end in failed if node in dead), failed[0])
    text = f"Rank {end.rank} on {node}: {end.answer.error}"
    return end.answer.model_copy(update={"error": text, "samples": ()})


def _short_of_samples(ends: Sequence[tuple[str, RankEnd]], spec: ProbeSpec) -> list[tuple[str, RankEnd, int]]:
    """Return the ranks that measured less than was asked for: their part of the group is untested."""
    asked = spec.request.get("samples")
    wanted = asked if isinstance(asked, int) else max((len(end.answer.samples) for _, end in ends), default=0)
    return [(node, end, wanted) for node, end in ends if len(end.answer.samples) < wanted]


def _merged(answers: Sequence[ProbeAnswer]) -> ProbeAnswer:
    """Return the answer of the slowest rank, with the wrong values of all."""
    slowest = min(
        answers, key=lambda each: sorted(each.samples)[len(each.samples) // 2] if each.samples else 0.0
    )
    return slowest.model_copy(update={"wrong": sum(each.wrong for each in answers)})
