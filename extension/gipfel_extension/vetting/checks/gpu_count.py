"""How many GPUs there are, and which model."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext
from ..model import Finding, Scope
from .gpus import failed, passed, readings


class GpuCount(Frozen):
    """As many GPUs as the job was given, all of one model.

    Parameters
    ----------
    count
        How many a node must have; None takes what the job asked for.
    model
        Words that the model's name must hold; empty for any one model.
    """

    type: ClassVar[str] = "gpu_count"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 30.0

    count: Annotated[int, Field(ge=1)] | None = None
    model: Line = ""

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        gpus = readings(context)
        wanted = self.count if self.count is not None else context.expected_gpus
        models = sorted({gpu.name for gpu in gpus})
        found = f"{len(gpus)} x {', '.join(models)}"
        if wanted is not None and len(gpus) != wanted:
            fix = "A GPU may have fallen off the bus: take another node, and tell the operators."
            return [failed(f"NVML shows {len(gpus)} of {wanted} GPUs.", fix, float(len(gpus)))]
        if wanted is None and context.expected_gpus is None:
            return [failed("Nobody says how many GPUs there must be.", "Give 'count' in the protocol.")]
        if len(models) > 1:
            return [failed(f"The GPUs differ: {', '.join(models)}.", "Take nodes of one kind.")]
        if self.model and not all(word in models[0].upper() for word in self.model.upper().split()):
            return [failed(f"The GPUs are {models[0]}, not {self.model}.", "Take other nodes.")]
        return [passed(f"{found}.", float(len(gpus)))]
