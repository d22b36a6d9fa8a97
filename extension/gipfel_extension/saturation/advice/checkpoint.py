"""Checkpoints: how often, and who waits for them."""

import numpy as np

from ..ceilings import HOST_LINKS, ceilings_of
from ..checkpoint_interval import Writes, daly, writes_of
from ..host_signs import WRITES
from ..levels import column
from ..result import Trace
from ..workload import TRAINING
from .losses import RUNNING, LossRule
from .model import Advice, Case, Evidence, Knob, points


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
