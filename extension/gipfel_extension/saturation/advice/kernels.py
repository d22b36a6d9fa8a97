"""Launch-bound: the engine is on, and the SMs have no work between tiny kernels.

Clocks that are held down: by power, heat, or a setting.

Low occupancy: SMs hold few warps, so pipes and memory both wait.

The optimizer: phases that only move memory, in a job that otherwise multiplies matrices.
"""

import numpy as np

from ..levels import Flags
from ..result import Trace
from .losses import LossRule
from .model import TRAINING, Advice, Case, Knob, less_time, share

#: SM activity above which kernels fill the GPU, whatever is lost between them.
_FILLED = 0.6


class _Launch(LossRule):
    loss = "launch"
    least = 10.0
    _action: str

    def where(self, case: Case, trace: Trace) -> Flags:
        """The loss is there, and kernels leave most SMs empty."""
        with np.errstate(invalid="ignore"):
            return super().where(case, trace) & (trace.levels.active <= _FILLED)

    def gain(self, case: Case, trace: Trace) -> float:
        """Return what is lost where kernels leave SMs empty, for at least a tenth of the time."""
        where = self.where(case, trace)
        return self.lost_where(trace, where) if share(trace, where) >= 0.1 else 0.0

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time, beside the SMs' activity."""
        active = self.mean(case, trace, "SM_ACTIVE")
        beside = f" (SMs {100 * active:.0f} % active)" if active is not None else ""
        waited = f"{self.lost(trace):.0f} % of the time waiting between small kernels{beside}"
        return f"{self.subject(case)} spent {waited}.", self._action


class Compile(_Launch):
    """Some time goes between kernels: fuse them."""

    name = "compile"
    knob = Knob("torch.compile", "https://docs.pytorch.org/docs/stable/generated/torch.compile.html")
    _action = "Compile the model, so that fewer and larger kernels run."


class CudaGraphs(_Launch):
    """Much time goes between kernels: launch them as one graph."""

    name = "cuda-graphs"
    knob = Knob(
        'torch.compile(mode="reduce-overhead")',
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs",
    )
    least = 20.0
    _action = "Record the step as a CUDA graph, so that it costs one launch."

    def gain_least(self, case: Case, trace: Trace) -> float:  # noqa: ARG002 - as the others
        """The time in which nothing ran between kernels: a graph leaves no such gaps."""
        gaps = np.minimum(trace.losses[self.loss], 1.0 - np.fmin(1.0, trace.levels.engine))
        seconds = trace.seconds[trace.scored]
        return 100.0 * float(np.nan_to_num(gaps[trace.scored]) @ seconds / seconds.sum())


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


_METRICS = ("SM_ACTIVE", "SM_OCCUPANCY", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "FB_USED")


class _Occupancy(LossRule):
    loss = "occupancy"
    least = 15.0
    metrics = _METRICS

    def where(self, case: Case, trace: Trace) -> Flags:
        """The loss is there, and SM activity is measured and high: without it launch may be the cause."""
        with np.errstate(invalid="ignore"):
            return super().where(case, trace) & (trace.levels.active >= 0.5)

    def filled(self, case: Case, trace: Trace) -> float | None:
        """Share of the GPU's memory in use at most."""
        with np.errstate(invalid="ignore", divide="ignore"):
            filled = (case.column(trace, "FB_USED") / case.column(trace, "FB_TOTAL"))[trace.scored]
        known = filled[np.isfinite(filled)]
        return float(known.max()) if len(known) else None

    def sentence(self, case: Case, trace: Trace) -> str:
        """Percent of the time, and how full memory is."""
        filled = 100 * (self.filled(case, trace) or 0.0)
        return (
            f"{self.subject(case)} ran kernels with few warps, which kept neither pipes nor memory busy, "
            f"{self.lost(trace):.0f} % of the time, with {filled:.0f} % of memory in use."
        )


class BatchSize(_Occupancy):
    """There is memory left: larger batches."""

    name = "batch-size"
    knob = Knob(
        "batch size", "https://docs.pytorch.org/docs/stable/data.html#loading-batched-and-non-batched-data"
    )

    def gain(self, case: Case, trace: Trace) -> float:
        """Nothing where memory is full, or nobody knows."""
        filled = self.filled(case, trace)
        return super().gain(case, trace) if filled is not None and filled < 0.6 else 0.0

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time, and how full memory is."""
        return (
            self.sentence(case, trace),
            "Try a larger batch.",
        )


class ActivationCheckpointing(_Occupancy):
    """Memory is full: make room for larger batches."""

    applies = TRAINING

    name = "activation-checkpointing"
    knob = Knob("torch.utils.checkpoint", "https://docs.pytorch.org/docs/stable/checkpoint.html")

    def gain(self, case: Case, trace: Trace) -> float:
        """Nothing where memory has room, or nobody knows."""
        filled = self.filled(case, trace)
        return super().gain(case, trace) if filled is not None and filled >= 0.9 else 0.0

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time, and how full memory is."""
        return (
            self.sentence(case, trace),
            "Checkpoint activations to make room for a larger batch; it computes some of them twice.",
        )


class FusedOptimizer:
    """Memory-bound phases between tensor work: reads and writes every parameter several times."""

    name = "fused-optimizer"
    knob = Knob("torch.optim.AdamW(…, fused=True)", "https://docs.pytorch.org/docs/stable/optim.html")
    applies = TRAINING

    def find(self, case: Case) -> Advice | None:
        """The advice where such phases take from a tenth to half of the time."""
        trace = max(case.scored, key=lambda each: share(each, self._where(case, each)))
        where = self._where(case, trace)
        taken = share(trace, where)
        evidence = case.evidence(trace, where, ("DRAM_ACTIVE", "PIPE_TENSOR_ACTIVE"))
        if not 0.1 <= taken <= 0.5 or evidence is None:
            return None
        sentence = (
            f"For {100 * taken:.0f} % of the time {case.name(trace.device)} only moved memory between phases "
            "of matrix work."
        )
        action = (
            "If that is the optimizer, use its fused form: utilization won't change, the step's time will."
        )
        return Advice(
            self.name,
            sentence,
            action,
            0.0,
            less_time(taken),
            self.knob,
            (evidence,),
            self.applies.text,
            saved=taken,
        )

    def _where(self, case: Case, trace: Trace) -> Flags:
        tensor = case.column(trace, "PIPE_TENSOR_ACTIVE")
        with np.errstate(invalid="ignore"):
            works = tensor[trace.scored] >= 0.2
            if works.mean() < 0.2:
                return np.zeros(len(tensor), np.bool_)
            return (case.column(trace, "DRAM_ACTIVE") >= 0.5) & (tensor < 0.05)
