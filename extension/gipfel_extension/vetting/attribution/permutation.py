"""A permutation test of slow readings: the chance that as many fall on one node."""

import math


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
