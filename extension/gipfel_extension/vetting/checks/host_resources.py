"""Checks of the host's resources: main memory, CPU affinity, shared memory."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext, Missing
from ..gpus import GpuReading, ReadingError
from ..model import Finding, Scope, Verdict
from ..quantities import Quantity, with_unit
from .gpus import failed, passed
from .storage import file_system_of, fill, temporary_file

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
        """Return one finding for the node."""
        fields = {
            name: int(value) * 1024 for name, value in _FIELD.findall(context.host.text("/proc/meminfo"))
        }
        total, available = fields.get("MemTotal", 0), fields.get("MemAvailable")
        if not total or available is None:
            raise Missing(
                "/proc/meminfo does not show how much memory is available.", "See whether /proc is mounted."
            )
        share = available / total
        text = f"{with_unit(available, 'B')} of {with_unit(total, 'B')} are available"
        fix = "Something else uses this node's memory: take another node."
        if share < self.least_available:
            return [failed(f"{text}, less than {self.least_available:.0%}.", fix, share)]
        swapped = fields.get("SwapTotal", 0) - fields.get("SwapFree", 0)
        if swapped > self.most_swapped:
            return [failed(f"{with_unit(swapped, 'B')} are swapped out.", fix, share)]
        return [passed(f"{text}.", share)]


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
        """Return one finding for the node."""
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
    """Return the CPUs of a list as the kernel writes it: ``0-3,8``."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


class SharedMemory(Frozen):
    """Space is free and can be written: a memory limit may stop what the file system promises.

    Parameters
    ----------
    least_free
        Bytes that must be free.
    write
        Bytes that are written and removed again.
    """

    type: ClassVar[str] = "shared_memory"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 30.0

    folder: Line = "/dev/shm"  # noqa: S108 - it is the subject
    least_free: Annotated[Quantity, Field(ge=0)] = 2.0**30
    write: Annotated[Quantity, Field(ge=4096, le=2**36)] = 64.0 * 2**20

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        folder = Path(self.folder)
        disk = file_system_of(folder)
        free = float(disk.f_bavail * disk.f_frsize)
        fix = "Remove what earlier jobs left there, or take another node; a container may need a larger one."
        if free < self.least_free:
            return [
                failed(
                    f"{folder} has {with_unit(free, 'B')} free, not {with_unit(self.least_free, 'B')}.",
                    fix,
                    free,
                    "B",
                )
            ]
        size = int(self.write)
        with temporary_file(folder) as (descriptor, _):
            try:
                written, _ = fill(descriptor, size, time.monotonic() + context.time_limit_s * 0.8)
            except OSError as error:
                reason = f"{folder} takes less than {with_unit(size, 'B')}: {error.strerror}."
                return [failed(reason, fix, free, "B")]
        if written < size:
            return [
                failed(f"{folder} took {with_unit(written, 'B')} only until the time limit.", fix, free, "B")
            ]
        return [
            passed(
                f"{folder} has {with_unit(free, 'B')} free; {with_unit(written, 'B')} were written.",
                free,
                "B",
            )
        ]
