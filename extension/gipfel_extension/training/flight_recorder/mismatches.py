"""Ranks that made different calls under the same number of a process group, or calls in different orders."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from .dump import Call, GroupId
from .report import Mismatch, Side
from .wait_for import Job

#: Open collectives of a rank whose order is compared, the oldest first.
_MAX_ORDERED = 8
_CallKey = tuple[GroupId, int]

#: Operations with whether sizes of inputs, and of outputs, may differ between ranks. torch's names of the
#: variants that allow only equal sizes end in _base, _single, _tensor or _coalesced.
_FREE = {
    "all_to_all": (True, True), "all_to_all_single": (True, True), "all_to_all_v_single": (True, True),
    "alltoall_base": (True, True), "alltoall": (True, True),
    "all_gather": (True, True), "allgather": (True, True),
    "all_gather_v": (True, True), "reduce_scatter": (True, True), "reduce_scatter_v": (True, True),
    "scatter": (True, False), "gather": (False, True), "send": (True, True), "recv": (True, True),
}  # fmt: skip


def find_mismatches(job: Job) -> tuple[list[Mismatch], dict[int, Mismatch]]:
    """Return the first mismatch of each group, and the ranks that made another call than the majority.

    No rank is named if no rank waits in the group, since then the calls succeeded, or if there is no
    majority.
    """
    found: list[Mismatch] = []
    odd: dict[int, Mismatch] = {}
    for group, logs in job.logs.items():
        by_number: dict[int, dict[int, Call]] = {}
        is_hanging = False
        for rank, log in logs.items():
            is_hanging |= any(not each.finished for each in log.calls.values())
            for number, call in log.calls.items():
                by_number.setdefault(number, {})[rank] = call
        for number in sorted(by_number):
            if len(by_number[number]) < 2 or (mismatch := _compare(job, group, by_number[number])) is None:
                continue
            found.append(mismatch)
            if is_hanging and mismatch.kind != "shape":
                odd |= dict.fromkeys(_minority(mismatch), mismatch)
            break
    return found, odd


def find_order_conflicts(job: Job) -> list[tuple[Mismatch, list[int]]]:
    """Return open calls of two groups that ranks made in opposite orders, with the ranks of a minority.

    GPUs run their calls in the order of the host, so each call waits for the other one. For a pair to
    count, all members must have made one of the calls, so that no missing rank explains why it is open. A
    rank that has made it, but not the other call, makes that one later.
    """
    opened: dict[int, list[Call]] = {}
    for logs in job.logs.values():
        for rank, log in logs.items():
            opened.setdefault(rank, []).extend(log.unfinished)
    orders: dict[tuple[_CallKey, _CallKey], tuple[Call, Call, list[int]]] = {}
    for rank, found in opened.items():
        ordered = sorted(found, key=lambda each: each.order)[:_MAX_ORDERED]
        for first, second in combinations(ordered, 2):
            if first.group != second.group:
                key = (first.group, first.sequence), (second.group, second.sequence)
                orders.setdefault(key, (first, second, []))[2].append(rank)
    conflicts = []
    for (one, other), (first, second, ranks) in orders.items():
        _, _, opposite = orders.get((other, one), (second, first, []))
        without = [] if opposite else _made_without(job, second, first)
        # Handle each pair once.
        is_second = bool(opposite) and _sort_key(one) > _sort_key(other)
        if (
            (opposite or without)
            and not is_second
            and _is_settled(job, first, second, is_seen=bool(opposite))
        ):
            mismatch = _order_mismatch(job, (first, second), ranks, [*opposite, *without])
            conflicts.append((mismatch, _minority(mismatch)))
    return conflicts


def _is_settled(job: Job, first: Call, second: Call, *, is_seen: bool) -> bool:
    return job.have_all_called(second) or (is_seen and job.have_all_called(first))


def _made_without(job: Job, made: Call, other: Call) -> list[int]:
    """Return the ranks in which a call is open, and which have not made the other one."""
    callers = job.logs[made.group]
    members = set(job.members[other.group])
    found = []
    for rank, log in callers.items():
        call = log.calls.get(made.sequence) if rank in members else None
        if call is not None and not call.finished:
            last = job.enqueued(other.group, rank, other)
            if last is not None and last < other.sequence:
                found.append(rank)
    return found


def _order_mismatch(
    job: Job, calls: tuple[Call, Call], ranks: Sequence[int], opposite: Sequence[int]
) -> Mismatch:
    first, second = (job.name(each) for each in calls)
    sides = (
        Side(call=f"{first} before {second}", ranks=tuple(ranks)),
        Side(call=f"{second} before {first}", ranks=tuple(opposite)),
    )
    ordered = sorted(sides, key=lambda each: -len(each.ranks))
    return Mismatch(
        kind="order", group=job.label(calls[0].group), sequence=calls[0].sequence, sides=tuple(ordered)
    )


def _sort_key(key: _CallKey) -> tuple[str, tuple[int, ...], int]:
    return key[0].name, key[0].members, key[1]


def _compare(job: Job, group: GroupId, calls: Mapping[int, Call]) -> Mismatch | None:
    for kind, key in _KEYS:
        sides: dict[Any, list[int]] = {}
        for rank, call in calls.items():
            sides.setdefault(key(call), []).append(rank)
        if len(sides) > 1:
            ordered = sorted(sides.values(), key=len, reverse=True)
            described = [
                Side(call=_describe(calls[ranks[0]], kind), ranks=tuple(ranks), frame=calls[ranks[0]].frame)
                for ranks in ordered
            ]
            sequence = next(iter(calls.values())).sequence
            return Mismatch(kind=kind, group=job.label(group), sequence=sequence, sides=tuple(described))
    return None


def _minority(mismatch: Mismatch) -> list[int]:
    first, *others = mismatch.sides
    count = sum(len(each.ranks) for each in mismatch.sides)
    return [rank for each in others for rank in each.ranks] if 2 * len(first.ranks) > count else []


def _sizes(call: Call, key: Callable[[tuple[int, ...]], Any]) -> tuple[Any, Any]:
    free = _FREE.get(call.operation, (False, False))
    first, second = (
        () if is_free else tuple(key(shape) for shape in shapes)
        for is_free, shapes in zip(free, call.shapes, strict=True)
    )
    return first, second


def _dtypes(call: Call) -> tuple[Any, Any]:
    # In these, only the root has inputs or outputs of all ranks.
    free = (call.operation == "scatter", call.operation == "gather")
    first, second = (
        () if is_free else tuple(sorted(set(names))) for is_free, names in zip(free, call.dtypes, strict=True)
    )
    return first, second


_KEYS: tuple[tuple[str, Callable[[Call], Any]], ...] = (
    ("operation", lambda call: call.operation),
    ("size", lambda call: _sizes(call, math.prod)),
    ("dtype", _dtypes),
    ("shape", lambda call: _sizes(call, tuple)),
)


def _describe(call: Call, kind: str) -> str:
    inputs, outputs = call.shapes
    if kind == "dtype":
        return f"{call.operation} of {' '.join(sorted({*call.dtypes[0], *call.dtypes[1]})) or 'no type'}"
    sizes = " ".join(str(list(each)) for each in inputs[:4]) or "no input"
    if outputs and outputs != inputs:
        sizes += " -> " + " ".join(str(list(each)) for each in outputs[:4])
    return f"{call.operation} of {sizes}"[:300]
