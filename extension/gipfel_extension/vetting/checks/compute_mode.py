"""The compute mode of a GPU: whether several processes may use it."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..gpus.reading import GpuReading
from ..model import Finding, Scope
from .gpus import failed, for_each, passed, unsaid

Mode = Literal["default", "exclusive_process", "exclusive_thread", "prohibited"]


class ComputeMode(Frozen):
    """The mode is one of those that are allowed.

    Parameters
    ----------
    allowed
        A data loader or a second rank on a GPU in exclusive mode dies.
    """

    type: ClassVar[str] = "compute_mode"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    allowed: tuple[Mode, ...] = Field(default=("default",), min_length=1)

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        if gpu.compute_mode is None:
            return unsaid("the compute mode")
        if gpu.compute_mode not in self.allowed:
            fix = f"Ask the operators for compute mode {self.allowed[0]}, or take another node."
            return failed(f"The compute mode is {gpu.compute_mode}.", fix)
        return passed(f"The compute mode is {gpu.compute_mode}.")
