"""Explain slow readings by nodes that are slow with most partners, and by pairs that are always slow.

A node is *suspected* if it is slow in more than half of its pairs with partners that are fast with some node
and not suspected themselves. It is *convicted* if a permutation test shows that this is not chance: the
test permutes slow and good over all readings, and readings of convicted nodes are removed step by step.
Suspects that hide each other are tested together, with a correction for the choices of as many nodes.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .measurements import Reading

#: Upper bound of the probability that any node, or any pair, of an allocation without faults is convicted.
CONVICTION_LEVEL = 0.002
#: Up to this probability, for the whole allocation, a node is not cleared.
DOUBT_LEVEL = 0.05
#: A link is at fault if it was slow at least this often, and each of its nodes was good with this many
#: others.
MIN_SLOW_OF_LINK, _MIN_GOOD_OF_NODES = 3, 2
_MIN_PARTNERS = 2
#: Least number of slow partners of a node that is slow in one direction.
_MIN_ONE_WAY = 3
#: A node that was slow at least this often, and in half of its readings, is not cleared.
_MIN_SLOW_OFTEN = 3
#: Largest number of suspects that are tested together.
_MAX_TOGETHER = 128


def slow_probability(slow: int, total: int, all_slow: int, all_total: int) -> float:
    """Return the probability that at least `slow` of `total` readings are slow by coincidence.

    That is the share of permutations of slow and good over all readings (`all_slow` of `all_total`, these
    included) with as many slow ones among these: the upper tail of the hypergeometric distribution.
    """
    if slow <= 0 or total <= 0:
        return 1.0
    upper = min(total, all_slow)
    lower = max(slow, total - (all_total - all_slow))
    log_all = _log_binomial(all_total, total)
    tail = sum(
        math.exp(_log_binomial(all_slow, each) + _log_binomial(all_total - all_slow, total - each) - log_all)
        for each in range(lower, upper + 1)
    )
    return min(1.0, tail)


def choices(count: int, total: int) -> float:
    """Return the number of ways to choose `count` of `total` nodes, limited to the range of floats."""
    return math.exp(min(700.0, _log_binomial(total, count)))


def _log_binomial(total: int, count: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)


_Counts = dict[str, list[int]]


@dataclass
class Ledger:
    """Index of the readings that count, by node and by pair.

    Parameters
    ----------
    nodes
        Nodes of the allocation.
    own
        Readings by node.
    pairs
        Number of slow readings and of all readings by pair.
    partners
        Whether a node is slow in most readings with a partner, by node and partner.
    fast
        Nodes with at least one reading that was not slow.
    one_way
        Position (0 first, 1 second) in pairs at which alone a node is slow with most partners: such a node is
        slow only in sending, or only in receiving.
    """

    nodes: tuple[str, ...]
    readings: Sequence[Reading]
    own: dict[str, list[Reading]] = field(default_factory=lambda: defaultdict(list))
    pairs: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def __post_init__(self) -> None:
        # Per node and position, the number of slow readings and of all readings by partner.
        self._sides: dict[str, tuple[_Counts, _Counts]] = {node: ({}, {}) for node in self.nodes}
        self.fast: set[str] = set()
        for each in self.readings:
            first, second = nodes = each.nodes
            for position, node in enumerate(nodes):
                self.own[node].append(each)
                count = self._sides[node][position].setdefault(nodes[1 - position], [0, 0])
                count[0] += each.slow
                count[1] += 1
            count = self.pairs[each.pair]
            count[0] += each.slow
            count[1] += 1
            if not each.slow:
                self.fast |= {first, second}
        self._slow = sum(slow for slow, _ in self.pairs.values())
        self._total = sum(total for _, total in self.pairs.values())
        self.partners: dict[str, dict[str, bool]] = defaultdict(dict)
        for (first, second), (slow, total) in self.pairs.items():
            self.partners[first][second] = self.partners[second][first] = 2 * slow > total
        self.one_way = {node: side for node in self.nodes if (side := self._one_way(node)) is not None}

    def _one_way(self, node: str) -> int | None:
        sides = self._sides[node]
        for position in (0, 1):
            slow = sum(2 * slow > total for slow, total in sides[position].values())
            other_side = sides[1 - position].values()
            if (
                slow >= _MIN_ONE_WAY
                and 2 * slow > len(sides[position])
                and len(other_side) >= _MIN_PARTNERS
                and not any(slow for slow, _ in other_side)
            ):
                return position
        return None

    def tests(self, node: str) -> int:
        """Return the number of tests to correct for: one for each node, three where directions are tested."""
        return len(self.nodes) * (3 if node in self.one_way else 1)

    def pool(self, without: Iterable[str], links: Iterable[tuple[str, str]] = ()) -> tuple[int, int]:
        """Return the number of slow readings and of all readings, without some nodes and pairs."""
        excluded = set(without)
        pairs = set(links)
        for node in excluded:
            pairs.update(_sorted_pair(node, other) for other in self.partners.get(node, ()))
        counts = [self.pairs[pair] for pair in pairs if pair in self.pairs]
        return self._slow - sum(slow for slow, _ in counts), self._total - sum(total for _, total in counts)

    def of_node(
        self, node: str, without: Iterable[str], links: Iterable[tuple[str, str]] = ()
    ) -> tuple[int, int]:
        """Return the numbers of slow and of all readings of one node, without some partners and pairs."""
        excluded = {*without, *(other for pair in links if node in pair for other in pair if other != node)}
        slow = total = 0
        for position, partners in enumerate(self._sides[node]):
            if self.one_way.get(node, position) == position:
                for other, (times, count) in partners.items():
                    if other not in excluded:
                        slow, total = slow + times, total + count
        return slow, total


@dataclass(frozen=True)
class Explanation:
    """Explanation of slow readings.

    Parameters
    ----------
    suspected
        Nodes that are slow with most partners, the most suspicious first; may include convicted ones.
    convicted
        Nodes for which that is not chance, or that are known to be at fault.
    links
        Pairs that are always slow, with both nodes good with others.
    chance
        Probability by node that any node of the allocation is as slow by coincidence.
    doubted
        Other nodes that can't be cleared: slow more often than by coincidence, or in half of their readings.
    one_way
        Nodes that are slow only in sending or only in receiving, and their position in the slow pairs: 0 for
        the first.
    slow_share
        Share of slow readings among those without suspected and convicted nodes.
    """

    suspected: tuple[str, ...]
    convicted: frozenset[str]
    links: frozenset[tuple[str, str]]
    chance: Mapping[str, float]
    doubted: frozenset[str]
    one_way: Mapping[str, int]
    slow_share: float


def explain_slow_readings(ledger: Ledger, known: Iterable[str]) -> Explanation:
    """Return the nodes and links that explain the slow readings; `known` nodes are convicted in any case."""
    known = set(known)
    links = _links(ledger, known)
    suspected = _suspected(ledger, known, links)
    convicted = _convict(ledger, suspected, known, links)
    # Without the convicted nodes, others that they had hidden may become suspected, and links be found.
    links |= _links(ledger, convicted)
    suspected = [
        *suspected,
        *(node for node in _suspected(ledger, convicted, links) if node not in suspected),
    ]
    convicted = _convict(ledger, suspected, convicted, links)
    chance = _chances(ledger, suspected, convicted, links)
    pool = ledger.pool(convicted | set(suspected), links)
    return Explanation(
        tuple(suspected),
        frozenset(convicted),
        frozenset(links),
        chance,
        frozenset(
            node
            for node in ledger.nodes
            if chance[node] <= DOUBT_LEVEL
            or _half_slow(*ledger.of_node(node, {*convicted, *suspected}, links))
        ),
        ledger.one_way,
        pool[0] / pool[1] if pool[1] else 0.0,
    )


def _half_slow(slow: int, total: int) -> bool:
    return slow >= _MIN_SLOW_OFTEN and 2 * slow >= total


def _chances(
    ledger: Ledger, suspected: Sequence[str], convicted: set[str], links: set[tuple[str, str]]
) -> dict[str, float]:
    """Return for each node the probability that any node of the allocation is as slow by coincidence."""
    chances = {}
    pool = ledger.pool(convicted, links)
    blamed = convicted | set(suspected)
    rest = ledger.pool(blamed, links)
    for node in ledger.nodes:
        if node in blamed:
            # Compared with nodes without evidence against them, and only with these.
            slow, total = ledger.of_node(node, blamed - {node}, links)
            reference = slow + rest[0], total + rest[1]
        else:
            slow, total = ledger.of_node(node, convicted, links)
            reference = pool
        chances[node] = min(1.0, ledger.tests(node) * slow_probability(slow, total, *reference))
    return chances


def _suspected(ledger: Ledger, known: set[str], links: set[tuple[str, str]]) -> list[str]:
    """Return the nodes that are slow with most partners, found one by one, each without those before it."""
    excluded = set(known)
    suspected: list[str] = []
    count: dict[str, tuple[int, int]] = {}

    def count_partners(node: str) -> None:
        own = [
            slow
            for other, slow in ledger.partners[node].items()
            if other not in excluded and other in ledger.fast and _sorted_pair(node, other) not in links
        ]
        count[node] = (sum(own), len(own))

    for node in ledger.nodes:
        if node not in excluded:
            count_partners(node)
    while True:
        candidates = [
            node
            for node, (slow, total) in count.items()
            if slow >= _MIN_PARTNERS and (2 * slow > total or node in ledger.one_way)
        ]
        if not candidates:
            return suspected
        node = min(candidates, key=lambda each: (-count[each][0] / count[each][1], -count[each][0], each))
        suspected.append(node)
        excluded.add(node)
        del count[node]
        for other in ledger.partners[node]:
            if other in count:
                count_partners(other)


def _sorted_pair(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first < second else (second, first)


def _convict(
    ledger: Ledger, suspected: Sequence[str], known: Iterable[str], links: set[tuple[str, str]]
) -> set[str]:
    convicted = set(known)
    candidates = [*suspected, *(node for node in _in_two_modes(ledger) if node not in suspected)]
    while True:
        remaining = [node for node in candidates if node not in convicted]
        pool = ledger.pool(convicted, links)
        chances = {
            node: ledger.tests(node) * slow_probability(*ledger.of_node(node, convicted, links), *pool)
            for node in remaining
        }
        eligible = [node for node in remaining if _more_than_a_link(ledger, node, convicted, links)]
        best = min(eligible, key=lambda node: chances[node], default="")
        if best and chances[best] <= CONVICTION_LEVEL:
            more = {best}
        else:
            more = _convict_together(ledger, remaining, convicted, links)
        if not more:
            return convicted
        convicted |= more


def _more_than_a_link(ledger: Ledger, node: str, convicted: set[str], links: set[tuple[str, str]]) -> bool:
    """Return whether a node is still suspicious without the partner with which it was slow most often.

    With few partners, a slow link and a coincidence on another look like a slow node.
    """
    slow = Counter(
        each.other(node) for each in ledger.own[node] if each.slow and each.other(node) not in convicted
    )
    if not slow:
        return False
    worst = _sorted_pair(node, slow.most_common(1)[0][0])
    without = {*links, worst}
    own, pool = ledger.of_node(node, convicted, without), ledger.pool(convicted, without)
    return ledger.tests(node) * slow_probability(*own, *pool) <= DOUBT_LEVEL


def _convict_together(
    ledger: Ledger, remaining: Sequence[str], convicted: set[str], links: set[tuple[str, str]]
) -> set[str]:
    """Return suspects that are convicted as a group, compared with nodes without evidence against them."""
    for size in range(2, min(len(remaining), _MAX_TOGETHER) + 1):
        chosen = remaining[:size]
        excluded = convicted | set(chosen)
        rest = ledger.pool(excluded, links)
        own = [ledger.of_node(node, excluded, links) for node in chosen]
        slow, total = sum(each for each, _ in own), sum(each for _, each in own)
        together = slow_probability(slow, total, slow + rest[0], total + rest[1])
        if choices(size, len(ledger.nodes)) * together > CONVICTION_LEVEL:
            continue
        single = [slow_probability(k, m, k + rest[0], m + rest[1]) for k, m in own]
        convictable = {
            node
            for node, chance in zip(chosen, single, strict=True)
            if len(ledger.nodes) * chance <= CONVICTION_LEVEL
        }
        if convictable:
            return convictable
    return set()


def _in_two_modes(ledger: Ledger) -> list[str]:
    """Return the nodes whose samples had two modes within rounds with several partners."""
    return [
        node
        for node in ledger.nodes
        if len({each.other(node) for each in ledger.own[node] if each.partly_slow}) >= _MIN_PARTNERS
    ]


def _links(ledger: Ledger, convicted: set[str]) -> set[tuple[str, str]]:
    """Return pairs that are always slow, beyond coincidence, with nodes that are good with most others."""
    # Two modes are caused by a node, or their cause is unclear.
    unclear = {each.pair for each in ledger.readings if each.partly_slow or not each.measurement.samples}
    pool = ledger.pool(convicted)
    return {
        pair
        for pair, (slow, total) in ledger.pairs.items()
        if MIN_SLOW_OF_LINK <= slow == total
        and pair not in unclear
        and not convicted & set(pair)
        and len(ledger.pairs) * slow_probability(slow, total, *pool) <= CONVICTION_LEVEL
        and all(_good_with_most(ledger, node, set(pair) | convicted) for node in pair)
    }


def _good_with_most(ledger: Ledger, node: str, without: set[str]) -> bool:
    others = [slow for other, slow in ledger.partners[node].items() if other not in without]
    good = len(others) - sum(others)
    return good >= _MIN_GOOD_OF_NODES and 2 * good > len(others)
