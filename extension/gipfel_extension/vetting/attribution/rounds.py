"""Plan the next round of pairs: a survey of disjoint pairs, then suspects with cleared nodes."""

import math
from collections import Counter
from collections.abc import Sequence

from .evidence import Evidence, collect_evidence, slow_groups
from .measurements import PairRound, PairState, PlannedPair, by_switch
from .suspicion import MIN_SLOW_OF_LINK

#: Largest number of rounds with a busy fabric that are repeated.
_REPEATS = 3
#: With at most this many nodes, a slow link can't be distinguished from a slow node.
_TOO_FEW_FOR_LINKS = 3
#: With at most this many cleared nodes, the control pair has its own rounds, because suspects need them.
_TOO_FEW_FOR_CONTROL = 2


def next_round(state: PairState) -> PairRound | None:
    """Return the next round; None when more rounds would not change the verdicts."""
    if len(state.nodes) < 2:
        return None
    number = 1 + max((each.round for each in state.measurements), default=-1)
    surveyed = {each.round for each in state.measurements if each.role == "survey"}
    planned = _survey_rounds(state)
    inside = _within_switches(state)
    if pairs := _unconditional_pairs(state, len(surveyed), planned, inside):
        return PairRound(number=number, pairs=pairs)
    evidence = collect_evidence(state)
    busy = surveyed & evidence.busy
    repeats = len(busy) if evidence.cleared else 0
    if len(surveyed) < planned + bool(inside) + min(repeats, _REPEATS):
        return PairRound(number=number, pairs=_survey(state, len(surveyed) - bool(inside)))
    confirmed = len({each.round for each in state.measurements if each.role not in {"survey", "ring"}})
    if confirmed >= state.settings.confirm_rounds:
        return None
    pairs = _confirm(state, evidence)
    return PairRound(number=number, pairs=pairs) if pairs else None


def _unconditional_pairs(
    state: PairState, surveyed: int, planned: int, inside: tuple[PlannedPair, ...]
) -> tuple[PlannedPair, ...]:
    """Return the pairs of a round that does not depend on earlier results; empty when all are measured."""
    if surveyed < planned:
        return _survey(state, surveyed)
    if inside and surveyed == planned:
        return inside
    return _ring(state)


def _survey_rounds(state: PairState) -> int:
    """Return the number of survey rounds; with few nodes, as many as measure every pair.

    A slow link is only found by the pair that uses it.
    """
    # With an odd count, one node pauses in each round.
    different = len(state.nodes) - 1 + len(state.nodes) % 2
    return different if state.every_pair else min(state.settings.survey_rounds, different)


def _within_switches(state: PairState) -> tuple[PlannedPair, ...]:
    """Return pairs within switches, which are fast where only the paths between switches are slow."""
    members = by_switch(state.nodes, state.switches)
    if len(members) < 2 or state.every_pair:
        return ()
    return tuple(
        PlannedPair(first=nodes[index], second=nodes[index + 1])
        for nodes in members.values()
        for index in range(0, len(nodes) - 1, 2)
    )


def _ring(state: PairState) -> tuple[PlannedPair, ...]:
    """Return neighbours in the job's ring that were not measured together, as many as fit in a round.

    Ranks are numbered in the order of the nodes, and rings of collectives follow the ranks: these are the
    paths that the job will use most.
    """
    met = {frozenset((each.first, each.second)) for each in state.measurements}
    used: set[str] = set()
    pairs = []
    for first, second in zip(state.nodes, (*state.nodes[1:], state.nodes[0]), strict=True):
        if frozenset((first, second)) not in met and not used & {first, second}:
            used |= {first, second}
            pairs.append(PlannedPair(first=first, second=second, role="ring"))
    return tuple(pairs)


