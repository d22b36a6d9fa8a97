"""Main memory that is free on a node."""

import re
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext, Missing
from ..model import Finding, Scope
from ..quantities import Quantity, shown
from .gpus import failed, passed

_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


class HostMemory(Frozen):
    """Enough of the memory is available, and swap is not in use.

    Parameters
    ----------
    least_available
        Share of the memory that must be available.
    most_swapped
        Bytes of swap that may be in use.
    """

    type: ClassVar[str] = "host_memory"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 10.0

    least_available: Annotated[Quantity, Field(ge=0, le=1)] = 0.5
    most_swapped: Annotated[Quantity, Field(ge=0)] = 2.0**30

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        fields = {
            name: int(value) * 1024 for name, value in _FIELD.findall(context.host.text("/proc/meminfo"))
        }
        total, available = fields.get("MemTotal", 0), fields.get("MemAvailable")
        if not total or available is None:
            raise Missing(
                "/proc/meminfo does not say how much memory is available.", "See whether /proc is mounted."
            )
        share = available / total
        text = f"{shown(available, 'B')} of {shown(total, 'B')} are available"
        fix = "Something else uses this node's memory: take another node."
        if share < self.least_available:
            return [failed(f"{text}, less than {self.least_available:.0%}.", fix, share)]
        swapped = fields.get("SwapTotal", 0) - fields.get("SwapFree", 0)
        if swapped > self.most_swapped:
            return [failed(f"{shown(swapped, 'B')} are swapped out.", fix, share)]
        return [passed(f"{text}.", share)]
