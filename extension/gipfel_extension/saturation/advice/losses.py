"""Rules about losses: the base class of most rules, unused GPUs, and losses without a known remedy."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from ..host import host_of
from ..levels import Flags, known_mean
from ..result import Trace
from ..settings import LOSSES
from .model import ANY, Advice, AdviceContext, Applicability, Knob, at_least, gain_in_points, uuids_of

#: Metrics that show whether anything ran: evidence of every loss of time.
RUNNING = ("GPU_UTIL", "GR_ENGINE_ACTIVE", "SM_ACTIVE")


class LossRule(ABC):
    """Rule about the GPUs that lost most to one cause; base class of most rules.

    ``loss`` is the cause, a key of the job's losses. Below ``least`` points of the job's loss there is no
    advice. ``metrics`` of the GPU and ``host_metrics`` of its host are shown as evidence.
    """

    name: str
    knob: Knob
    loss: ClassVar[str]
    applies: Applicability = ANY
    least: ClassVar[float] = 5.0
    metrics: ClassVar[tuple[str, ...]] = RUNNING
    host_metrics: ClassVar[tuple[str, ...]] = ()

    def find(self, context: AdviceContext) -> Advice | None:
        """Return the advice; None where the loss is small or the samples don't show it."""
        if context.loss(self.loss) < self.least:
            return None
        trace = context.worst(self.loss)
        gain = min(self.gain(context, trace), context.loss(self.loss))
        least = min(gain, self.gain_least(context, trace))
        evidence = context.evidence(trace, self.where(context, trace), self.metrics)
        if evidence is None or gain <= 0:
            return None
        host = host_of(context.table, trace.device) if self.host_metrics else None
        of_host = (
            context.host_evidence(host.uuid, evidence.start_ns, evidence.end_ns, self.host_metrics)
            if host
            else None
        )
        sentence, action = self.texts(context, trace)
        return Advice(
            self.name,
            sentence,
            action,
            gain,
            gain_in_points(gain, least),
            self.knob,
            (evidence, of_host) if of_host else (evidence,),
            self.applies.text,
            least,
            loss=self.loss,
            gpus=uuids_of(self.named_gpus(context)),
        )

    def named_gpus(self, context: AdviceContext) -> Sequence[Trace]:
        """Return the GPUs that the sentence names: those that lost most to this cause."""
        return context.alike(self.loss)

    def where(self, context: AdviceContext, trace: Trace) -> Flags:  # noqa: ARG002 - subclasses use it
        """Return the samples in which the loss is present."""
        return at_least(trace.losses[self.loss])

    def gain(self, context: AdviceContext, trace: Trace) -> float:  # noqa: ARG002 - subclasses use it
        """Return the points that the score may gain at most; 0 for no advice."""
        return context.loss(self.loss)

    def gain_least(self, context: AdviceContext, trace: Trace) -> float:  # noqa: ARG002 - subclasses use it
        """Return the points that the score gains at least; 0 where unknown."""
        return 0.0

    def affected_gpus(self, context: AdviceContext) -> str:
        """Return the GPUs that lost most to this cause, as the beginning of a sentence."""
        return context.names(self.named_gpus(context))

    def inner_names(self, context: AdviceContext) -> str:
        """Return the GPUs that lost most to this cause, to follow other words of a sentence."""
        return context.names(self.named_gpus(context), inside=True)

    @abstractmethod
    def texts(self, context: AdviceContext, trace: Trace) -> tuple[str, str]:
        """Return a sentence on what was seen, and one on what to do."""

    def percent_lost(self, trace: Trace, where: Flags | None = None) -> float:
        """Return the percentage of its time that the GPU lost, in all or in some samples."""
        lost = trace.losses[self.loss]
        return 100.0 * trace.mean(lost if where is None else np.where(where, lost, 0.0))

    def mean(self, context: AdviceContext, trace: Trace, metric: str) -> float | None:
        """Return the mean of a GPU's metric over the samples with the loss; None where unknown."""
        return known_mean(context.column(trace, metric)[self.where(context, trace) & trace.scored])


class UnusedGpu:
    """Rule: some GPUs of the job never worked, while others did."""

    name = "unused-gpu"
    knob = Knob("--gpus-per-node", "https://slurm.schedmd.com/gres.html")
    applies = ANY

    def find(self, context: AdviceContext) -> Advice | None:
        """Return the advice; None where all GPUs worked or none."""
        least = context.settings.thresholds.works
        unused = [t for t in context.scored if not (at_least(1.0 - t.losses["idle"], least) & t.scored).any()]
        if not unused or len(unused) == len(context.scored):
            return None
        evidence = [context.evidence(trace, trace.scored, RUNNING) for trace in unused]
        names = [context.name(trace.device) for trace in unused]
        listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        gain = 100.0 * len(unused) / len(context.scored)
        return Advice(
            self.name,
            f"{listed} never worked.",
            "Request fewer GPUs, or start a rank on each.",
            gain,
            gain_in_points(gain),
            self.knob,
            tuple(evidence for evidence in evidence if evidence is not None),
            loss="idle",
            gpus=uuids_of(unused),
        )


#: Points, as the views show them, from which each loss has a sentence.
_MIN_POINTS = 5

_SYSTEMS = Knob("Nsight Systems", "https://docs.nvidia.com/nsight-systems/UserGuide/index.html")
_COMPUTE = Knob("Nsight Compute", "https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html")

#: Loss to a sentence on what was seen, one on what to do, and the tool for it.
_LOSS_TEXTS: Mapping[str, tuple[str, str, Knob]] = {
    "unexplained": (
        "No recorded metric shows why {who} lost {lost:.0f} % of the time",
        "No safe remedy known: profile a few steps to see which kernels run and what they wait for.",
        _COMPUTE,
    ),
    "start_up": (
        "{lost:.0f} % of the time passed before the first work on {who}",
        "Longer runs lose a smaller share. Caches of compiled kernels and of images shorten the start-up.",
        _SYSTEMS,
    ),
    "idle": (
        "{who} and the CPUs had nothing to do {lost:.0f} % of the time",
        "End the job when its work is done, or share the GPU.",
        _SYSTEMS,
    ),
}
_OTHER_LOSS = (
    "{who} lost {lost:.0f} % of the time to {loss}",
    "No safe remedy known: profile a few steps.",
    _SYSTEMS,
)


def unaddressed_losses(context: AdviceContext, covered: Collection[str]) -> Iterator[Advice]:
    """Yield advice for each loss of at least five points that is not in ``covered``."""
    points = context.job.total.integer_points if context.job.total else {}
    for loss in LOSSES:
        if loss in covered or points.get(loss, 0) < _MIN_POINTS:
            continue
        trace = context.worst(loss)
        where = at_least(trace.losses[loss]) & trace.scored
        if not where.any():
            # A loss may be small in each sample.
            where = at_least(trace.losses[loss], float(trace.losses[loss][trace.scored].mean()))
        evidence = context.evidence(trace, where, (*RUNNING, "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE"))
        if evidence is not None:
            text, action, knob = _LOSS_TEXTS.get(loss, _OTHER_LOSS)
            gpus = context.alike(loss)
            who = context.names(gpus, inside=not text.startswith("{who}"))
            sentence = text.format(who=who, lost=context.loss(loss), loss=loss.replace("_", "-"))
            yield Advice(
                f"unaddressed-{loss}",
                f"{sentence}.",
                action,
                0.0,
                "no gain is known",
                knob,
                (evidence,),
                loss=loss,
                gpus=uuids_of(gpus),
            )
