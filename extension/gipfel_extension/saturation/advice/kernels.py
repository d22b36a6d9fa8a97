"""Rules about kernels: launch overhead, clocks, occupancy, optimizers that move memory, precision."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

import numpy as np

from ..levels import Flags
from ..result import Trace
from .losses import LossRule
from .model import (
    TRAINING,
    Advice,
    AdviceContext,
    Applicability,
    Evidence,
    Knob,
    time_saved_text,
    time_share,
    uuids_of,
)

#: SM activity above which kernels fill the GPU, so that launch overhead is not the problem.
_FILLED = 0.6


class _Launch(LossRule):
    loss = "launch"
    least = 10.0
    _action: str

    def where(self, context: AdviceContext, trace: Trace) -> Flags:
        """Return the samples with the loss in which kernels leave SMs empty."""
        return super().where(context, trace) & (trace.levels.active <= _FILLED)

    def gain(self, context: AdviceContext, trace: Trace) -> float:
        """Return the loss in samples where kernels leave SMs empty; 0 if they are less than a tenth."""
        where = self.where(context, trace)
        return self.percent_lost(trace, where) if time_share(trace, where) >= 0.1 else 0.0

    def texts(self, context: AdviceContext, trace: Trace) -> tuple[str, str]:
        """Return the percentage of the time with the SMs' activity, and what to do."""
        active = self.mean(context, trace, "SM_ACTIVE")
        beside = f" (SMs {100 * active:.0f} % active)" if active is not None else ""
        waited = f"{self.percent_lost(trace):.0f} % of the time waiting between small kernels{beside}"
        return f"{self.affected_gpus(context)} spent {waited}.", self._action


class Compile(_Launch):
    """Rule: some time is lost between kernels; compile the model to fuse them."""

    name = "compile"
    knob = Knob("torch.compile", "https://docs.pytorch.org/docs/stable/generated/torch.compile.html")
    _action = "Compile the model, so that fewer and larger kernels run."


class CudaGraphs(_Launch):
    """Rule: much time is lost between kernels; launch them as one graph."""

    name = "cuda-graphs"
    knob = Knob(
        'torch.compile(mode="reduce-overhead")',
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs",
    )
    least = 20.0
    _action = "Record the step as a CUDA graph, so that it costs one launch."

    def gain_least(self, context: AdviceContext, trace: Trace) -> float:  # noqa: ARG002 - as in other rules
        """Return the percentage of time in which nothing ran between kernels: a graph has no such gaps."""
        gaps = np.minimum(trace.losses[self.loss], 1.0 - np.fmin(1.0, trace.levels.engine))
        return 100.0 * trace.mean(np.nan_to_num(gaps))


#: NVML's bits of clock-event reasons (nvmlClocksEventReasons).
_SETTING, _POWER, _HARDWARE = 0x02 | 0x10, 0x04 | 0x80, 0x08 | 0x20 | 0x40
#: At its power limit, a GPU that computes normally runs some per cent below its maximum clock.
_NORMAL_CAPPED = 15.0


class Capping(LossRule):
    """Rule: the clock of a GPU is below its maximum while it works."""

    name = "capping"
    knob = Knob("clocks and power limits", "https://docs.nvidia.com/deploy/nvidia-smi/index.html")
    loss = "capped"
    least = 3.0
    metrics = ("CLOCKS_EVENT_REASONS", "SM_CLOCK", "POWER_USAGE", "GPU_TEMP")

    def where(self, context: AdviceContext, trace: Trace) -> Flags:
        """Return the samples in which SMs have work and the clock is at least 5 % below its maximum."""
        return super().where(context, trace) & (trace.levels.clock <= 0.95)

    def gain(self, context: AdviceContext, trace: Trace) -> float:
        """Return the loss; 0 where only the power limit keeps the clock a little below its maximum."""
        lost = context.loss(self.loss)
        return (
            lost if self._reasons(context, trace) & (_HARDWARE | _SETTING) or lost >= _NORMAL_CAPPED else 0.0
        )

    def gain_least(self, context: AdviceContext, trace: Trace) -> float:
        """Return all of the loss if a setting lowered the clock: resetting it removes the loss; else 0."""
        return context.loss(self.loss) if self._reasons(context, trace) & _SETTING else 0.0

    def texts(self, context: AdviceContext, trace: Trace) -> tuple[str, str]:
        """Return the percentage of the time with clock, reason and temperature; and what to do."""
        heat = self.mean(context, trace, "GPU_TEMP")
        hot = f" at {heat:.0f} \u00b0C" if heat is not None else ""
        clock = 100 * float(np.mean(trace.levels.clock[self.where(context, trace) & trace.scored]))
        reasons = self._reasons(context, trace)
        clocks = "clocks" if len(self.named_gpus(context)) > 1 else "clock"
        cause, action = (
            (
                "Heat or the hardware",
                "Vet the node and report it to the site: another GPU of this model may run faster.",
            )
            if reasons & _HARDWARE
            else ("A setting", "See the application clocks in 'nvidia-smi -q -d CLOCK'.")
            if reasons & _SETTING
            else ("The power limit", "Ask the site about its power limits: the board allows more.")
            if reasons & _POWER
            else ("An unknown reason", "Record CLOCKS_EVENT_REASONS to see the reason.")
        )
        return (
            (
                f"{cause} kept the {clocks} of {self.inner_names(context)} at {clock:.0f} % of the maximum"
                f"{hot}, which cost {self.percent_lost(trace):.0f} % of the time."
            ),
            action,
        )

    def _reasons(self, context: AdviceContext, trace: Trace) -> int:
        values = context.column(trace, "CLOCKS_EVENT_REASONS")[self.where(context, trace) & trace.scored]
        bits = values[np.isfinite(values)].astype(np.int64)
        return int(np.bitwise_or.reduce(bits)) if len(bits) else 0


