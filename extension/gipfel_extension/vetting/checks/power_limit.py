"""The power limit that is set for a GPU, beside the one that its board comes with."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..gpus.reading import GpuReading
from ..model import Finding, Scope
from ..quantities import Quantity
from .gpus import failed, for_each, passed, unsaid


class PowerLimit(Frozen):
    """The limit is not lowered.

    Parameters
    ----------
    least
        Share of the board's default that the limit must have.
    """

    type: ClassVar[str] = "power_limit"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    least: Annotated[Quantity, Field(ge=0, le=1)] = 0.95

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        limit, default = gpu.power_limit_w, gpu.power_default_w
        if limit is None or not default:
            return unsaid("the power limit")
        if limit < self.least * default:
            fix = "Ask the operators whether the limit is meant; if so, set 'least' in the protocol."
            return failed(f"The power limit is {limit:.0f} of {default:.0f} W.", fix, limit, "W")
        return passed(f"The power limit is {limit:.0f} of {default:.0f} W.", limit, "W")
