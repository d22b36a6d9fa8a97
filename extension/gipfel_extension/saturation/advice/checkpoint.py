"""Checkpoints: how often, and who waits for them."""

from ..checkpoint_interval import Writes, daly, writes_of
from ..result import Trace
from .losses import RUNNING, LossRule
from .model import Advice, Case, Evidence, Knob, points


class CheckpointInterval:
    """Bursts of writing come much more often, or much more rarely, than Young and Daly advise."""

    name = "checkpoint-interval"
    knob = Knob("checkpoint interval", "https://doi.org/10.1016/j.future.2004.11.016")

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
        return Advice(self.name, sentence, action, gain, expect, self.knob, (_shown(writes),))


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
    host_metrics = ("IO_WRITE_BYTES",)

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time."""
        return (
            (
                f"{case.name(trace.device)} stood still {self.lost(trace):.0f} % of the time "
                "while a checkpoint was written."
            ),
            "Write it while the next step runs.",
        )


def _shown(writes: Writes) -> Evidence:
    first_ns = writes.starts_ns[0] - int(writes.interval * 1e9)
    return Evidence(writes.host, ("IO_WRITE_BYTES",), first_ns, writes.ends_ns[-1])


def _span(seconds: float) -> str:
    for length, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
