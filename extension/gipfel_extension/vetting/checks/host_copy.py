"""How fast a GPU is reached from the host."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..model import Finding, Scope
from ..quantities import Quantity
from .devices import measure


class HostCopy(Frozen):
    """Bytes per second from pinned host memory to each GPU, and back; the way there is the figure.

    Parameters
    ----------
    bytes
        Size of the copy.
    seconds
        Per sample, at most.
    """

    type: ClassVar[str] = "host_copy"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 120.0

    bytes: Annotated[Quantity, Field(ge=2**20, le=2**33)] = 2.0**28
    samples: Annotated[int, Field(ge=5, le=200)] = 7
    seconds: Annotated[float, Field(gt=0, le=60)] = 0.1

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU."""
        request = {"bytes": int(self.bytes), "samples": self.samples, "seconds": self.seconds}
        return measure(context, "host_copy", request)  # type: ignore[arg-type]
