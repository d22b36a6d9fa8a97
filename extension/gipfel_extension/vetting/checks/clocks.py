"""Clocks of a GPU, and why they are lower than they could be."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..gpus.reading import GpuReading
from ..model import Finding, Scope
from ..quantities import Quantity
from .gpus import failed, for_each, passed, readings, unsaid

#: Bits of NVML's mask that mean trouble, by NVIDIA's names; idle, application clocks and sync boost do not.
REASONS: dict[int, str] = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x200: "board limit",
    0x400: "reliability",
}
_IDLE = 0x01


class Clocks(Frozen):
    """No slowdown now, and no clock limit below what the model can do.

    Parameters
    ----------
    least_limit
        Share of the highest SM clock that the set application clock must have.
    least_memory
        Share of the highest memory clock that it must run at, unless it is idle.
    """

    type: ClassVar[str] = "clocks"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    least_limit: Annotated[Quantity, Field(ge=0, le=1)] = 0.85
    least_memory: Annotated[Quantity, Field(ge=0, le=1)] = 0.95

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU."""
        tops: dict[str, float] = {}
        for gpu in readings(context):
            tops[gpu.name] = max(tops.get(gpu.name, 0.0), gpu.memory_clock_max_mhz or 0.0)
        return for_each(context, lambda gpu: self._look(gpu, tops.get(gpu.name, 0.0)))

    def _look(self, gpu: GpuReading, of_model: float) -> Finding:
        if gpu.clock_reasons is None:
            return unsaid("why its clocks are what they are")
        names = [name for bit, name in REASONS.items() if gpu.clock_reasons & bit]
        if names:
            fix = "Take another node; heat or power of this one need the operators."
            return failed(f"Slowed down: {', '.join(names)}.", fix, gpu.sm_clock_mhz, "MHz")
        most, limit = gpu.sm_clock_max_mhz, gpu.sm_clock_limit_mhz
        if most and limit is not None and limit < self.least_limit * most:
            fix = "Ask the operators to reset the application clocks, or take another node."
            return failed(f"The SM clock is limited to {limit:.0f} of {most:.0f} MHz.", fix, limit, "MHz")
        memory, top = gpu.memory_clock_mhz, gpu.memory_clock_max_mhz
        if top and top < self.least_memory * of_model:
            fix = "Take another node, and tell the operators."
            reason = f"The memory may run at {top:.0f} MHz at most, {of_model:.0f} on another GPU here."
            return failed(reason, fix, top, "MHz")
        busy = not gpu.clock_reasons & _IDLE
        if busy and memory is not None and top and memory < self.least_memory * top:
            fix = "Take another node, and tell the operators."
            return failed(f"The memory runs at {memory:.0f} of {top:.0f} MHz.", fix, memory, "MHz")
        shown = (
            f"SM clock {gpu.sm_clock_mhz:.0f} of {most:.0f} MHz"
            if gpu.sm_clock_mhz and most
            else "No slowdown"
        )
        return passed(f"{shown}.", gpu.sm_clock_mhz, "MHz")
