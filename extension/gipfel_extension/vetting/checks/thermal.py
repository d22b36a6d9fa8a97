"""Checks of clocks, temperature and power limit, without load and under load."""

import re
import threading
from collections import defaultdict
from collections.abc import Sequence
from types import TracebackType
from typing import Annotated, ClassVar

from pydantic import Field, JsonValue

from ..check import CheckContext
from ..gpus import GpuReading, ReadingError
from ..model import Finding, Scope, Verdict, failed, inconclusive, passed
from ..threshold import Quantity
from .gpus import ANOTHER_NODE, BaseCheck, GpuCheck, finding_per_gpu, not_reported

#: Bits of NVML's clock-event mask (``nvmlClocksEventReason*`` in nvml.h) that indicate a problem; idle,
#: application clocks and sync boost do not. NVML explains the last two by their names only.
REASONS: dict[int, str] = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x200: "limit of the board (NVML: BoardLimit)",
    0x400: "limit for reliability (NVML: Reliability)",
}
_THROTTLED_FIX = "Use another node, and tell the operators that this node is throttled by heat or power."
_IDLE_BIT = 0x01
#: Below this temperature the sensor is assumed to be faulty.
_MIN_TEMPERATURE_C = 1.0
_INTERVAL_S = 1.0
_END_LIMIT_S = 5.0
#: Bits of slowdowns that are not normal under load; a power cap is normal, so it is not among them.
_SLOWDOWN_BITS = 0x08 | 0x20 | 0x40 | 0x80
#: Minimum number and share of readings with a slowdown for a FAIL.
_MIN_SLOWED, _MIN_SLOWED_SHARE = 2, 0.1
#: Subject of a finding if torch reports no UUID.
_INDEX = re.compile(r"GPU (\d+)")


