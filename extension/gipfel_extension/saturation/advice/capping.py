"""Clocks that are held down for power or temperature."""

from ..result import Trace
from .losses import LossRule
from .model import Case, Knob


class Capping(LossRule):
    """The GPU says itself that power or temperature holds its clocks down."""

    name = "capping"
    knob = Knob("the site's power and cooling", "https://docs.nvidia.com/deploy/nvidia-smi/index.html")
    loss = "capped"
    least = 3.0
    metrics = ("CLOCKS_EVENT_REASONS", "SM_CLOCK", "POWER_USAGE", "GPU_TEMP")

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time, and how hot it was."""
        heat = self.mean(case, trace, "GPU_TEMP")
        hot = f" at {heat:.0f} °C" if heat is not None else ""
        return (
            (
                f"Power or temperature held the clocks of {case.name(trace.device)} down, which cost "
                f"{self.lost(trace):.0f} % of its time{hot}."
            ),
            "Vet the node and tell the site: another GPU of the model may run faster.",
        )
