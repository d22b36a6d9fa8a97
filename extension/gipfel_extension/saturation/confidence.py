"""How far a score can be trusted, from 0 to 1: how many samples, how much of them was missing."""

import math


def confidence(samples: int, expected: int, completeness: float) -> float:
    """Coverage x completeness x certainty.

    Parameters
    ----------
    samples, expected
        Samples that were scored, and that the window would hold at its interval.
    completeness
        Share of the expected metrics that the scored samples hold.
    """
    if samples <= 0:
        return 0.0
    coverage = min(1.0, samples / max(1, expected))
    # The standard error of a mean falls with the root of the number of samples.
    certainty = 1.0 - 1.0 / math.sqrt(samples + 1)
    return coverage * completeness * certainty