class Clocks(BaseCheck):
    """Check that clocks are not throttled, and that their limits are not set too low.

    Parameters
    ----------
    min_sm_clock_ratio
        Minimum ratio of the configured application clock to the maximum SM clock.
    min_memory_clock_ratio
        Minimum ratio of the memory clock to its maximum, unless the GPU is idle, and of this maximum to the
        highest of the node's GPUs of the same model.
    """

    scope: ClassVar[Scope] = Scope.GPU

    min_sm_clock_ratio: Annotated[Quantity, Field(ge=0, le=1)] = 0.85
    min_memory_clock_ratio: Annotated[Quantity, Field(ge=0, le=1)] = 0.95

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU."""
        maxima: dict[str, float] = {}
        for gpu in context.gpus.read():
            maxima[gpu.name] = max(maxima.get(gpu.name, 0.0), gpu.memory_clock_max_mhz or 0.0)
        return finding_per_gpu(context, lambda gpu: self._judge_reading(gpu, maxima.get(gpu.name, 0.0)))

    def _judge_reading(self, gpu: GpuReading, model_max: float) -> Finding:
        if gpu.clock_reasons is None:
            return not_reported("the reasons of the current clocks")
        names = [name for bit, name in REASONS.items() if gpu.clock_reasons & bit]
        if names:
            return failed(f"Throttled: {', '.join(names)}.", _THROTTLED_FIX, gpu.sm_clock_mhz, "MHz")
        most, limit = gpu.sm_clock_max_mhz, gpu.sm_clock_limit_mhz
        if most and limit is not None and limit < self.min_sm_clock_ratio * most:
            fix = "Ask the operators to reset the application clocks, or use another node."
            return failed(f"The SM clock is limited to {limit:.0f} of {most:.0f} MHz.", fix, limit, "MHz")
        memory, top = gpu.memory_clock_mhz, gpu.memory_clock_max_mhz
        if top and top < self.min_memory_clock_ratio * model_max:
            reason = (
                f"The memory clock is limited to {top:.0f} MHz; another GPU here allows {model_max:.0f} MHz."
            )
            return failed(reason, ANOTHER_NODE, top, "MHz")
        busy = not gpu.clock_reasons & _IDLE_BIT
        if busy and memory is not None and top and memory < self.min_memory_clock_ratio * top:
            return failed(f"The memory clock is {memory:.0f} of {top:.0f} MHz.", ANOTHER_NODE, memory, "MHz")
        reason = (
            f"SM clock {gpu.sm_clock_mhz:.0f} of {most:.0f} MHz"
            if gpu.sm_clock_mhz and most
            else "No slowdown"
        )
        return passed(f"{reason}.", gpu.sm_clock_mhz, "MHz")


class Temperature(GpuCheck):
    """Check that the temperature, in °C, is below the slowdown temperature by `margin`.

    Parameters
    ----------
    margin
        Minimum distance in °C to the temperature at which the GPU slows down, where NVML reports that.
    """

    margin: Annotated[float, Field(ge=0, le=100)] = 10.0

    def judge(self, gpu: GpuReading) -> Finding:
        """Return the finding for one GPU."""
        now, slowdown = gpu.temperature_c, gpu.slowdown_temperature_c
        if now is None:
            return not_reported("the temperature")
        if now < _MIN_TEMPERATURE_C:
            fix = "Check this GPU's sensor: the driver reads a wrong value."
            return inconclusive(f"{now:.0f} °C is not plausible.", fix)
        if slowdown is not None and now > slowdown - self.margin:
            fix = (
                "Let it cool down, or use another node: a GPU that is hot before the run is not cooled well."
            )
            return failed(
                f"{now:.0f} °C is not {self.margin:g} °C below its slowdown temperature ({slowdown:.0f} °C).",
                fix,
                now,
                "°C",
            )
        return passed(f"{now:.0f} °C.", float(now), "°C")


class PowerLimit(GpuCheck):
    """Check that the power limit is not lowered.

    Parameters
    ----------
    min_ratio
        Minimum ratio of the power limit to the board's default.
    """

    min_ratio: Annotated[Quantity, Field(ge=0, le=1)] = 0.95

    def judge(self, gpu: GpuReading) -> Finding:
        """Return the finding for one GPU."""
        limit, default = gpu.power_limit_w, gpu.power_default_w
        if limit is None or not default:
            return not_reported("the power limit")
        if limit < self.min_ratio * default:
            fix = "Ask the operators whether the limit is intended. If so, set 'min_ratio' in the protocol."
            return failed(f"The power limit is {limit:.0f} of {default:.0f} W.", fix, limit, "W")
        return passed(f"The power limit is {limit:.0f} of {default:.0f} W.", limit, "W")


class ThrottleMonitor:
    """Context manager that reads the GPUs of the node once a second while a probe runs.

    Parameters
    ----------
    interval_s
        Seconds between readings.
    """

    def __init__(self, context: CheckContext, *, interval_s: float = _INTERVAL_S) -> None:
        self._context, self._interval_s = context, interval_s
        self._ended = threading.Event()
        self._readings: dict[str, list[GpuReading]] = defaultdict(list)
        self._thread = threading.Thread(target=self._watch, daemon=True, name="gipfel-clocks")

    def __enter__(self) -> "ThrottleMonitor":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_END_LIMIT_S)

    def _watch(self) -> None:
        while True:
            try:
                for gpu in self._context.gpus.read():
                    self._readings[gpu.uuid].append(gpu)
            except ReadingError:
                # If there is no reading at all, `judge` reports that nothing was watched.
                pass
            if self._ended.wait(self._interval_s):
                return

    def judge(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings; one that passes fails if its GPU was throttled."""
        return [self._judge(each) if each.verdict is Verdict.PASS else each for each in findings]

    def _of_gpu(self, subject: str) -> Sequence[GpuReading]:
        """Return the readings of a finding's GPU; empty if it is not known which GPU it is."""
        if subject in self._readings:
            return self._readings[subject]
        # Older versions of torch report no UUID, and NVML's list has no MIG instances, only their GPUs.
        by_index = list(self._readings.values())
        index = _INDEX.fullmatch(subject)
        if index and int(index[1]) < len(by_index):
            return by_index[int(index[1])]
        return by_index[0] if len(by_index) == 1 else ()

    def _judge(self, finding: Finding) -> Finding:
        readings = [each for each in self._of_gpu(finding.subject) if each.clock_reasons is not None]
        if not readings:
            reason = "Its clocks could not be read under load."
            fix = (
                "Check whether NVML works here, or remove `heat` (the load before measuring) from this check."
            )
            return finding.with_verdict(Verdict.INCONCLUSIVE, reason, fix=fix)
        clocks = [each.sm_clock_mhz for each in readings if each.sm_clock_mhz is not None]
        heat = [each.temperature_c for each in readings if each.temperature_c is not None]
        evidence: dict[str, JsonValue] = {
            **finding.evidence, "readings": len(readings),
            "min_sm_clock_mhz": min(clocks, default=None), "max_temperature_c": max(heat, default=None),
        }  # fmt: skip
        slowed = [bits for each in readings if (bits := (each.clock_reasons or 0) & _SLOWDOWN_BITS)]
        if len(slowed) < max(_MIN_SLOWED, _MIN_SLOWED_SHARE * len(readings)):
            return finding.model_copy(update={"evidence": evidence})
        names = [name for bit, name in REASONS.items() if any(bit & each for each in slowed)]
        reason = f"Throttled under load, in {len(slowed)} of {len(readings)} readings: {', '.join(names)}."
        return finding.with_verdict(Verdict.FAIL, reason, fix=_THROTTLED_FIX, evidence=evidence)
