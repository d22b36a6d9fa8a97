"""Which CPUs and which memory a process may use, and whether they are near its GPUs."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..gpus.reading import GpuReading, ReadingError
from ..model import Finding, Scope, Verdict
from .gpus import failed, passed


class Affinity(Frozen):
    """Enough CPUs, and some of them on each GPU's NUMA node.

    Parameters
    ----------
    cpus_per_gpu
        How many CPUs there must be for each GPU, or at all where there is none.
    """

    type: ClassVar[str] = "affinity"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 30.0

    cpus_per_gpu: Annotated[int, Field(ge=1)] = 1

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        cpus = context.host.affinity()
        try:
            gpus: Sequence[GpuReading] = context.gpus.read() if context.expected_gpus != 0 else ()
        except ReadingError:
            # That a GPU is missing is for other checks to say.
            gpus = ()
        wanted = self.cpus_per_gpu * max(1, len(gpus))
        if len(cpus) < wanted:
            fix = "Ask for more CPUs (--cpus-per-task, --cpus-per-gpu)."
            return [failed(f"{len(cpus)} CPU(s) may be used, {wanted} are needed.", fix, float(len(cpus)))]
        far = []
        for gpu in gpus:
            near = self._near(context, gpu)
            if near and not near & cpus:
                far.append(f"GPU {gpu.index}")
        if far:
            fix = "Bind tasks to the CPUs near their GPUs (--gpu-bind, --cpu-bind, or numactl)."
            reason = f"No CPU near {', '.join(far)} may be used."
            return [Finding(verdict=Verdict.DEGRADED, reason=reason, fix=fix, figure=float(len(cpus)))]
        near_gpus = ", near every GPU" if gpus else ""
        return [passed(f"{len(cpus)} CPU(s) may be used{near_gpus}.", float(len(cpus)))]

    def _near(self, context: CheckContext, gpu: GpuReading) -> frozenset[int]:
        # NVML writes a PCI domain with eight digits, the kernel with four.
        bus = gpu.bus_id.lower()
        bus = bus[4:] if len(bus) == 16 else bus
        try:
            return cpu_list(context.host.text(f"/sys/bus/pci/devices/{bus}/local_cpulist"))
        except (OSError, ValueError):
            # A container may not show it; then nothing can be said.
            return frozenset()


def cpu_list(text: str) -> frozenset[int]:
    """The CPUs of a list as the kernel writes it: ``0-3,8``."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
