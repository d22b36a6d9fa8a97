"""Checks of clocks, temperature and power limit, at rest and under load."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from types import TracebackType
from typing import Annotated, ClassVar

from pydantic import Field, JsonValue

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..gpus import GpuReading, ReadingError
from ..model import Finding, Scope, Verdict
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
#: No GPU that computes is as cold.
_LEAST_C = 1.0
_EVERY_S = 1.0
_ENDS_S = 5.0
#: NVML's bits for slowdowns that no load explains; a power cap is normal under full load.
_TROUBLE = 0x08 | 0x20 | 0x40 | 0x80
#: So often must a slowdown be seen: a moment is none.
_LEAST_SEEN, _LEAST_SHARE = 2, 0.1


class Clocks(Frozen):
    """No slowdown now, and no clock limit below the model's.

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
        """Return one finding per GPU."""
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
        """Return one finding per GPU."""
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


class PowerLimit(Frozen):
    """The power limit is not lowered.

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
        """Return one finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        limit, default = gpu.power_limit_w, gpu.power_default_w
        if limit is None or not default:
            return unsaid("the power limit")
        if limit < self.least * default:
            fix = "Ask the operators whether the limit is meant; if so, set 'least' in the protocol."
            return failed(f"The power limit is {limit:.0f} of {default:.0f} W.", fix, limit, "W")
        return passed(f"The power limit is {limit:.0f} of {default:.0f} W.", limit, "W")


class LoadWatch:
    """Context manager around a probe that reads the GPUs of a node once a second.

    Parameters
    ----------
    every_s
        Seconds between two readings.
    """

    def __init__(self, context: CheckContext, *, every_s: float = _EVERY_S) -> None:
        self._context, self._every_s = context, every_s
        self._ended = threading.Event()
        self._seen: dict[str, list[GpuReading]] = defaultdict(list)
        self._thread = threading.Thread(target=self._watch, daemon=True, name="gipfel-clocks")

    def __enter__(self) -> "LoadWatch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_ENDS_S)

    def _watch(self) -> None:
        while True:
            try:
                for gpu in self._context.gpus.read():
                    self._seen[gpu.uuid].append(gpu)
            except ReadingError:
                # Without any reading, `judged` says that nothing was watched.
                pass
            if self._ended.wait(self._every_s):
                return

    def judged(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings, with those that pass judged by what was read of their GPU."""
        return [self._judged(each) if each.verdict is Verdict.PASS else each for each in findings]

    def _judged(self, finding: Finding) -> Finding:
        seen = [each for each in self._seen.get(finding.subject, ()) if each.clock_reasons is not None]
        if not seen:
            reason = "Its clocks could not be watched under load."
            fix = "See whether NVML can be read here, or take `heat` out of the protocol."
            return finding.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "reason": reason, "fix": fix})
        clocks = [each.sm_clock_mhz for each in seen if each.sm_clock_mhz is not None]
        heat = [each.temperature_c for each in seen if each.temperature_c is not None]
        evidence: dict[str, JsonValue] = {
            **finding.evidence, "watched": len(seen),
            "least_sm_clock_mhz": min(clocks, default=None), "most_temperature_c": max(heat, default=None),
        }  # fmt: skip
        slowed = [bits for each in seen if (bits := (each.clock_reasons or 0) & _TROUBLE)]
        if len(slowed) < max(_LEAST_SEEN, _LEAST_SHARE * len(seen)):
            return finding.model_copy(update={"evidence": evidence})
        names = [name for bit, name in REASONS.items() if any(bit & each for each in slowed)]
        reason = f"Slowed down under load, in {len(slowed)} of {len(seen)} s: {', '.join(names)}."
        fix = "Take another node; heat or power of this one need the operators."
        return finding.model_copy(
            update={"verdict": Verdict.FAIL, "reason": reason, "fix": fix, "evidence": evidence}
        )
