"""Launch-bound: the engine is on, and the SMs have no work between tiny kernels."""

from ..result import Trace
from .losses import LossRule
from .model import Case, Knob


class _Launch(LossRule):
    loss = "launch"
    _action: str

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time, beside the SMs' activity."""
        active = self.mean(case, trace, "SM_ACTIVE")
        beside = f", {100 * active:.0f} % of its SMs with work meanwhile" if active is not None else ""
        name, lost = case.name(trace.device), self.lost(trace)
        return f"{name} lost {lost:.0f} % of its time between small kernels{beside}.", self._action


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
