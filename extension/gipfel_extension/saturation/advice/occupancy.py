"""Low occupancy: SMs hold few warps, so pipes and memory both wait."""

import numpy as np

from ..levels import Flags
from ..result import Trace
from ..workload import TRAINING
from .losses import LossRule
from .model import Case, Knob

_METRICS = ("SM_ACTIVE", "SM_OCCUPANCY", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "FB_USED")


class _Occupancy(LossRule):
    loss = "occupancy"
    least = 15.0
    metrics = _METRICS

    def where(self, case: Case, trace: Trace) -> Flags:
        """The loss is there, and SM activity is measured and high: without it launch may be the cause."""
        with np.errstate(invalid="ignore"):
            return super().where(case, trace) & (trace.levels.active >= 0.5)

    def filled(self, case: Case, trace: Trace) -> float | None:
        """Share of the GPU's memory in use at most."""
        with np.errstate(invalid="ignore", divide="ignore"):
            filled = (case.column(trace, "FB_USED") / case.column(trace, "FB_TOTAL"))[trace.scored]
        known = filled[np.isfinite(filled)]
        return float(known.max()) if len(known) else None

    def sentence(self, case: Case, trace: Trace) -> str:
        """Percent of the time, and how full memory is."""
        filled = 100 * (self.filled(case, trace) or 0.0)
        return (
            f"{self.subject(case)} ran kernels with few warps, which kept neither pipes nor memory busy, "
            f"{self.lost(trace):.0f} % of the time, with {filled:.0f} % of memory in use."
        )


class BatchSize(_Occupancy):
    """There is memory left: larger batches."""

    name = "batch-size"
    knob = Knob(
        "batch size", "https://docs.pytorch.org/docs/stable/data.html#loading-batched-and-non-batched-data"
    )

    def gain(self, case: Case, trace: Trace) -> float:
        """Nothing where memory is full, or nobody knows."""
        filled = self.filled(case, trace)
        return super().gain(case, trace) if filled is not None and filled < 0.6 else 0.0

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time, and how full memory is."""
        return (
            self.sentence(case, trace),
            "Try a larger batch.",
        )


class ActivationCheckpointing(_Occupancy):
    """Memory is full: make room for larger batches."""

    applies = TRAINING

    name = "activation-checkpointing"
    knob = Knob("torch.utils.checkpoint", "https://docs.pytorch.org/docs/stable/checkpoint.html")

    def gain(self, case: Case, trace: Trace) -> float:
        """Nothing where memory has room, or nobody knows."""
        filled = self.filled(case, trace)
        return super().gain(case, trace) if filled is not None and filled >= 0.9 else 0.0

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time, and how full memory is."""
        return (
            self.sentence(case, trace),
            "Checkpoint activations to make room for a larger batch; it computes some of them twice.",
        )
