"""Run a probe on disjoint groups of nodes at the same time: find ports, start ranks, stop hanging ranks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from ..probing import ProbeAnswer, ProbeSpec
from .dispatch import Dispatcher, PendingTask
from .messages import FindPort, PortFound, RankResult, RanksFinished, RunRanks, Stop

_PORT_LIMIT_S = 10.0
#: Seconds after the death of a rank until the others of its group are stopped; most end themselves.
_STOP_AFTER_DEATH_S = 4.0
#: Ranks of a group that is one node without GPUs.
_CPU_RANKS = 2


@dataclass(frozen=True)
class GroupOutcome:
    """Result of a group of nodes.

    Parameters
    ----------
    answer
        The measurement, or an answer with an `error`.
    accused
        Nodes whose ranks died, were stopped or were lost; empty if that is unknown.
    """

    nodes: tuple[str, ...]
    answer: ProbeAnswer
    accused: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass
class _Group:
    nodes: tuple[str, ...]
    port: PendingTask
    started: float = field(default_factory=time.monotonic)
    #: The tasks of the nodes, and their ranks.
    tasks: dict[PendingTask, tuple[int, ...]] = field(default_factory=dict)
    died_at: float | None = None
    stopped: bool = False
    outcome: GroupOutcome | None = None


def run_groups(
    dispatcher: Dispatcher, spec: ProbeSpec, groups: Sequence[tuple[str, ...]]
) -> list[GroupOutcome]:
    """Run a probe once on each of these disjoint groups, with the probe's time limit.

    Raises
    ------
    RunEnded
        The run ends before.
    """
    open_groups = [_Group(nodes, dispatcher.submit(nodes[0], FindPort, _PORT_LIMIT_S)) for nodes in groups]
    while not all(each.outcome for each in open_groups):
        dispatcher.process_messages()
        for group in open_groups:
            if group.outcome is None:
                _advance(dispatcher, spec, group)
    return [each.outcome for each in open_groups if each.outcome]


def _advance(dispatcher: Dispatcher, spec: ProbeSpec, group: _Group) -> None:
    if not group.tasks:
        if group.port.done:
            _start_ranks(dispatcher, spec, group)
        return
    if group.died_at is None and any(each.died or _has_failed(each) for each in group.tasks):
        group.died_at = time.monotonic()
    if group.died_at and not group.stopped and time.monotonic() - group.died_at > _STOP_AFTER_DEATH_S:
        group.stopped = True
        for pending in group.tasks:
            if not pending.done:
                dispatcher.pool.send(pending.node, Stop(task=pending.number))
    if all(each.done for each in group.tasks):
        group.outcome = _outcome(group, spec)


def _start_ranks(dispatcher: Dispatcher, spec: ProbeSpec, group: _Group) -> None:
    found = group.port.answer
    absent = tuple(node for node in group.nodes if node not in dispatcher.pool.present)
    if absent or not isinstance(found, PortFound):
        accused = absent or group.nodes[:1]
        answer = ProbeAnswer(error=f"{', '.join(accused)} did not take part: its agent is lost.")
        group.outcome = GroupOutcome(group.nodes, answer, accused)
        return
    hellos = [dispatcher.pool.present[node].hello for node in group.nodes]
    counts = [_rank_count(spec, hello.gpus, alone=len(hellos) == 1) for hello in hellos]
    # Ranks are numbered node by node.
    first = 0
    for hello, count in zip(hellos, counts, strict=True):
        ranks = tuple(range(first, first + count))
        first += count
        make = partial(
            RunRanks,
            spec=spec,
            ranks=ranks,
            world=sum(counts),
            master=hellos[0].address,
            port=found.port,
            address=hello.address,
        )
        group.tasks[dispatcher.submit(hello.node, make, spec.time_limit_s)] = ranks


def _rank_count(spec: ProbeSpec, gpus: int, *, alone: bool) -> int:
    count = max(1, gpus) if spec.per_gpu else 1
    return _CPU_RANKS if alone and not (spec.per_gpu and gpus) else count


def _has_failed(pending: PendingTask) -> bool:
    """Return whether a node has ended without a measurement, so that others may hang."""
    return pending.done and (
        not isinstance(pending.answer, RanksFinished)
        or any(each.answer.error for each in pending.answer.results)
    )


def _outcome(group: _Group, spec: ProbeSpec) -> GroupOutcome:
    seconds = time.monotonic() - group.started
    answered = [(pending, _results(pending, ranks)) for pending, ranks in group.tasks.items()]
    ends = [(pending.node, end) for pending, found in answered for end in found or ()]
    lost = tuple(pending.node for pending, found in answered if found is None)
    dead = tuple(node for node, end in ends if end.died)
    accused = tuple(dict.fromkeys((*lost, *dead)))
    problem = _problem(ends, lost, dead)
    if problem is None and (short := _short_of_samples(ends, spec)):
        node, end, expected = short[0]
        text = f"Rank {end.rank} on {node} delivered {len(end.answer.samples)} of {expected} samples."
        problem, accused = ProbeAnswer(error=text), tuple(dict.fromkeys(node for node, _, _ in short))
    if problem is None:
        return GroupOutcome(group.nodes, _merged([end.answer for _, end in ends]), (), seconds)
    return GroupOutcome(group.nodes, problem, accused, seconds)


def _results(pending: PendingTask, ranks: tuple[int, ...]) -> tuple[RankResult, ...] | None:
    """Return how the ranks of a node ended; None if one of them is missing."""
    if not isinstance(pending.answer, RanksFinished):
        return None
    return (
        pending.answer.results
        if sorted(each.rank for each in pending.answer.results) == list(ranks)
        else None
    )


def _problem(
    ends: Sequence[tuple[str, RankResult]], lost: Sequence[str], dead: Sequence[str]
) -> ProbeAnswer | None:
    """Return the reason without a measurement, preferably that of the faulty node; None with one."""
    if lost:
        return ProbeAnswer(error=f"{lost[0]} did not report all of its ranks.")
    failed = [(node, end) for node, end in ends if end.answer.error]
    if not failed:
        return None
    node, end = next(((node, end) for node, end in failed if node in dead), failed[0])
    text = f"Rank {end.rank} on {node}: {end.answer.error}"
    return end.answer.model_copy(update={"error": text, "samples": ()})


def _short_of_samples(
    ends: Sequence[tuple[str, RankResult]], spec: ProbeSpec
) -> list[tuple[str, RankResult, int]]:
    """Return the ranks that delivered fewer samples than requested, and the requested number."""
    requested = spec.request.get("samples")
    expected = (
        requested
        if isinstance(requested, int)
        else max((len(end.answer.samples) for _, end in ends), default=0)
    )
    return [(node, end, expected) for node, end in ends if len(end.answer.samples) < expected]


def _merged(answers: Sequence[ProbeAnswer]) -> ProbeAnswer:
    """Return the answer of the slowest rank, with the number of wrong values of all ranks."""
    slowest = min(
        answers, key=lambda each: sorted(each.samples)[len(each.samples) // 2] if each.samples else 0.0
    )
    return slowest.model_copy(update={"wrong": sum(each.wrong for each in answers)})
