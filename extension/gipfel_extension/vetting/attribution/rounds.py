"""Plan the next round: disjoint pairs, then suspects with cleared nodes and a control pair."""

import math
from collections import Counter
from collections.abc import Sequence

from .evidence import Evidence, slow_together, weigh
from .state import PairRound, PairState, PlannedPair
from .suspicion import LINK_SLOW

#: Rounds with a busy fabric that are measured again.
_REPEATS = 3
#: With so few nodes a slow link can't be told from its ends.
_LEAST_FOR_LINKS = 3
#: Of so few cleared nodes none is left for a control pair beside suspects: it has rounds of its own.
_NO_CONTROL = 2


def next_round(state: PairState) -> PairRound | None:
    """Return the next round, or None when there is nothing more to learn."""
    if len(state.nodes) < 2:
        return None
    number = 1 + max((each.round for each in state.measurements), default=-1)
    surveyed = {each.round for each in state.measurements if each.role == "survey"}
    wanted = _survey_rounds(state)
    inside = _within_switches(state)
    if pairs := _fixed(state, len(surveyed), wanted, inside):
        return PairRound(number=number, pairs=pairs)
    evidence = weigh(state)
    busy = surveyed & evidence.busy
    again = len(busy) if evidence.cleared else 0
    if len(surveyed) < wanted + bool(inside) + min(again, _REPEATS):
        return PairRound(number=number, pairs=_survey(state, len(surveyed) - bool(inside)))
    confirmed = len({each.round for each in state.measurements if each.role not in {"survey", "ring"}})
    if confirmed >= state.settings.confirm_rounds:
        return None
    pairs = _confirm(state, evidence)
    return PairRound(number=number, pairs=pairs) if pairs else None


def _fixed(
    state: PairState, surveyed: int, wanted: int, inside: tuple[PlannedPair, ...]
) -> tuple[PlannedPair, ...]:
    """Return the pairs of a round that are measured whatever the others show; none when all are."""
    if surveyed < wanted:
        return _survey(state, surveyed)
    if inside and surveyed == wanted:
        return inside
    return _ring(state)


def _survey_rounds(state: PairState) -> int:
    """Return in how many rounds every node has a partner: all others where the nodes are few.

    A slow link is only seen by the pair that uses it.
    """
    different = _different_rounds(len(state.nodes))
    if state.every_pair:
        return different
    return min(state.settings.survey_rounds, different)


def _different_rounds(nodes: int) -> int:
    """Return in how many rounds every node meets a new one; one sits out where the count is odd."""
    return nodes if nodes % 2 else nodes - 1


def _within_switches(state: PairState) -> tuple[PlannedPair, ...]:
    """Return pairs behind the same switch: where all paths between switches are slow, these tell."""
    members: dict[str, list[str]] = {}
    for node in state.nodes:
        if node in state.switches:
            members.setdefault(state.switches[node], []).append(node)
    if len(members) < 2 or state.every_pair:
        return ()
    return tuple(
        PlannedPair(first=nodes[index], second=nodes[index + 1])
        for nodes in members.values()
        for index in range(0, len(nodes) - 1, 2)
    )


def _ring(state: PairState) -> tuple[PlannedPair, ...]:
    """Return neighbours on the job's ring that have not met, as many as fit in a round.

    Ranks are numbered in the order of the nodes, and rings of collectives follow the ranks: these are the
    paths that the job will use most.
    """
    met = {frozenset((each.first, each.second)) for each in state.measurements}
    taken: set[str] = set()
    pairs = []
    for first, second in zip(state.nodes, (*state.nodes[1:], state.nodes[0]), strict=True):
        if frozenset((first, second)) not in met and not taken & {first, second}:
            taken |= {first, second}
            pairs.append(PlannedPair(first=first, second=second, role="ring"))
    return tuple(pairs)


