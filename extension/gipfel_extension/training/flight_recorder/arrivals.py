"""Ranks that reach most collectives late; the clocks of nodes are assumed to be synchronized."""

from collections.abc import Mapping
from statistics import median

from .report import RankLocation, Straggler
from .wait_for import Job

_LATE_MS = 5.0
_MIN_COLLECTIVES = 3


def find_stragglers(job: Job, locations: Mapping[int, RankLocation]) -> tuple[Straggler, ...]:
    """Return the ranks whose median delay behind the first is above 5 ms in 3 or more collectives."""
    behind: dict[int, list[float]] = {}
    for logs in job.logs.values():
        arrivals: dict[int, dict[int, int]] = {}
        for rank, log in logs.items():
            for number, call in log.calls.items():
                if call.created_ns is not None:
                    arrivals.setdefault(number, {})[rank] = call.created_ns
        for times in arrivals.values():
            if len(times) > 1:
                first = min(times.values())
                for rank, at in times.items():
                    behind.setdefault(rank, []).append((at - first) / 1e6)
    found = [
        Straggler(
            location=locations.get(rank) or RankLocation(rank=rank),
            behind_ms=median(each),
            collectives=len(each),
        )
        for rank, each in behind.items()
        if len(each) >= _MIN_COLLECTIVES and median(each) > _LATE_MS
    ]
    return tuple(sorted(found, key=lambda each: -each.behind_ms))
