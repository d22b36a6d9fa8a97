"""The common shape of most rules: one loss is large, and samples show where."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from ..host_signs import host_of
from ..levels import Flags
from ..result import Trace
from ..workload import ANY, Applies
from .model import Advice, Case, Evidence, Knob, points, seen

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
