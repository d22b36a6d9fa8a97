"""Confidence intervals of shares."""

import math


def wilson(count: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Return the confidence interval of a share by Wilson (1927, doi:10.1080/01621459.1927.10502953).

    It is (0, 1) for a count of nothing.
    """
    if not of:
        return 0.0, 1.0
    share, spread = count / of, z * z / of
    middle = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))
