"""Matrix products: how fast, and whether their values are right."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..model import Finding, Scope
from ..quantities import Quantity
from .devices import device_of, measure
from .under_load import LoadWatch

#: Beside a square, a shape with which an H100 was found to be fastest (MAMF table of stas00/ml-engineering).
_FAST = (6144, 17920, 2816)


class Matmul(Frozen):
    """Rate of bf16 products on each GPU, or of single precision on the CPU; wrong values fail at any rate.

    Parameters
    ----------
    size
        Edge of the square product; None takes 8192 on a GPU and 1024 on a CPU.
    seconds
        Per sample, at most.
    heat
        Seconds for which all GPUs compute together before they are measured, with their clocks watched.
    """

    type: ClassVar[str] = "matmul"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 120.0
    uses_torch: ClassVar[bool] = True

    device: Literal["auto", "cuda", "cpu"] = "auto"
    size: Annotated[int, Field(ge=64, le=16_384)] | None = None
    samples: Annotated[int, Field(ge=5, le=200)] = 7
    seconds: Annotated[float, Field(gt=0, le=60)] = 0.1
    heat: Annotated[Quantity, Field(ge=0, le=3600)] = 0.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU, or one for the node."""
        device = device_of(context, self.device)
        size = self.size or (8192 if device == "cuda" else 1024)
        shapes = [[size] * 3, list(_FAST)] if device == "cuda" and self.size is None else [[size] * 3]
        request = {"device": device, "shapes": shapes, "samples": self.samples, "seconds": self.seconds}
        if device != "cuda" or not self.heat:
            return measure(context, "matmul", request)  # type: ignore[arg-type]
        with LoadWatch(context) as watch:
            found = measure(context, "matmul", {**request, "heat": self.heat})  # type: ignore[dict-item]
        return watch.judged(found)