def _survey(state: PairState, turn: int) -> tuple[PlannedPair, ...]:
    """Return a round of the circle method for round-robin tournaments, which repeats no pair.

    With an odd count, each node pauses in turn. Partners are behind different switches, where these are
    known. The rotations are spread over the circle, because consecutive ones would pair neighbours only.
    """
    # Ordered by switch, because the circle pairs the first half with the second.
    seats: list[str | None] = [*sorted(state.nodes, key=lambda node: (state.switches.get(node, ""), node))]
    if len(seats) % 2:
        seats.append(None)
    count = len(seats)
    rounds = count - 1
    turn = (turn * _stride(rounds)) % rounds
    moving = seats[1:]
    turned = [seats[0], *moving[turn:], *moving[:turn]]
    pairs = [(turned[index], turned[count - 1 - index]) for index in range(count // 2)]
    complete = [(first, second) for first, second in pairs if first is not None and second is not None]
    # Where every pair is measured, partners must not be swapped.
    complete = complete if state.every_pair else _swap_partners(complete, state)
    # Each node is first and second in turn, because it may send fast and receive slowly.
    place = {node: index for index, node in enumerate(seats)}
    return tuple(
        PlannedPair(first=first, second=second)
        if (place[first] < place[second]) == ((place[first] - place[second]) % 2 == 1)
        else PlannedPair(first=second, second=first)
        for first, second in complete
    )


def _swap_partners(pairs: list[tuple[str, str]], state: PairState) -> list[tuple[str, str]]:
    """Return the pairs, with partners swapped where two share a switch or were measured together before."""
    met = {frozenset((each.first, each.second)) for each in state.measurements}

    def good(first: str, second: str) -> bool:
        switch = state.switches.get(first)
        return frozenset((first, second)) not in met and (
            switch is None or switch != state.switches.get(second)
        )

    for index, (first, second) in enumerate(pairs):
        if good(first, second):
            continue
        for place, (third, fourth) in enumerate(pairs):
            if place != index and good(first, fourth) and good(third, second):
                pairs[index], pairs[place] = (first, fourth), (third, second)
                break
    return pairs


def _stride(rounds: int) -> int:
    """Return a step, near the golden section of the circle, that visits every rotation."""
    step = max(1, round(rounds * 0.382))
    while math.gcd(step, rounds) != 1:
        step += 1
    return step


def _confirm(state: PairState, evidence: Evidence) -> tuple[PlannedPair, ...]:
    """Return pairs of suspects with cleared nodes, slow pairs to repeat, and a control pair."""
    times = Counter(reading.pair for node in evidence.readings for reading in evidence.readings[node])
    free = sorted(evidence.cleared, key=lambda node: (len(evidence.readings.get(node, ())), node))
    # Nodes of a pair that was slow can't be a control.
    doubtful = {node for pair in evidence.recheck for node in pair}
    pairs = list(_neighbours(state, evidence))
    used = {node for pair in pairs for node in (pair.first, pair.second)}
    undecided = [node for node in _undecided(state, evidence) if node not in used]
    repeated = _repeated_pairs(state, evidence, times)
    if not pairs and not undecided and not repeated:
        return ()
    undoubted = [node for node in free if node not in doubtful]
    if len(free) == _TOO_FEW_FOR_CONTROL and undecided and _control_is_due(evidence, free):
        return (PlannedPair(first=free[0], second=free[1], role="control"),)
    # A control pair of two cleared nodes shows whether the fabric is busy in this round.
    control: list[str] = []
    if len(undoubted) > _TOO_FEW_FOR_CONTROL or (len(undoubted) == _TOO_FEW_FOR_CONTROL and not undecided):
        control = _rarest_pair(undoubted, times, reserved=len(undecided))
        used.update(control)
    for node in undecided:
        if node in used:
            continue
        partner = _partner(node, state, times, [each for each in free if each not in used])
        if partner is None:
            continue
        used.update((node, partner))
        first, second = (partner, node) if evidence.explained.one_way.get(node) == 1 else (node, partner)
        pairs.append(PlannedPair(first=first, second=second, role="suspect"))
    for first, second in repeated:
        if first not in used and second not in used:
            used.update((first, second))
            pairs.append(PlannedPair(first=first, second=second, role="suspect"))
    if control and pairs:
        pairs.append(PlannedPair(first=control[0], second=control[1], role="control"))
    return tuple(pairs)


def _undecided(state: PairState, evidence: Evidence) -> list[str]:
    """Return nodes that need more readings: suspects first, then nodes with too few good partners."""
    suspected = [node for node in evidence.explained.suspected if node not in evidence.convicted]
    # One partner may be missing: the node paused in a round, or the partner is convicted now.
    least = min(2, len(state.nodes) - 1 - len(evidence.convicted))
    in_links = {node for pair in (*evidence.explained.links, *evidence.recheck) for node in pair}
    judged = {*suspected, *evidence.convicted}
    clear = evidence.cleared | in_links
    return suspected + [
        node
        for node in state.nodes
        if node not in judged and (node not in clear or len(evidence.good_partners[node]) < least)
    ]


def _repeated_pairs(
    state: PairState, evidence: Evidence, times: Counter[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return pairs to measure again because they were slow each time, those with most readings first.

    With three nodes, a link can't be distinguished from a node, so that a few readings are enough.
    """
    # Each reading counts twice: it is stored for both nodes.
    enough = 2 * MIN_SLOW_OF_LINK if len(state.nodes) <= _TOO_FEW_FOR_LINKS else math.inf
    chosen = sorted(
        (pair for pair in evidence.recheck if times[pair] < enough), key=lambda pair: -times[pair]
    )
    # Repeat them in the direction in which they were slow.
    directed = {reading.pair: reading.nodes for first, _ in chosen for reading in evidence.readings[first]}
    return [directed[pair] for pair in chosen]


def _control_is_due(evidence: Evidence, free: Sequence[str]) -> bool:
    """Return whether the control pair was measured less often than half of the other pairs."""
    own = evidence.readings.get(free[0], ())
    controls = sum(each.other(free[0]) == free[1] for each in own)
    others = sum(len(readings) for readings in evidence.readings.values()) // 2 - controls
    return 2 * controls < others


def _rarest_pair(undoubted: Sequence[str], times: Counter[tuple[str, str]], *, reserved: int) -> list[str]:
    """Return the two cleared nodes that were measured together least, apart from `reserved` partners."""
    # Suspects get their partners from the front.
    chosen = undoubted[min(reserved, len(undoubted) - 2) :][:8] if len(undoubted) > 4 else undoubted
    pairs = [
        (times[min(first, second), max(first, second)], first, second)
        for place, first in enumerate(chosen)
        for second in chosen[place + 1 :]
    ]
    _, first, second = min(pairs)
    return [first, second]


def _neighbours(state: PairState, evidence: Evidence) -> tuple[PlannedPair, ...]:
    """Return pairs of slow nodes that may share a switch, to distinguish the nodes from the switch."""
    return tuple(
        PlannedPair(first=group.nodes[index], second=group.nodes[index + 1], role="suspect")
        for group in slow_groups(state, evidence)
        if len(group.slow_inside) < 2
        for index in range(0, len(group.nodes) - 1, 2)
    )


def _partner(node: str, state: PairState, times: Counter[tuple[str, str]], free: Sequence[str]) -> str | None:
    """Return the cleared node that was measured least with `node`, if possible behind another switch."""
    switch = state.switches.get(node)
    return min(
        (other for other in free if other != node),
        key=lambda other: (
            times[min(node, other), max(node, other)],
            switch is not None and state.switches.get(other) == switch,
        ),
        default=None,
    )
