"""Checkpoints: how often, and who waits for them.

How often to write a checkpoint: Young's interval (1974) and Daly's correction (2006).
"""

import math
from dataclasses import dataclass

import numpy as np

from ...telemetry.sample import SampleTable
from ..ceilings import HOST_LINKS, ceilings_of
from ..host_signs import WRITES, bursts_of
from ..levels import column
from ..result import Trace
from ..settings import Thresholds
from .losses import RUNNING, LossRule
from .model import TRAINING, Advice, Case, Evidence, Knob, points


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


class CheckpointInterval:
    """Bursts of writing come much more often, or much more rarely, than Young and Daly advise."""

    name = "checkpoint-interval"
    knob = Knob("checkpoint interval", "https://doi.org/10.1016/j.future.2004.11.016")
    applies = TRAINING

    def find(self, case: Case) -> Advice | None:
        """The advice where the measured distance is less than half or more than twice Daly's interval."""
        writes = writes_of(case.table, case.settings.thresholds, case.job.interval)
        if writes is None or writes.distance is None:
            return None
        failure = 3600.0 * case.settings.gpu_hours_per_failure / max(1, len(case.job.gpus))
        best = daly(writes.seconds, failure)
        if 0.5 <= writes.distance / (best + writes.seconds) <= 2.0:
            return None
        gain = case.loss("checkpoint") * max(0.0, 1.0 - writes.distance / (best + writes.seconds))
        sentence = (
            f"{len(writes.starts_ns)} checkpoints of {writes.seconds:.0f} s each came every "
            f"{_span(writes.distance)}."
        )
        action = (
            f"With a failure every {_span(failure)} on {len(case.job.gpus)} GPUs, Daly advises "
            f"{_span(best)}; your time limit may ask for less."
        )
        expect = points(gain) if gain else "less work lost with a failure"
        shown, text = (_shown(case, writes),), self.applies.text
        return Advice(self.name, sentence, action, gain, expect, self.knob, shown, text)


class AsynchronousCheckpoint(LossRule):
    """GPUs stand still while a checkpoint is written."""

    name = "asynchronous-checkpoint"
    knob = Knob(
        "torch.distributed.checkpoint.async_save",
        "https://docs.pytorch.org/docs/stable/distributed.checkpoint.html",
    )
    loss = "checkpoint"
    least = 2.0
    metrics = RUNNING
    host_metrics = WRITES
    applies = TRAINING

    def gain_least(self, case: Case, trace: Trace) -> float:
        """Return what is left after a copy of the GPU's used memory to the host over PCIe or C2C."""
        writes = writes_of(case.table, case.settings.thresholds, case.job.interval)
        links = ceilings_of(trace.device.name).links
        rate = max((links[link] for link in HOST_LINKS if link in links), default=0.0)
        used = case.column(trace, "FB_USED")[trace.scored]
        used = used[np.isfinite(used)]
        if writes is None or not rate or not len(used):
            return 0.0
        copied = float(used.max()) / rate
        return case.loss(self.loss) * max(0.0, 1.0 - copied / writes.seconds)

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time."""
        return (
            (
                f"{self.subject(case)} waited {self.lost(trace):.0f} % of the time "
                "while a checkpoint was written."
            ),
            "Write it while the next step runs.",
        )


def _shown(case: Case, writes: Writes) -> Evidence:
    first_ns, last_ns = writes.starts_ns[0] - int(writes.interval * 1e9), writes.ends_ns[-1]
    columns = case.table.of(writes.host)
    inside = (columns["time_ns"] >= first_ns) & (columns["time_ns"] <= last_ns)
    there = tuple(metric for metric in WRITES if np.isfinite(column(columns, metric)[inside]).any())
    return Evidence(writes.host, there, first_ns, last_ns)


def _span(seconds: float) -> str:
    for length, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
