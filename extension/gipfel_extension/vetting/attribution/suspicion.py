"""Explain slow readings by nodes that are slow with most partners and pairs that are always slow.

A node is *suspected* that is slow in more than half of its pairs with partners that are fast with some node
and not suspected themselves. It is *convicted* when a permutation test says that it isn't chance: slow and
good are dealt out at random over all readings, and readings of convicted nodes are taken out step by step.
Where several suspects hide each other, they are tested together against all ways to choose as many nodes.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .readings import Reading

#: Chance with which a node of an allocation without fault may be convicted, or one of its pairs.
CONVICTS = 0.002
#: Up to this chance, for the whole allocation, a node is neither convicted nor cleared.
DOUBTS = 0.05
#: A pair is to blame when it was slow so often, and each of its nodes good with so many others.
LINK_SLOW, _LINK_GOOD = 3, 2
_LEAST_PARTNERS = 2
#: With so many partners at least a node is slow one way.
_ONE_WAY = 3
#: So often slow, and half of the time, is not cleared.
_OFTEN = 3
#: So many suspects at most are tested together.
_MOST_TOGETHER = 128


def by_chance(slow: int, of: int, all_slow: int, all_of: int) -> float:
    """Return the chance that at least `slow` of `of` readings are slow, if which ones are slow is chance.

    That is the share of all permutations of slow and good over all readings, `all_slow` of `all_of` with
    these, that put as many slow ones on these: the upper tail of the hypergeometric distribution.
    """
    if slow <= 0 or of <= 0:
        return 1.0
    most = min(of, all_slow)
    least = max(slow, of - (all_of - all_slow))
    whole = _ways(all_of, of)
    tail = sum(
        math.exp(_ways(all_slow, each) + _ways(all_of - all_slow, of - each) - whole)
        for each in range(least, most + 1)
    )
    return min(1.0, tail)


def choices(count: int, of: int) -> float:
    """Return in how many ways `count` nodes can be chosen, at most the largest float."""
    return math.exp(min(700.0, _ways(of, count)))


def _ways(of: int, count: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)


@dataclass
class Ledger:
    """All readings that count, by node and by pair.

    Parameters
    ----------
    nodes
        Of the allocation.
    own
        Node to its readings.
    pairs
        Pair to how often it was slow, and how often it was read.
    """

    nodes: tuple[str, ...]
    readings: Sequence[Reading]
    own: dict[str, list[Reading]] = field(default_factory=lambda: defaultdict(list))
    pairs: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def __post_init__(self) -> None:
        for each in self.readings:
            for node in each.nodes:
                self.own[node].append(each)
            count = self.pairs[each.pair]
            count[0] += each.slow
            count[1] += 1
        self.partners: dict[str, dict[str, bool]] = defaultdict(dict)
        for (first, second), (slow, of) in self.pairs.items():
            self.partners[first][second] = self.partners[second][first] = 2 * slow > of
        self.one_way = {node: place for node in self.nodes if (place := self._one_way(node)) is not None}
        self.fast = {node for each in self.readings if not each.slow for node in each.nodes}

    def _one_way(self, node: str) -> int | None:
        """Return the place in its pairs at which a node is slow with most partners, never at the other one.

        Such a node sends slowly and receives well, or the other way round.
        """
        places: tuple[dict[str, list[bool]], ...] = ({}, {})
        for each in self.own[node]:
            places[each.nodes.index(node)].setdefault(each.other(node), []).append(each.slow)
        for place in (0, 1):
            slow = sum(2 * sum(seen) > len(seen) for seen in places[place].values())
            elsewhere = places[1 - place].values()
            if (
                slow >= _ONE_WAY
                and 2 * slow > len(places[place])
                and len(elsewhere) >= _LEAST_PARTNERS
                and not any(any(seen) for seen in elsewhere)
            ):
                return place
        return None

    def tests(self, node: str) -> int:
        """Return how many tests could have come out like this one: of each node, and of each way."""
        return len(self.nodes) * (3 if node in self.one_way else 1)

    def pool(self, without: Iterable[str], links: Iterable[tuple[str, str]] = ()) -> tuple[int, int]:
        """Return how many readings are slow, and how many there are, without some nodes and pairs."""
        left_out, pairs = set(without), set(links)
        slow = of = 0
        for pair, (times, count) in self.pairs.items():
            if pair not in pairs and pair[0] not in left_out and pair[1] not in left_out:
                slow, of = slow + times, of + count
        return slow, of

    def of_node(
        self, node: str, without: Iterable[str], links: Iterable[tuple[str, str]] = ()
    ) -> tuple[int, int]:
        """Return the same of one node with partners that are not left out."""
        left_out, pairs = set(without), set(links)
        place = self.one_way.get(node)
        counted = [
            each
            for each in self.own[node]
            if each.other(node) not in left_out
            and each.pair not in pairs
            and place in (None, each.nodes.index(node))
        ]
        return sum(each.slow for each in counted), len(counted)


@dataclass(frozen=True)
class Explained:
    """Explanation of slow readings.

    Parameters
    ----------
    suspected
        Nodes that are slow with most partners, the strongest first; convicted ones are among them.
    convicted
        Nodes for which that is not chance, or that are known to be at fault.
    links
        Pairs that are always slow, both nodes good with others.
    chance
        Node to the chance that it is as slow as it is by chance, for the whole allocation.
    doubted
        Other nodes that can't be cleared: slow more often than by chance, or half of the time.
    one_way
        Node that is slow at one place of its pairs alone, to that place: 0 for the first.
    slow_share
        Share of the readings without suspected and convicted nodes that is slow.
    """

    suspected: tuple[str, ...]
    convicted: frozenset[str]
    links: frozenset[tuple[str, str]]
    chance: Mapping[str, float]
    doubted: frozenset[str]
    one_way: Mapping[str, int]
    slow_share: float


def explain(ledger: Ledger, known: Iterable[str]) -> Explained:
    """Return who explains the slow readings; `known` are nodes at fault whatever the readings say."""
    known = set(known)
    links = _links(ledger, known)
    suspected = _suspected(ledger, known, links)
    convicted = _convict(ledger, suspected, known, links)
    # Without the convicted others may be suspected whom they hid, and links be told.
    links |= _links(ledger, convicted)
    suspected = [
        *suspected,
        *(node for node in _suspected(ledger, convicted, links) if node not in suspected),
    ]
    convicted = _convict(ledger, suspected, convicted, links)
    chance = _chances(ledger, suspected, convicted, links)
    pool = ledger.pool(convicted | set(suspected), links)
    return Explained(
        tuple(suspected),
        frozenset(convicted),
        frozenset(links),
        chance,
        frozenset(
            node
            for node in ledger.nodes
            if chance[node] <= DOUBTS or _half_slow(*ledger.of_node(node, {*convicted, *suspected}, links))
        ),
        ledger.one_way,
        pool[0] / pool[1] if pool[1] else 0.0,
    )


def _half_slow(slow: int, of: int) -> bool:
    return slow >= _OFTEN and 2 * slow >= of


def _chances(
    ledger: Ledger, suspected: Sequence[str], convicted: set[str], links: set[tuple[str, str]]
) -> dict[str, float]:
    """Return for each node the chance that any node of the allocation is as slow as this one."""
    found = {}
    pool = ledger.pool(convicted, links)
    accountable = convicted | set(suspected)
    rest = ledger.pool(accountable, links)
    for node in ledger.nodes:
        if node in accountable:
            # Beside nodes that nothing is held against, with these alone.
            slow, of = ledger.of_node(node, accountable - {node}, links)
            beside = slow + rest[0], of + rest[1]
        else:
            slow, of = ledger.of_node(node, convicted, links)
            beside = pool
        found[node] = min(1.0, ledger.tests(node) * by_chance(slow, of, *beside))
    return found


def _suspected(ledger: Ledger, known: set[str], links: set[tuple[str, str]]) -> list[str]:
    """Return the nodes that are slow with most partners, one by one, without those that explain it."""
    aside = set(known)
    found: list[str] = []
    count: dict[str, tuple[int, int]] = {}

    def look(node: str) -> None:
        own = [
            slow
            for other, slow in ledger.partners[node].items()
            if other not in aside and other in ledger.fast and _ordered(node, other) not in links
        ]
        count[node] = (sum(own), len(own))

    for node in ledger.nodes:
        if node not in aside:
            look(node)
    while True:
        wanted = [
            node
            for node, (slow, of) in count.items()
            if slow >= _LEAST_PARTNERS and (2 * slow > of or node in ledger.one_way)
        ]
        if not wanted:
            return found
        node = min(wanted, key=lambda each: (-count[each][0] / count[each][1], -count[each][0], each))
        found.append(node)
        aside.add(node)
        del count[node]
        for other in ledger.partners[node]:
            if other in count:
                look(other)


def _ordered(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first < second else (second, first)


def _convict(
    ledger: Ledger, suspected: Sequence[str], known: Iterable[str], links: set[tuple[str, str]]
) -> set[str]:
    convicted = set(known)
    wanted = [*suspected, *(node for node in _in_two_modes(ledger) if node not in suspected)]
    while True:
        left = [node for node in wanted if node not in convicted]
        pool = ledger.pool(convicted, links)
        chances = {
            node: ledger.tests(node) * by_chance(*ledger.of_node(node, convicted, links), *pool)
            for node in left
        }
        able = [node for node in left if _more_than_a_link(ledger, node, convicted, links)]
        best = min(able, key=lambda node: chances[node], default="")
        more = {best} if best and chances[best] <= CONVICTS else _together(ledger, left, convicted, links)
        if not more:
            return convicted
        convicted |= more


def _more_than_a_link(ledger: Ledger, node: str, convicted: set[str], links: set[tuple[str, str]]) -> bool:
    """Return whether a node stays conspicuous without the partner with which it was slow most often.

    With few partners a slow link, and moments of another, look like a slow node.
    """
    slow = Counter(
        each.other(node) for each in ledger.own[node] if each.slow and each.other(node) not in convicted
    )
    if not slow:
        return False
    worst = _ordered(node, slow.most_common(1)[0][0])
    without = {*links, worst}
    own, pool = ledger.of_node(node, convicted, without), ledger.pool(convicted, without)
    return ledger.tests(node) * by_chance(*own, *pool) <= DOUBTS


def _together(
    ledger: Ledger, left: Sequence[str], convicted: set[str], links: set[tuple[str, str]]
) -> set[str]:
    """Return the suspects that are convicted beside nodes that nothing is held against."""
    for size in range(2, min(len(left), _MOST_TOGETHER) + 1):
        chosen = left[:size]
        aside = convicted | set(chosen)
        rest = ledger.pool(aside, links)
        own = [ledger.of_node(node, aside, links) for node in chosen]
        slow, of = sum(each for each, _ in own), sum(each for _, each in own)
        together = by_chance(slow, of, slow + rest[0], of + rest[1])
        if choices(size, len(ledger.nodes)) * together > CONVICTS:
            continue
        alone = [by_chance(k, m, k + rest[0], m + rest[1]) for k, m in own]
        sure = {
            node for node, chance in zip(chosen, alone, strict=True) if len(ledger.nodes) * chance <= CONVICTS
        }
        if sure:
            return sure
    return set()


def _in_two_modes(ledger: Ledger) -> list[str]:
    """Return the nodes that had two modes within rounds, with several partners."""
    return [
        node
        for node in ledger.nodes
        if len({each.other(node) for each in ledger.own[node] if each.mixed}) >= _LEAST_PARTNERS
    ]


def _links(ledger: Ledger, convicted: set[str]) -> set[tuple[str, str]]:
    """Return pairs that are always slow, their nodes good with most others, where that is not chance."""
    # Two modes are a node's, or can't be told whose.
    unclear = {each.pair for each in ledger.readings if each.mixed or not each.measurement.samples}
    pool = ledger.pool(convicted)
    found = set()
    for pair, (slow, of) in ledger.pairs.items():
        if slow < LINK_SLOW or slow < of or pair in unclear or convicted & set(pair):
            continue
        if len(ledger.pairs) * by_chance(slow, of, *pool) <= CONVICTS and all(
            _good_with_most(ledger, node, set(pair) | convicted) for node in pair
        ):
            found.add(pair)
    return found


def _good_with_most(ledger: Ledger, node: str, without: set[str]) -> bool:
    others = [slow for other, slow in ledger.partners[node].items() if other not in without]
    good = len(others) - sum(others)
    return good >= _LINK_GOOD and 2 * good > len(others)
