"""Where the time went, bucket by bucket: points of each resource and of each loss, together 100."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .levels import Floats
from .result import JobScore
from .settings import LOSSES, RESOURCES


@dataclass(frozen=True)
class Shares:
    """A job over time.

    Parameters
    ----------
    time_ns
        UTC at which each bucket begins.
    bucket_ns
        How long a bucket is.
    points
        Resource or loss to its points, mean over the GPUs; in a bucket they add up to 100, or are all NaN.
    """

    time_ns: NDArray[np.int64]
    bucket_ns: int
    points: Mapping[str, Floats]


def shares_of(job: JobScore, buckets: int = 240) -> Shares:
    """The shares of a scored job in at most so many buckets of equal length."""
    names = (*RESOURCES, *LOSSES)
    scored = [trace for trace in job.traces if trace.scored.any()]
    if not scored or job.first_ns is None or job.last_ns is None:
        return Shares(np.zeros(0, np.int64), 1, {name: np.zeros(0) for name in names})
    beat = max(1, int(job.interval * 1e9))
    bucket_ns = max(beat, -(-(job.last_ns - job.first_ns + beat) // buckets))
    count = (job.last_ns - job.first_ns) // bucket_ns + 1
    sums = {name: np.zeros(count) for name in names}
    weights = np.zeros(count)
    for trace in scored:
        rows = trace.scored
        place = (trace.levels.time_ns[rows] - job.first_ns) // bucket_ns
        seconds = trace.seconds[rows]
        weights += np.bincount(place, seconds, count)
        for name in RESOURCES:
            sums[name] += np.bincount(place, seconds * trace.levels.points[name][rows], count)
        for name in LOSSES:
            sums[name] += np.bincount(place, seconds * trace.losses[name][rows], count)
    with np.errstate(divide="ignore", invalid="ignore"):
        points = {
            name: np.where(weights > 0, 100.0 * values / weights, np.nan) for name, values in sums.items()
        }
    return Shares(job.first_ns + bucket_ns * np.arange(count), bucket_ns, points)
