"""Which pairs measure next: rounds of disjoint pairs, then suspects with cleared nodes and a control pair."""

from collections.abc import Sequence

from .evidence import LINK_SLOW, Evidence, weigh
from .state import PairRound, PairState, PlannedPair
from .switches import among_themselves, slow_together

#: A suspect that was good with so many cleared nodes more than it was slow needs no further round.
_ENOUGH_GOOD = 6
#: Rounds with a busy fabric that are measured again.
_REPEATS = 3


def next_round(state: PairState) -> PairRound | None:
    """The next round, or None when there is nothing more to learn."""
    if len(state.nodes) < 2:
        return None
    number = 1 + max((each.round for each in state.measurements), default=-1)
    surveyed = {each.round for each in state.measurements if each.role == "survey"}
    evidence = weigh(state)
    busy = surveyed & evidence.busy
    wanted = min(state.settings.survey_rounds, _different_rounds(len(state.nodes)))
    again = len(busy) if evidence.cleared else _REPEATS
    if len(surveyed) < wanted + min(again, _REPEATS):
        return PairRound(number=number, pairs=_survey(state, len(surveyed)))
    confirmed = len({each.round for each in state.measurements if each.role != "survey"})
    if confirmed >= state.settings.confirm_rounds:
        return None
    pairs = _confirm(state, evidence)
    return PairRound(number=number, pairs=pairs) if pairs else None


def _different_rounds(nodes: int) -> int:
    """In how many rounds everybody can meet somebody new, with one sitting out where the count is odd."""
    return nodes if nodes % 2 else nodes - 1


def _survey(state: PairState, turn: int) -> tuple[PlannedPair, ...]:
    """A round of the circle method: nobody meets anybody twice, and with an odd count each sits out in turn.

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
    return tuple(PlannedPair(first=first, second=second) for first, second in _apart(whole, state))


def _apart(pairs: list[tuple[str, str]], state: PairState) -> list[tuple[str, str]]:
    """The pairs, with partners swapped where two share a switch or have met."""
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
    """A step that visits every turn of the circle, near its golden section."""
    step = max(1, round(rounds * 0.382))
    while _common(step, rounds) != 1:
        step += 1
    return step


def _common(first: int, second: int) -> int:
    while second:
        first, second = second, first % second
    return first


def _dealt(state: PairState) -> Sequence[str]:
    """The nodes, switch after switch: the circle pairs the first half with the second."""
    return sorted(state.nodes, key=lambda node: (state.switches.get(node, ""), node))


def suspects(state: PairState, evidence: Evidence) -> list[str]:
    """Nodes about which more must be known, the most suspicious first: slow ones, and who met too few."""
    found = []
    # One meeting may be missing: who sat out, or met a node that is convicted now.
    least = min(max(2, state.settings.survey_rounds - 1), len(state.nodes) - 1 - len(evidence.convicted))
    for node in state.nodes:
        if node in evidence.convicted or any(node in link for link in evidence.links):
            continue
        own, met = evidence.readings.get(node, ()), evidence.met[node]
        if node in evidence.cleared and len(met) >= least:
            continue
        slow = sum(each.slow and each.other(node) not in evidence.convicted for each in own)
        if slow and len(met) >= slow + _ENOUGH_GOOD and _relooked(node, own):
            continue
        found.append((-slow, len(met), node))
    return [node for *_, node in sorted(found)]


def _relooked(node: str, own: Sequence[object]) -> bool:
    """Whether each slow pair of the node was measured until it was good, or slow often enough."""
    counts: dict[str, list[bool]] = {}
    for each in own:
        counts.setdefault(each.other(node), []).append(each.slow)  # type: ignore[attr-defined]
    return all(not all(seen) or len(seen) >= LINK_SLOW for seen in counts.values())


def _confirm(state: PairState, evidence: Evidence) -> tuple[PlannedPair, ...]:
    """Suspects with cleared nodes, or once more with whom they were slow, and a control pair."""
    wanting = suspects(state, evidence)
    inside = _neighbours(state, evidence)
    free = sorted(evidence.cleared, key=lambda node: (len(evidence.readings.get(node, ())), node))
    if not wanting:
        return inside
    pairs, taken = list(inside), {node for pair in inside for node in (pair.first, pair.second)}
    # Two cleared nodes tell whether the fabric is busy at this moment.
    control = free[-2:] if len(free) >= 4 or (len(free) >= 2 and len(wanting) < len(free) - 1) else []
    taken.update(control)
    for node in wanting:
        if node in taken:
            continue
        partner = _partner(node, state, evidence, [each for each in free if each not in taken], taken)
        if partner is None:
            continue
        taken.update((node, partner))
        pairs.append(PlannedPair(first=node, second=partner, role="suspect"))
    if control and pairs:
        pairs.append(PlannedPair(first=control[0], second=control[1], role="control"))
    return tuple(pairs)


def _neighbours(state: PairState, evidence: Evidence) -> tuple[PlannedPair, ...]:
    """Slow nodes of one switch with each other, which tells them from their switch."""
    pairs = []
    for nodes in slow_together(state, evidence).values():
        if not among_themselves(evidence, nodes):
            pairs += [
                PlannedPair(first=nodes[index], second=nodes[index + 1], role="suspect")
                for index in range(0, len(nodes) - 1, 2)
            ]
    return tuple(pairs)


def _partner(
    node: str, state: PairState, evidence: Evidence, free: Sequence[str], taken: set[str]
) -> str | None:
    own = evidence.readings.get(node, ())
    met = {each.other(node) for each in own}
    good = {each.other(node) for each in own if not each.slow}
    if len(good) >= 2:
        # Good with others: is it the pair? It is measured again.
        for each in own:
            other = each.other(node)
            again = sum(one.other(node) == other for one in own)
            if each.slow and again < LINK_SLOW and other not in taken and other not in evidence.convicted:
                return other
    elsewhere = [each for each in free if state.switches.get(each) != state.switches.get(node)]
    for group in (elsewhere, free):
        for other in group:
            if other not in met and other != node:
                return other
    # Everybody was met: a cleared one once more.
    return next((each for each in free if each != node), None)