_OCCUPANCY_METRICS = ("SM_ACTIVE", "SM_OCCUPANCY", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "FB_USED")


class _Occupancy(LossRule):
    """Rule for a range of the share of the GPU's memory in use; without advice where that is unknown."""

    loss = "occupancy"
    least = 15.0
    metrics = _OCCUPANCY_METRICS
    _filled: tuple[float, float]
    _action: str

    def where(self, context: AdviceContext, trace: Trace) -> Flags:
        """Return the samples with the loss and high SM activity; at low activity, launch may be the cause."""
        return super().where(context, trace) & (trace.levels.active >= 0.5)

    def filled(self, context: AdviceContext, trace: Trace) -> float:
        """Return the largest share of the GPU's memory in use; NaN where unknown."""
        with np.errstate(invalid="ignore", divide="ignore"):
            filled = (context.column(trace, "FB_USED") / context.column(trace, "FB_TOTAL"))[trace.scored]
        return float(max(filled[np.isfinite(filled)], default=np.nan))

    def gain(self, context: AdviceContext, trace: Trace) -> float:
        """Return the loss; 0 where another share of the memory is in use, or it is unknown."""
        least, most = self._filled
        return super().gain(context, trace) if least <= self.filled(context, trace) < most else 0.0

    def texts(self, context: AdviceContext, trace: Trace) -> tuple[str, str]:
        """Return the percentage of the time with the memory in use, and what to do."""
        return (
            (
                f"{self.affected_gpus(context)} ran kernels with few warps, which kept neither pipes nor "
                f"memory busy, {self.percent_lost(trace):.0f} % of the time, with "
                f"{100 * self.filled(context, trace):.0f} % of memory in use."
            ),
            self._action,
        )


class BatchSize(_Occupancy):
    """Rule: occupancy is low and memory is free; use larger batches."""

    name = "batch-size"
    knob = Knob(
        "batch size", "https://docs.pytorch.org/docs/stable/data.html#loading-batched-and-non-batched-data"
    )
    _filled = (0.0, 0.6)
    _action = "Try a larger batch."


class ActivationCheckpointing(_Occupancy):
    """Rule: occupancy is low and memory is full; free memory for larger batches."""

    applies = TRAINING

    name = "activation-checkpointing"
    knob = Knob("torch.utils.checkpoint", "https://docs.pytorch.org/docs/stable/checkpoint.html")
    _filled = (0.9, np.inf)
    _action = "Use activation checkpointing to free memory for a larger batch; it recomputes activations."


class _TimeRule(ABC):
    """Rule whose advice saves time, while the score stays or falls."""

    name: str
    knob: Knob
    applies: Applicability

    def advice(
        self,
        sentence: str,
        action: str,
        saved: float,
        evidence: Evidence,
        *,
        gpus: Sequence[Trace],
        note: str = "",
    ) -> Advice:
        """Return the advice; ``saved`` is the share of the time that the same work takes less."""
        return Advice(
            self.name,
            sentence,
            action,
            0.0,
            time_saved_text(saved) + note,
            self.knob,
            (evidence,),
            self.applies.text,
            time_saved=saved,
            gpus=uuids_of(gpus),
        )

    @abstractmethod
    def _where(self, context: AdviceContext, trace: Trace) -> Flags:
        """Return the samples that show the pattern."""


