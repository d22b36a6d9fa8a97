"""A node far below all others, however much these vary: on a busy machine nobody else can be cleared."""

from collections.abc import Sequence

from .state import PairMeasurement

#: With fewer pairs that the node is not in, their order may be chance.
_LEAST_OTHERS = 3
_LEAST_PARTNERS = 3
#: In fewer rounds each of its pairs may have been congested.
_LEAST_ROUNDS = 5


def below_all(measurements: Sequence[PairMeasurement], bad_below: float) -> frozenset[str]:
    """The node whose best sample, with whomever, is `bad_below` below the worst of all pairs without it.

    The other pairs must overlap, each with each: then samples vary by themselves and not from pair to pair,
    and it can't be chance that those of one node are all the lowest.

    Returns
    -------
    One node, or none.
    """
    measured = [each for each in measurements if each.samples]
    if not measured:
        return frozenset()
    lowest = min(measured, key=lambda each: min(each.samples))
    for node in (lowest.first, lowest.second):
        own = [each for each in measured if node in {each.first, each.second}]
        others = [each for each in measured if node not in {each.first, each.second}]
        partners = {name for each in own for name in (each.first, each.second)} - {node}
        few = len(partners) < _LEAST_PARTNERS or len(own) < _LEAST_ROUNDS
        if few or len(others) < _LEAST_OTHERS:
            continue
        best = max(max(each.samples) for each in own)
        floor = min(min(each.samples) for each in others)
        overlap = max(min(each.samples) for each in others) <= min(max(each.samples) for each in others)
        if overlap and best < (1.0 - bad_below) * floor:
            return frozenset({node})
    return frozenset()
