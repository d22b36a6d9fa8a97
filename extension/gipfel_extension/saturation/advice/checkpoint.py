"""Rules about checkpoints: their interval by Young (1974) and Daly (2006), and GPUs that wait for them."""

import math
from dataclasses import dataclass

import numpy as np

from ...telemetry.sample import SampleTable
from ..host import WRITES, write_bursts
from ..result import Trace
from ..settings import HOST_LINKS, Thresholds, ceilings_of
from .losses import RUNNING, LossRule
from .model import TRAINING, Advice, AdviceContext, Knob, gain_in_points


def young(write_seconds: float, failure_seconds: float) -> float:
    """Return the best seconds of work between two checkpoints according to Young: sqrt(2 d M).

    d are the seconds that writing takes, M those between failures. Source: doi:10.1145/361147.361115.
    """
    return math.sqrt(2.0 * write_seconds * failure_seconds)


def daly(write_seconds: float, failure_seconds: float) -> float:
    """Return the best seconds of work between two checkpoints according to Daly, who refined `young`.

    Source: equation 37 of doi:10.1016/j.future.2004.11.016.
    """
    if write_seconds >= 2.0 * failure_seconds:
        return failure_seconds
    x = write_seconds / (2.0 * failure_seconds)
    return young(write_seconds, failure_seconds) * (1.0 + math.sqrt(x) / 3.0 + x / 9.0) - write_seconds


@dataclass(frozen=True)
class WriteBursts:
    """Write bursts of all hosts of a run: times in which a host writes far more than usual.

    Parameters
    ----------
    starts_ns, ends_ns
        UTC times of the first and the last sample of each burst.
    host
        UUID of the host that wrote most in the bursts.
    interval
        Seconds between samples.
    """

    starts_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    host: str
    interval: float

    @property
    def seconds(self) -> float:
        """Median duration of a burst; a sample covers the interval before it."""
        spans = [end - start for start, end in zip(self.starts_ns, self.ends_ns, strict=True)]
        return float(np.median(spans)) / 1e9 + self.interval

    @property
    def distance(self) -> float | None:
        """Median seconds from the start of one burst to that of the next; None for a single burst."""
        return float(np.median(np.diff(self.starts_ns))) / 1e9 if len(self.starts_ns) > 1 else None


def write_bursts_of(table: SampleTable, thresholds: Thresholds, interval: float) -> WriteBursts | None:
    """Return the write bursts of a table; None where there are none.

    Samples of bursts that are no more than two intervals apart belong to one burst.
    """
    times_by_host = {
        host.uuid: table[host.uuid]["time_ns"][write_bursts(table[host.uuid], thresholds)]
        for host in table.hosts
    }
    times = np.unique(np.concatenate([np.zeros(0, np.int64), *times_by_host.values()]))
    if not len(times):
        return None
    cuts = np.flatnonzero(np.diff(times) > 2.5e9 * interval) + 1
    bursts = np.split(times, cuts)
    return WriteBursts(
        tuple(int(burst[0]) for burst in bursts),
        tuple(int(burst[-1]) for burst in bursts),
        max(times_by_host, key=lambda host: len(times_by_host[host])),
        interval,
    )


class CheckpointInterval:
    """Rule: write bursts are much more or much less frequent than Young and Daly advise."""

    name = "checkpoint-interval"
    knob = Knob("checkpoint interval", "https://doi.org/10.1016/j.future.2004.11.016")
    applies = TRAINING

    def find(self, context: AdviceContext) -> Advice | None:
        """Return the advice if bursts come twice as often as Daly advises, or half as often; else None."""
        writes = write_bursts_of(context.table, context.settings.thresholds, context.job.interval)
        if writes is None or writes.distance is None:
            return None
        first_ns = writes.starts_ns[0] - int(writes.interval * 1e9)
        evidence = context.host_evidence(writes.host, first_ns, writes.ends_ns[-1], WRITES)
        if evidence is None:
            return None
        failure = 3600.0 * context.settings.gpu_hours_per_failure / max(1, len(context.job.gpus))
        best = daly(writes.seconds, failure)
        if 0.5 <= writes.distance / (best + writes.seconds) <= 2.0:
            return None
        gain = context.loss("checkpoint") * max(0.0, 1.0 - writes.distance / (best + writes.seconds))
        return Advice(
            self.name,
            f"{len(writes.starts_ns)} checkpoints of {writes.seconds:.0f} s each came every "
            f"{_span(writes.distance)}.",
            f"With a failure every {_span(failure)} on {len(context.job.gpus)} GPUs, Daly advises "
            f"{_span(best)}; your time limit may require a shorter one.",
            gain,
            gain_in_points(gain) if gain else "less work lost in a failure",
            self.knob,
            (evidence,),
            self.applies.text,
            loss="checkpoint" if gain else "",
        )


class AsynchronousCheckpoint(LossRule):
    """Rule: GPUs are idle while a checkpoint is written."""

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

    def gain_least(self, context: AdviceContext, trace: Trace) -> float:
        """Return the gain if GPUs waited only while their used memory is copied to the host (PCIe or C2C)."""
        writes = write_bursts_of(context.table, context.settings.thresholds, context.job.interval)
        links = ceilings_of(trace.device.name).links
        rate = max((links[link] for link in HOST_LINKS if link in links), default=0.0)
        used = context.column(trace, "FB_USED")[trace.scored]
        used = used[np.isfinite(used)]
        if writes is None or not rate or not len(used):
            return 0.0
        copied = float(used.max()) / rate
        return context.loss(self.loss) * max(0.0, 1.0 - copied / writes.seconds)

    def texts(self, context: AdviceContext, trace: Trace) -> tuple[str, str]:
        """Return the percentage of the time, and what to do."""
        return (
            (
                f"{self.affected_gpus(context)} waited {self.percent_lost(trace):.0f} % of the time "
                "while a checkpoint was written."
            ),
            "Write checkpoints asynchronously, while the next step runs.",
        )


def _span(seconds: float) -> str:
    for length, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
