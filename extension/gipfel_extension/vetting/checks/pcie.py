"""Width and speed of a GPU's PCIe link."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..gpus.reading import GpuReading
from ..model import Finding, Scope, Verdict
from .gpus import failed, for_each, passed, unsaid

#: Lanes of every data-centre card since the V100; superchips have no slot.
_CARDS = 16
_NAMES = ("A100", "H100", "H200", "B200", "L40S", "L4 ")
_SUPERCHIPS = ("GH200", "GB200")


def _is_card(model: str) -> bool:
    words = model.upper() + " "
    return any(name in words for name in _NAMES) and not any(name in words for name in _SUPERCHIPS)


class Pcie(Frozen):
    """As wide as it can be; the speed is judged only where a generation is given, because an idle link rests.

    Parameters
    ----------
    width
        Lanes; None takes the most that the link can have.
    generation
        Least generation; None takes none.
    most_replays
        Repeated transfers since the driver was loaded.
    """

    type: ClassVar[str] = "pcie"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    width: Annotated[int, Field(ge=1, le=32)] | None = None
    generation: Annotated[int, Field(ge=1, le=8)] | None = None
    most_replays: Annotated[int, Field(ge=0)] = 10_000

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        width, wanted = gpu.pcie_width, self.width or gpu.pcie_width_max
        if width is None or wanted is None:
            return unsaid("the width of its PCIe link")
        fix = "Take another node, and tell the operators: the card may sit badly in its slot."
        if width < wanted:
            return failed(f"PCIe runs with {width} of {wanted} lanes.", fix, float(width), "x")
        if self.width is None and wanted < _CARDS and _is_card(gpu.name):
            reason = f"Its slot gives {wanted} lanes at most; the card has {_CARDS}."
            return Finding(verdict=Verdict.DEGRADED, reason=reason, fix=fix, figure=float(wanted), unit="x")
        now, top = gpu.pcie_generation, gpu.pcie_generation_max
        if self.generation is not None:
            # A resting link shows a lower generation than it will run at.
            best = max(now or 0, top or 0)
            if best < self.generation:
                return failed(f"PCIe can do generation {best}, not {self.generation}.", fix, float(best))
        if (gpu.pcie_replays or 0) > self.most_replays:
            reason = f"PCIe repeated {gpu.pcie_replays} transfers."
            return Finding(
                verdict=Verdict.DEGRADED, reason=reason, fix=fix, figure=float(gpu.pcie_replays or 0)
            )
        return passed(f"PCIe {now or '?'}.0 x{width}.", float(width), "x")
