"""Clocks that are held down: by power, heat, or a setting."""

import numpy as np

from ..levels import Flags
from ..result import Trace
from .losses import LossRule
from .model import Case, Knob

#: NVML's bits of clock-event reasons (nvmlClocksEventReasons).
_SETTING, _POWER, _HARDWARE = 0x02 | 0x10, 0x04 | 0x80, 0x08 | 0x20 | 0x40
#: At its power limit, a GPU that computes runs some per cent below its maximum clock: that is not a fault.
_USUAL = 15.0


class Capping(LossRule):
    """The GPU's clock is below its maximum while it works."""

    name = "capping"
    knob = Knob("clocks and power limits", "https://docs.nvidia.com/deploy/nvidia-smi/index.html")
    loss = "capped"
    least = 3.0
    metrics = ("CLOCKS_EVENT_REASONS", "SM_CLOCK", "POWER_USAGE", "GPU_TEMP")

    def where(self, case: Case, trace: Trace) -> Flags:
        """The clock is below its maximum by at least a twentieth while SMs have work."""
        with np.errstate(invalid="ignore"):
            return super().where(case, trace) & (trace.levels.clock <= 0.95)

    def gain(self, case: Case, trace: Trace) -> float:
        """Nothing where only the power limit holds the clock a little below its maximum."""
        lost = case.loss(self.loss)
        return lost if self._reasons(case, trace) & (_HARDWARE | _SETTING) or lost >= _USUAL else 0.0

    def gain_least(self, case: Case, trace: Trace) -> float:
        """All of it where the clock was set: setting it back gives it back."""
        return case.loss(self.loss) if self._reasons(case, trace) & _SETTING else 0.0

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time, what held the clock, and how hot the GPU was."""
        heat = self.mean(case, trace, "GPU_TEMP")
        hot = f" at {heat:.0f} \u00b0C" if heat is not None else ""
        clock = 100 * float(np.mean(trace.levels.clock[self.where(case, trace) & trace.scored]))
        reasons = self._reasons(case, trace)
        cause, action = (
            (
                "Heat or the hardware",
                "Vet the node and tell the site: another GPU of the model may run faster.",
            )
            if reasons & _HARDWARE
            else ("A setting", "See 'nvidia-smi -q -d CLOCK' for application clocks that were set.")
            if reasons & _SETTING
            else ("The power limit", "Ask the site for its power limits: the board's own allows more.")
            if reasons & _POWER
            else ("Something", "Record CLOCKS_EVENT_REASONS to see what holds it.")
        )
        return (
            (
                f"{cause} held the clock of {case.name(trace.device)} at {clock:.0f} % of its maximum{hot}, "
                f"which cost {self.lost(trace):.0f} % of its time."
            ),
            action,
        )

    def _reasons(self, case: Case, trace: Trace) -> int:
        values = case.column(trace, "CLOCKS_EVENT_REASONS")[self.where(case, trace) & trace.scored]
        bits = values[np.isfinite(values)].astype(np.int64)
        return int(np.bitwise_or.reduce(bits)) if len(bits) else 0
