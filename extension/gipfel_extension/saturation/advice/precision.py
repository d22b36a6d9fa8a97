"""Rules about precision: the same work on a faster pipe."""

import numpy as np

from ..levels import Flags
from ..result import Trace
from .model import Advice, AdviceContext, Applicability, Knob, time_saved_text, time_share

_SCORE_MAY_FALL = "; the score may even fall"

#: Models whose tensor pipes have FP8.
_FP8 = ("H100", "H200", "H800", "H20", "B200", "B300", "L4")

#: Tensor work that FP8 can't replace: integers and doubles.
_OTHER_TENSOR = ("PIPE_TENSOR_IMMA_ACTIVE", "PIPE_TENSOR_DFMA_ACTIVE")
#: Points of ``capped`` from which the clock is the first thing to fix.
_MAX_CAPPED = 10.0


class HalfPrecision:
    """Rule: the FP32 pipe does work that tensor pipes could do."""

    name = "half-precision"
    knob = Knob(
        'torch.autocast("cuda", dtype=torch.bfloat16)', "https://docs.pytorch.org/docs/stable/amp.html"
    )
    applies = Applicability("work with matrices in FP32", precision=("fp32",))

    def find(self, context: AdviceContext) -> Advice | None:
        """Return the advice where FP32 is busy and tensor pipes are not, for a third of the time."""
        trace = max(context.scored, key=lambda each: time_share(each, self._where(context, each)))
        where = self._where(context, trace)
        evidence = context.evidence(trace, where, ("PIPE_FP32_ACTIVE", "PIPE_TENSOR_ACTIVE"))
        if time_share(trace, where) < 0.33 or evidence is None:
            return None
        sentence = (
            f"{context.name(trace.device)} computed in FP32 for {100 * time_share(trace, where):.0f} % "
            "of the time, without its tensor pipes."
        )
        action = "Where matrices are multiplied, let autocast use bf16, or allow TF32."
        # Tensor pipes take a fraction of the time that FP32 pipes take for the same product.
        saved = time_share(trace, where)
        return Advice(
            self.name,
            sentence,
            action,
            0.0,
            time_saved_text(saved) + _SCORE_MAY_FALL,
            self.knob,
            (evidence,),
            self.applies.text,
            time_saved=saved,
        )

    def _where(self, context: AdviceContext, trace: Trace) -> Flags:
        """Return the samples with FP32 busy, tensor pipes idle, and memory no busier than FP32."""
        with np.errstate(invalid="ignore"):
            single = context.column(trace, "PIPE_FP32_ACTIVE")
            binds = (single >= 0.3) & ~(context.column(trace, "DRAM_ACTIVE") > single)
            return binds & (context.column(trace, "PIPE_TENSOR_ACTIVE") < 0.05)


class QuarterPrecision:
    """Rule: tensor pipes bind on a GPU that has FP8, probably in 16-bit floating point."""

    name = "quarter-precision"
    knob = Knob(
        "transformer_engine.pytorch.fp8_autocast",
        "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/index.html",
    )
    applies = Applicability("work in bf16 or fp16", precision=("bf16", "fp16"))

    def find(self, context: AdviceContext) -> Advice | None:
        """Return the advice where tensor pipes are near their ceiling for half of the time, at full clock."""
        able = [trace for trace in context.scored if self._has_fp8(context, trace)]
        if not able or context.loss("capped") >= _MAX_CAPPED:
            return None
        trace = max(able, key=lambda each: time_share(each, self._where(context, each)))
        where = self._where(context, trace)
        evidence = context.evidence(trace, where, ("PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE"))
        if time_share(trace, where) < 0.5 or evidence is None:
            return None
        sentence = (
            f"The tensor pipes of {context.name(trace.device)} were near their ceiling for "
            f"{100 * time_share(trace, where):.0f} % of the time."
        )
        action = "Use FP8 if the model allows it: it does twice the work in the same time."
        saved = time_share(trace, where) / 2
        return Advice(
            self.name,
            sentence,
            action,
            0.0,
            time_saved_text(saved) + _SCORE_MAY_FALL,
            self.knob,
            (evidence,),
            self.applies.text,
            time_saved=saved,
        )

    def _has_fp8(self, context: AdviceContext, trace: Trace) -> bool:
        models = {score.device.uuid: score.model for score in context.job.gpus}
        return any(name in models[trace.device.uuid] for name in _FP8)

    def _where(self, context: AdviceContext, trace: Trace) -> Flags:
        """Return the samples in which tensor pipes are busy, and not with integers or doubles."""
        with np.errstate(invalid="ignore"):
            tensor = context.column(trace, "PIPE_TENSOR_ACTIVE")
            others = np.fmax(*(context.column(trace, metric) for metric in _OTHER_TENSOR))
            return np.asarray((tensor >= 0.6) & ~(others >= 0.5 * tensor), np.bool_)
