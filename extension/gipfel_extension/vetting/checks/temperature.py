"""How hot a GPU is; beside the others of the allocation, because a fixed number fails warm rooms."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..gpus.reading import GpuReading
from ..model import Finding, Scope, Verdict
from .gpus import failed, for_each, passed, unsaid

#: No GPU that computes is as cold.
_LEAST_C = 1.0


class Temperature(Frozen):
    """Degrees Celsius, held against the protocol's threshold and the GPU's own slowdown temperature.

    Parameters
    ----------
    margin
        Degrees that must be left to the temperature at which the GPU slows down, where NVML says it.
    """

    type: ClassVar[str] = "temperature"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    margin: Annotated[float, Field(ge=0, le=100)] = 10.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        now, slows = gpu.temperature_c, gpu.slowdown_temperature_c
        if now is None:
            return unsaid("the temperature")
        if now < _LEAST_C:
            fix = "Look at this GPU's sensor: the driver reads it wrongly."
            return Finding(
                verdict=Verdict.INCONCLUSIVE, reason=f"{now:.0f} °C is not a temperature.", fix=fix
            )
        if slows is not None and now > slows - self.margin:
            fix = "Let it cool, or take another node; a GPU that is hot before the run lacks cooling."
            return failed(
                f"{now:.0f} °C, {slows - now:.0f} below where it slows down ({slows:.0f} °C).", fix, now, "°C"
            )
        return passed(f"{now:.0f} °C.", float(now), "°C")
