"""How often to write a checkpoint: Young's interval (1974) and Daly's correction (2006)."""

import math
from dataclasses import dataclass

import numpy as np

from ..telemetry.sample import SampleTable
from .host_signs import bursts_of
from .settings import Thresholds


def young(write_seconds: float, failure_seconds: float) -> float:
    """Seconds of work between two checkpoints by Young, doi:10.1145/361147.361115: sqrt(2 d M)."""
    return math.sqrt(2.0 * write_seconds * failure_seconds)


def daly(write_seconds: float, failure_seconds: float) -> float:
    """Seconds of work between two checkpoints by Daly, doi:10.1016/j.future.2004.11.016, equation 37."""
    if write_seconds >= 2.0 * failure_seconds:
        return failure_seconds
    x = write_seconds / (2.0 * failure_seconds)
    return young(write_seconds, failure_seconds) * (1.0 + math.sqrt(x) / 3.0 + x / 9.0) - write_seconds


@dataclass(frozen=True)
class Writes:
    """Write bursts of a run's hosts, taken together.

    Parameters
    ----------
    starts_ns, ends_ns
        UTC times of the first and the last sample of each burst.
    host
        UUID of the host that wrote most of them.
    interval
        Seconds between samples.
    """

    starts_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    host: str
    interval: float

    @property
    def seconds(self) -> float:
        """Median time of a burst; a sample covers the interval before it."""
        spans = [end - start for start, end in zip(self.starts_ns, self.ends_ns, strict=True)]
        return float(np.median(spans)) / 1e9 + self.interval

    @property
    def distance(self) -> float | None:
        """Median seconds from one burst's begin to the next one's; None where there is one burst."""
        return float(np.median(np.diff(self.starts_ns))) / 1e9 if len(self.starts_ns) > 1 else None


def writes_of(table: SampleTable, thresholds: Thresholds, interval: float) -> Writes | None:
    """The write bursts of a table; None where there are none.

    Samples of bursts that are no more than two intervals apart belong to one burst.
    """
    found = {
        host.uuid: table.of(host.uuid)["time_ns"][bursts_of(table.of(host.uuid), thresholds)]
        for host in table.hosts
    }
    times = np.unique(np.concatenate([np.zeros(0, np.int64), *found.values()]))
    if not len(times):
        return None
    cuts = np.flatnonzero(np.diff(times) > 2.5e9 * interval) + 1
    bursts = np.split(times, cuts)
    return Writes(
        tuple(int(burst[0]) for burst in bursts),
        tuple(int(burst[-1]) for burst in bursts),
        max(found, key=lambda host: len(found[host])),
        interval,
    )
