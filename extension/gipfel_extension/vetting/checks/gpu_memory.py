"""Memory of a GPU that is in use before the run."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..gpus.reading import GpuReading
from ..model import Finding, Scope
from ..quantities import Quantity, shown
from .gpus import failed, for_each, passed, unsaid


class GpuMemory(Frozen):
    """Share of a GPU's memory that is in use.

    Parameters
    ----------
    most_used
        Largest share of the memory; what the driver reserves for itself isn't counted.
    """

    type: ClassVar[str] = "gpu_memory"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    most_used: Annotated[Quantity, Field(ge=0, le=1)] = 0.05

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        if gpu.memory_used is None or not gpu.memory_total:
            return unsaid("how much memory is in use")
        share = gpu.memory_used / gpu.memory_total
        text = f"{shown(gpu.memory_used, 'B')} of {shown(gpu.memory_total, 'B')} are in use"
        if share > self.most_used:
            fix = "End what holds the memory (restart kernels of this job), or take another node."
            return failed(f"{text}, more than {self.most_used:.0%}.", fix, share)
        return passed(f"{text}.", share)
