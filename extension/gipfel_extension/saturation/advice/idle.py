"""GPUs that were asked for and never used."""

from ..workload import ANY
from .losses import RUNNING
from .model import Advice, Case, Knob, points, seen


class UnusedGpu:
    """Some GPUs of the job never worked, while others did."""

    name = "unused-gpu"
    knob = Knob("--gpus-per-node", "https://slurm.schedmd.com/gres.html")
    applies = ANY

    def find(self, case: Case) -> Advice | None:
        """The advice, None where all GPUs worked or none."""
        least = case.settings.thresholds.works
        unused = [t for t in case.scored if not (seen(1.0 - t.losses["idle"], least) & t.scored).any()]
        if not unused or len(unused) == len(case.scored):
            return None
        shown = [case.evidence(trace, trace.scored, RUNNING) for trace in unused]
        names = [case.name(trace.device) for trace in unused]
        listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        gain = 100.0 * len(unused) / len(case.scored)
        return Advice(
            self.name,
            f"{listed} never worked.",
            "Ask for fewer GPUs, or start a rank on each.",
            gain,
            points(gain),
            self.knob,
            tuple(evidence for evidence in shown if evidence is not None),
        )
