"""Launch-bound: the engine is on, and the SMs have no work between tiny kernels."""

import numpy as np

from ..levels import Flags
from ..result import Trace
from .losses import LossRule
from .model import Case, Knob, share

#: SM activity above which kernels fill the GPU, whatever is lost between them.
_FILLED = 0.6


class _Launch(LossRule):
    loss = "launch"
    least = 10.0
    _action: str

    def where(self, case: Case, trace: Trace) -> Flags:
        """The loss is there, and kernels leave most SMs empty."""
        with np.errstate(invalid="ignore"):
            return super().where(case, trace) & (trace.levels.active <= _FILLED)

    def gain(self, case: Case, trace: Trace) -> float:
        """Return what is lost where kernels leave SMs empty, for at least a tenth of the time."""
        where = self.where(case, trace)
        return self.lost_where(trace, where) if share(trace, where) >= 0.1 else 0.0

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time, beside the SMs' activity."""
        active = self.mean(case, trace, "SM_ACTIVE")
        beside = f" (SMs {100 * active:.0f} % active)" if active is not None else ""
        waited = f"{self.lost(trace):.0f} % of the time waiting between small kernels{beside}"
        return f"{self.subject(case)} spent {waited}.", self._action


class Compile(_Launch):
    """Some time goes between kernels: fuse them."""

    name = "compile"
    knob = Knob("torch.compile", "https://docs.pytorch.org/docs/stable/generated/torch.compile.html")
    _action = "Compile the model, so that fewer and larger kernels run."


class CudaGraphs(_Launch):
    """Much time goes between kernels: launch them as one graph."""

    name = "cuda-graphs"
    knob = Knob(
        'torch.compile(mode="reduce-overhead")',
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs",
    )
    least = 20.0
    _action = "Record the step as a CUDA graph, so that it costs one launch."

    def gain_least(self, case: Case, trace: Trace) -> float:  # noqa: ARG002 - as the others
        """The time in which nothing ran between kernels: a graph leaves no such gaps."""
        gaps = np.minimum(trace.losses[self.loss], 1.0 - np.fmin(1.0, trace.levels.engine))
        seconds = trace.seconds[trace.scored]
        return 100.0 * float(np.nan_to_num(gaps[trace.scored]) @ seconds / seconds.sum())
