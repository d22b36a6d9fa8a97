"""Bandwidth of a collective: within a node, between pairs of nodes, over all."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..attribution.state import PairSettings
from ..model import Scope
from ..probing import ProbeSpec, probe_file
from ..quantities import Quantity


class Collective(Frozen):
    """A collective of torch.distributed (NCCL on GPUs, gloo on CPUs), with its values checked.

    The protocol's scope says over what: ``node`` (the ranks of each node), ``pair`` (rounds of disjoint
    pairs, which name the culprit) or ``all``.

    Parameters
    ----------
    method
        ``allreduce`` gives bus bandwidth, ``send`` that of one transfer, the others the sum over receivers.
    payload
        Bytes per rank.
    per_gpu
        One rank per GPU; None takes that within a node and over all, and one rank per node in pairs.
    pairs
        How pairs are measured and judged; only for the scope ``pair``.
    """

    type: ClassVar[str] = "collective"
    scope: ClassVar[Scope] = Scope.NODE
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.NODE, Scope.PAIR, Scope.ALL)
    time_limit_s: ClassVar[float] = 120.0
    uses_torch: ClassVar[bool] = True

    method: Literal["allreduce", "broadcast", "gather", "send"] = "allreduce"
    payload: Annotated[Quantity, Field(ge=1024, le=2**40)] = 2.0**28
    device: Literal["auto", "cuda", "cpu"] = "auto"
    samples: Annotated[int, Field(ge=5, le=500)] = 7
    warmup_payload: Annotated[Quantity, Field(ge=1024, le=2**40)] = 2.0**22
    warmup_runs: Annotated[int, Field(ge=0, le=100)] = 2
    per_gpu: bool | None = None
    pairs: PairSettings = PairSettings()

    def probe(self, time_limit_s: float) -> ProbeSpec:
        """What each rank of the group runs; whoever starts it makes "cuda" or "cpu" of "auto"."""
        request = {
            "method": self.method, "device": self.device, "payload": int(self.payload),
            "samples": self.samples,
            "warmup_payload": int(self.warmup_payload), "warmup_runs": self.warmup_runs,
            # torch gives up a little before the probe is killed, and then can say why.
            "seconds": max(1.0, 0.8 * time_limit_s),
        }  # fmt: skip
        return ProbeSpec(
            argv=(probe_file("collective"),), request=request, time_limit_s=time_limit_s,
            per_gpu=self.per_gpu if self.per_gpu is not None else True, torch=True,
        )  # fmt: skip