class FusedOptimizer(_TimeRule):
    """Rule: memory-bound phases alternate with tensor work, as with an optimizer that is not fused."""

    name = "fused-optimizer"
    knob = Knob("torch.optim.AdamW(…, fused=True)", "https://docs.pytorch.org/docs/stable/optim.html")
    applies = TRAINING

    def find(self, context: AdviceContext) -> Advice | None:
        """Return the advice where such phases take from a tenth to half of the time."""
        where = partial(self._where, context)
        fraction, gpus, evidence = context.pattern(where, ("DRAM_ACTIVE", "PIPE_TENSOR_ACTIVE"))
        if not 0.1 <= fraction <= 0.5 or evidence is None:
            return None
        return self.advice(
            f"For {100 * fraction:.0f} % of the time {context.names(gpus, inside=True)} only moved memory "
            "between phases of matrix work.",
            "If that is the optimizer, use its fused form: steps become shorter at the same utilization.",
            fraction,
            evidence,
            gpus=gpus,
        )

    def _where(self, context: AdviceContext, trace: Trace) -> Flags:
        tensor = context.column(trace, "PIPE_TENSOR_ACTIVE")
        works = tensor[trace.scored] >= 0.2
        if works.mean() < 0.2:
            return np.zeros(len(tensor), np.bool_)
        return (context.column(trace, "DRAM_ACTIVE") >= 0.5) & (tensor < 0.05)


_SCORE_MAY_FALL = "; the score may even fall"

#: Models whose tensor pipes support FP8.
_FP8 = ("H100", "H200", "H800", "H20", "B200", "B300", "L4")

#: Activity of tensor pipes on integers and doubles, which FP8 can't replace.
_OTHER_TENSOR = ("PIPE_TENSOR_IMMA_ACTIVE", "PIPE_TENSOR_DFMA_ACTIVE")
#: Points of ``capped`` from which the clock is the first thing to fix.
_MAX_CAPPED = 10.0


class HalfPrecision(_TimeRule):
    """Rule: the FP32 pipe does work that tensor pipes could do."""

    name = "half-precision"
    knob = Knob(
        'torch.autocast("cuda", dtype=torch.bfloat16)', "https://docs.pytorch.org/docs/stable/amp.html"
    )
    applies = Applicability("work with matrices in FP32", precision=("fp32",))

    def find(self, context: AdviceContext) -> Advice | None:
        """Return the advice where FP32 is busy and tensor pipes are not, for a third of the time."""
        where = partial(self._where, context)
        fraction, gpus, evidence = context.pattern(where, ("PIPE_FP32_ACTIVE", "PIPE_TENSOR_ACTIVE"))
        if fraction < 0.33 or evidence is None:
            return None
        return self.advice(
            f"{context.names(gpus)} computed in FP32 for {100 * fraction:.0f} % of the time, without tensor "
            "pipes.",
            "Where matrices are multiplied, let autocast use bf16, or allow TF32.",
            # Tensor pipes take a fraction of the time that FP32 pipes take for the same product.
            fraction,
            evidence,
            gpus=gpus,
            note=_SCORE_MAY_FALL,
        )

    def _where(self, context: AdviceContext, trace: Trace) -> Flags:
        """Return the samples with FP32 busy, tensor pipes idle, and memory no busier than FP32."""
        single = context.column(trace, "PIPE_FP32_ACTIVE")
        binds = (single >= 0.3) & ~(context.column(trace, "DRAM_ACTIVE") > single)
        return binds & (context.column(trace, "PIPE_TENSOR_ACTIVE") < 0.05)


class QuarterPrecision(_TimeRule):
    """Rule: tensor pipes bind on a GPU that has FP8, probably in 16-bit floating point."""

    name = "quarter-precision"
    knob = Knob(
        "transformer_engine.pytorch.fp8_autocast",
        "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/index.html",
    )
    applies = Applicability("work in bf16 or fp16", precision=("bf16", "fp16"))

    def find(self, context: AdviceContext) -> Advice | None:
        """Return the advice where tensor pipes are near their ceiling for half of the time, at full clock."""
        models = {score.device.uuid: score.model for score in context.job.gpus}
        able = [trace for trace in context.scored if any(name in models[trace.device.uuid] for name in _FP8)]
        if not able or context.loss("capped") >= _MAX_CAPPED:
            return None
        where = partial(self._where, context)
        fraction, gpus, evidence = context.pattern(where, ("PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE"), able)
        if fraction < 0.5 or evidence is None:
            return None
        return self.advice(
            f"The tensor pipes of {context.names(gpus, inside=True)} were near their ceiling for "
            f"{100 * fraction:.0f} % of the time.",
            "Use FP8 if the model allows it: it does twice the work in the same time.",
            fraction / 2,
            evidence,
            gpus=gpus,
            note=_SCORE_MAY_FALL,
        )

    def _where(self, context: AdviceContext, trace: Trace) -> Flags:
        """Return the samples in which tensor pipes are busy, but not with integers or doubles."""
        tensor = context.column(trace, "PIPE_TENSOR_ACTIVE")
        others = np.fmax(*(context.column(trace, metric) for metric in _OTHER_TENSOR))
        return np.asarray((tensor >= 0.6) & ~(others >= 0.5 * tensor), np.bool_)
