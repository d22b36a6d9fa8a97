"""How fast a device copies within its own memory."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..model import Finding, Scope
from ..quantities import Quantity
from .devices import device_of, measure


class MemoryBandwidth(Frozen):
    """Bytes read and written per second, on each GPU or on the host.

    Parameters
    ----------
    bytes
        Size of the copy; None takes 2 GiB on a GPU and 128 MiB on the host.
    seconds
        Per sample, at most.
    """

    type: ClassVar[str] = "memory_bandwidth"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 120.0
    uses_torch: ClassVar[bool] = True

    device: Literal["auto", "cuda", "cpu"] = "auto"
    bytes: Annotated[Quantity, Field(ge=2**20, le=2**36)] | None = None
    samples: Annotated[int, Field(ge=5, le=200)] = 7
    seconds: Annotated[float, Field(gt=0, le=60)] = 0.1

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU, or one for the node."""
        device = device_of(context, self.device)
        size = int(self.bytes or (2**31 if device == "cuda" else 2**27))
        request = {"device": device, "bytes": size, "samples": self.samples, "seconds": self.seconds}
        return measure(context, "memory_bandwidth", request)  # type: ignore[arg-type]
