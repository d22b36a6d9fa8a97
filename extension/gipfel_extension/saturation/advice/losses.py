"""The common shape of most rules: one loss is large, and samples show where.

GPUs that were asked for and never used.

Losses that no rule has a remedy for: said as they are, with what would show more.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

import numpy as np

from ..host_signs import host_of
from ..levels import Flags
from ..result import Trace
from ..settings import LOSSES
from .model import ANY, Advice, Applies, Case, Evidence, Knob, points, seen

#: What shows whether anything ran: drawn beside every loss of time.
RUNNING = ("GPU_UTIL", "GR_ENGINE_ACTIVE", "SM_ACTIVE")


class LossRule(ABC):
    """A rule about the GPUs that lost most by one cause.

    ``least`` is in points of the job; ``metrics`` and ``host_metrics`` are the evidence's series.
    """

    name: str
    knob: Knob
    loss: ClassVar[str]
    applies: Applies = ANY
    least: ClassVar[float] = 5.0
    metrics: ClassVar[tuple[str, ...]] = RUNNING
    host_metrics: ClassVar[tuple[str, ...]] = ()

    def find(self, case: Case) -> Advice | None:
        """The advice, None where the loss is small or can't be shown."""
        if case.loss(self.loss) < self.least:
            return None
        trace = case.worst(self.loss)
        gain = min(self.gain(case, trace), case.loss(self.loss))
        least = min(gain, self.gain_least(case, trace))
        evidence = case.evidence(trace, self.where(case, trace), self.metrics)
        if evidence is None or gain <= 0:
            return None
        shown = [evidence, self._host(case, trace, evidence)]
        sentence, action = self.words(case, trace)
        return Advice(
            self.name,
            sentence,
            action,
            gain,
            points(gain, least),
            self.knob,
            tuple(each for each in shown if each is not None),
            self.applies.text,
            least,
        )

    def where(self, case: Case, trace: Trace) -> Flags:  # noqa: ARG002 - for those that look further
        """In which samples it is to be seen."""
        return seen(trace.losses[self.loss])

    def gain(self, case: Case, trace: Trace) -> float:  # noqa: ARG002 - for those that gain less
        """Points that can be had back at most."""
        return case.loss(self.loss)

    def gain_least(self, case: Case, trace: Trace) -> float:  # noqa: ARG002 - for those that can compute it
        """Points that can be had back at least; 0 where the samples don't tell."""
        return 0.0

    def subject(self, case: Case) -> str:
        """The GPUs that lost most by this cause, as a sentence begins."""
        return case.names(case.alike(self.loss))

    @abstractmethod
    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """What was seen, and what to do."""

    def lost(self, trace: Trace) -> float:
        """Percent of its time that the GPU lost."""
        seconds = trace.seconds[trace.scored]
        return 100.0 * float(trace.losses[self.loss][trace.scored] @ seconds / seconds.sum())

    def lost_where(self, trace: Trace, where: Flags) -> float:
        """Percent of its time that the GPU lost in some samples."""
        seconds = trace.seconds[trace.scored]
        lost = np.where(where, trace.losses[self.loss], 0.0)[trace.scored]
        return 100.0 * float(lost @ seconds / seconds.sum())

    def mean(self, case: Case, trace: Trace, metric: str) -> float | None:
        """A GPU's metric where the loss is to be seen."""
        values = case.column(trace, metric)[self.where(case, trace) & trace.scored]
        known = values[np.isfinite(values)]
        return float(known.mean()) if len(known) else None

    def _host(self, case: Case, trace: Trace, evidence: Evidence) -> Evidence | None:
        host = host_of(case.table, trace.device) if self.host_metrics else None
        return case.host_evidence(host, evidence, self.host_metrics) if host else None


class UnusedGpu:
    """Some GPUs of the job never worked, while others did."""

    name = "unused-gpu"
    knob = Knob("--gpus-per-node", "https://slurm.schedmd.com/gres.html")
    applies = ANY

    def find(self, case: Case) -> Advice | None:
        """The advice, None where all GPUs worked or none."""
        least = case.settings.thresholds.works
        unused = [t for t in case.scored if not (seen(1.0 - t.losses["idle"], least) & t.scored).any()]
        if not unused or len(unused) == len(case.scored):
            return None
        shown = [case.evidence(trace, trace.scored, RUNNING) for trace in unused]
        names = [case.name(trace.device) for trace in unused]
        listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        gain = 100.0 * len(unused) / len(case.scored)
        return Advice(
            self.name,
            f"{listed} never worked.",
            "Ask for fewer GPUs, or start a rank on each.",
            gain,
            points(gain),
            self.knob,
            tuple(evidence for evidence in shown if evidence is not None),
        )


#: Points from which a loss is worth a sentence.
_LEAST = 5.0

_SYSTEMS = Knob("Nsight Systems", "https://docs.nvidia.com/nsight-systems/UserGuide/index.html")
_COMPUTE = Knob("Nsight Compute", "https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html")

#: Loss to what was seen, what to do, and the tool for it.
_TEXTS: Mapping[str, tuple[str, str, Knob]] = {
    "unexplained": (
        "No recorded series shows why {who} lost {lost:.0f} % of the time",
        "Profile a few steps to see which kernels run and what they wait for.",
        _COMPUTE,
    ),
    "start_up": (
        "{lost:.0f} % of the time passed before the first work on {who}",
        "In longer runs it weighs less. Caches of compiled kernels and of images make it shorter.",
        _SYSTEMS,
    ),
    "idle": (
        "{who} had nothing to do {lost:.0f} % of the time, and their hosts neither",
        "End the job when its work is done, or share the GPU.",
        _SYSTEMS,
    ),
}
_OTHER = (
    "{who} lost {lost:.0f} % of the time to {loss}",
    "No safe remedy is known from these samples: profile a few steps.",
    _SYSTEMS,
)


def untreated(case: Case, told: Collection[str]) -> Iterator[Advice]:
    """Yield a sentence for each loss of five points or more that is not in ``told``."""
    for loss in LOSSES:
        if loss in told or case.loss(loss) < _LEAST:
            continue
        trace = case.worst(loss)
        evidence = case.evidence(
            trace, seen(trace.losses[loss]), (*RUNNING, "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE")
        )
        if evidence is not None:
            text, action, knob = _TEXTS.get(loss, _OTHER)
            who = case.names(case.alike(loss))
            if not text.startswith("{who}"):
                who = who.replace("All GPUs", "all GPUs")
            sentence = text.format(who=who, lost=case.loss(loss), loss=loss.replace("_", "-"))
            yield Advice(
                f"untreated-{loss}", f"{sentence}.", action, 0.0, "no gain is known", knob, (evidence,)
            )
