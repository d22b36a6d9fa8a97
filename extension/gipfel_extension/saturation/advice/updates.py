"""The optimizer: phases that only move memory, in a job that otherwise multiplies matrices."""

import numpy as np

from ..levels import Flags
from ..result import Trace
from ..workload import TRAINING
from .model import Advice, Case, Knob, less_time, share


class FusedOptimizer:
    """Memory-bound phases between tensor work: reads and writes every parameter several times."""

    name = "fused-optimizer"
    knob = Knob("torch.optim.AdamW(…, fused=True)", "https://docs.pytorch.org/docs/stable/optim.html")
    applies = TRAINING

    def find(self, case: Case) -> Advice | None:
        """The advice where such phases take from a tenth to half of the time."""
        trace = max(case.scored, key=lambda each: share(each, self._where(case, each)))
        where = self._where(case, trace)
        taken = share(trace, where)
        evidence = case.evidence(trace, where, ("DRAM_ACTIVE", "PIPE_TENSOR_ACTIVE"))
        if not 0.1 <= taken <= 0.5 or evidence is None:
            return None
        sentence = (
            f"For {100 * taken:.0f} % of the time {case.name(trace.device)} only moved memory between phases "
            "of matrix work."
        )
        action = (
            "If that is the optimizer, use its fused form: utilization won't change, the step's time will."
        )
        return Advice(
            self.name,
            sentence,
            action,
            0.0,
            less_time(taken),
            self.knob,
            (evidence,),
            self.applies.text,
            saved=taken,
        )

    def _where(self, case: Case, trace: Trace) -> Flags:
        tensor = case.column(trace, "PIPE_TENSOR_ACTIVE")
        with np.errstate(invalid="ignore"):
            works = tensor[trace.scored] >= 0.2
            if works.mean() < 0.2:
                return np.zeros(len(tensor), np.bool_)
            return (case.column(trace, "DRAM_ACTIVE") >= 0.5) & (tensor < 0.05)