def _survey(state: PairState, turn: int) -> tuple[PlannedPair, ...]:
    """Return a round of the circle method: no pair twice, and with an odd count each sits out in turn.

    Nodes are dealt out so that partners are of different switches, where these are known. The turns are
    spread over the circle, because the first ones would pair each node with its neighbours alone.
    """
    seats: list[str | None] = [*_dealt(state)]
    if len(seats) % 2:
        seats.append(None)
    count = len(seats)
    rounds = count - 1
    turn = (turn * _stride(rounds)) % rounds
    moving = seats[1:]
    turned = [seats[0], *moving[turn:], *moving[:turn]]
    pairs = [(turned[index], turned[count - 1 - index]) for index in range(count // 2)]
    whole = [(first, second) for first, second in pairs if first is not None and second is not None]
    # Where every pair has its turn, none may change places.
    whole = whole if state.every_pair else _apart(whole, state)
    # A node has its turn at both places: it may send well and receive slowly.
    place = {node: index for index, node in enumerate(seats)}
    return tuple(
        PlannedPair(first=first, second=second)
        if (place[first] < place[second]) == ((place[first] - place[second]) % 2 == 1)
        else PlannedPair(first=second, second=first)
        for first, second in whole
    )


def _apart(pairs: list[tuple[str, str]], state: PairState) -> list[tuple[str, str]]:
    """Return the pairs, with partners swapped where two share a switch or have met."""
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
    """Return a step that visits every rotation of the circle, near its golden section."""
    step = max(1, round(rounds * 0.382))
    while _common(step, rounds) != 1:
        step += 1
    return step


def _common(first: int, second: int) -> int:
    while second:
        first, second = second, first % second
    return first


def _dealt(state: PairState) -> Sequence[str]:
    """Return the nodes switch after switch, so that the circle pairs the first half with the second."""
    return sorted(state.nodes, key=lambda node: (state.switches.get(node, ""), node))


def _confirm(state: PairState, evidence: Evidence) -> tuple[PlannedPair, ...]:
    """Return suspects with cleared nodes, slow pairs once more, and a control pair."""
    times = Counter(reading.pair for node in evidence.readings for reading in evidence.readings[node])
    free = sorted(evidence.cleared, key=lambda node: (len(evidence.readings.get(node, ())), node))
    # A pair that was slow is no control.
    doubtful = {node for pair in evidence.recheck for node in pair}
    pairs = list(_neighbours(state, evidence))
    taken = {node for pair in pairs for node in (pair.first, pair.second)}
    wanting = [node for node in _wanting(state, evidence) if node not in taken]
    again = _again(state, evidence, times)
    if not pairs and not wanting and not again:
        return ()
    calm = [node for node in free if node not in doubtful]
    if len(free) == _NO_CONTROL and wanting and _control_is_due(evidence, free):
        return (PlannedPair(first=free[0], second=free[1], role="control"),)
    # Two cleared nodes tell whether the fabric is busy at this moment.
    control: list[str] = []
    if len(calm) > _NO_CONTROL or (len(calm) == _NO_CONTROL and not wanting):
        control = _least_met(calm, times, reserved=len(wanting))
        taken.update(control)
    for node in wanting:
        if node in taken:
            continue
        partner = _partner(node, state, times, [each for each in free if each not in taken])
        if partner is None:
            continue
        taken.update((node, partner))
        first, second = (partner, node) if evidence.explained.one_way.get(node) == 1 else (node, partner)
        pairs.append(PlannedPair(first=first, second=second, role="suspect"))
    for first, second in again:
        if first not in taken and second not in taken:
            taken.update((first, second))
            pairs.append(PlannedPair(first=first, second=second, role="suspect"))
    if control and pairs:
        pairs.append(PlannedPair(first=control[0], second=control[1], role="control"))
    return tuple(pairs)


def _wanting(state: PairState, evidence: Evidence) -> list[str]:
    """Return nodes about which more must be known, the most suspicious first, then who met too few."""
    found = [node for node in evidence.suspected if node not in evidence.convicted]
    # One meeting may be missing: of the node that sat out, or met one that is convicted now.
    least = min(2, len(state.nodes) - 1 - len(evidence.convicted))
    in_links = {node for pair in (*evidence.links, *evidence.recheck) for node in pair}
    for node in state.nodes:
        if node in found or node in evidence.convicted:
            continue
        doubted = node not in evidence.cleared and node not in in_links
        if doubted or len(evidence.met[node]) < least:
            found.append(node)
    return found


def _again(state: PairState, evidence: Evidence, times: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return pairs that were slow each time, the most often read first.

    With three nodes a link can't be told from its ends: it is enough that it was slow a few times.
    """
    # Each reading stands at both nodes.
    enough = 2 * LINK_SLOW if len(state.nodes) <= _LEAST_FOR_LINKS else math.inf
    wanted = sorted(
        (pair for pair in evidence.recheck if times[pair] < enough), key=lambda pair: -times[pair]
    )
    # In the order in which they were slow.
    asked = {reading.pair: reading.nodes for first, _ in wanted for reading in evidence.readings[first]}
    return [asked[pair] for pair in wanted]


def _control_is_due(evidence: Evidence, free: Sequence[str]) -> bool:
    """Return whether the pair of the only cleared nodes was measured less often than half of the others."""
    own = evidence.readings.get(free[0], ())
    beside = sum(each.other(free[0]) == free[1] for each in own)
    others = sum(len(readings) for readings in evidence.readings.values()) // 2 - beside
    return 2 * beside < others


def _least_met(calm: Sequence[str], times: Counter[tuple[str, str]], *, reserved: int) -> list[str]:
    """Return two cleared nodes that were measured together least, of those whom suspects need least."""
    # Suspects take their partners from the front.
    chosen = calm[min(reserved, len(calm) - 2) :][:8] if len(calm) > 4 else calm
    pairs = [
        (times[min(first, second), max(first, second)], first, second)
        for place, first in enumerate(chosen)
        for second in chosen[place + 1 :]
    ]
    _, first, second = min(pairs)
    return [first, second]


def _neighbours(state: PairState, evidence: Evidence) -> tuple[PlannedPair, ...]:
    """Return pairs of slow nodes that may share a switch, which tells them from it."""
    pairs = []
    for group in slow_together(state, evidence):
        if len(group.among) < 2:
            pairs += [
                PlannedPair(first=group.nodes[index], second=group.nodes[index + 1], role="suspect")
                for index in range(0, len(group.nodes) - 1, 2)
            ]
    return tuple(pairs)


def _partner(node: str, state: PairState, times: Counter[tuple[str, str]], free: Sequence[str]) -> str | None:
    """Return the cleared node that this one met least, behind another switch where there is one."""
    switch = state.switches.get(node)
    return min(
        (other for other in free if other != node),
        key=lambda other: (
            times[min(node, other), max(node, other)],
            switch is not None and state.switches.get(other) == switch,
        ),
        default=None,
    )
