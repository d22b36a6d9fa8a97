"""Precision: the same work on a faster pipe."""

import numpy as np

from ..levels import Flags
from ..result import Trace
from .model import Advice, Applies, Case, Knob, less_time, share

_SCORE = "; the score may even fall"

#: Models whose tensor pipes have FP8.
_FP8 = ("H100", "H200", "H800", "H20", "B200", "B300", "L4")

#: Tensor work that FP8 can't stand in for: integers, doubles.
_OTHER_TENSOR = ("PIPE_TENSOR_IMMA_ACTIVE", "PIPE_TENSOR_DFMA_ACTIVE")
#: Points of ``capped`` from which the clock is what is to be mended first.
_MOST_CAPPED = 10.0


class HalfPrecision:
    """The FP32 pipe works where tensor pipes could."""

    name = "half-precision"
    knob = Knob(
        'torch.autocast("cuda", dtype=torch.bfloat16)', "https://docs.pytorch.org/docs/stable/amp.html"
    )
    applies = Applies("work with matrices in FP32", precision=("fp32",))

    def find(self, case: Case) -> Advice | None:
        """The advice where FP32 is busy and tensor pipes are not, for a third of the time."""
        trace = max(case.scored, key=lambda each: share(each, self._where(case, each)))
        where = self._where(case, trace)
        evidence = case.evidence(trace, where, ("PIPE_FP32_ACTIVE", "PIPE_TENSOR_ACTIVE"))
        if share(trace, where) < 0.33 or evidence is None:
            return None
        sentence = (
            f"{case.name(trace.device)} computed in FP32 for {100 * share(trace, where):.0f} % of the time, "
            "its tensor pipes unused."
        )
        action = "Where matrices are multiplied, let autocast use bf16, or allow TF32."
        # Tensor pipes take a fraction of the time that FP32 pipes take for the same product.
        saved = share(trace, where)
        return Advice(
            self.name,
            sentence,
            action,
            0.0,
            less_time(saved) + _SCORE,
            self.knob,
            (evidence,),
            self.applies.text,
            saved=saved,
        )

    def _where(self, case: Case, trace: Trace) -> Flags:
        """Return where FP32 is busy, tensor pipes are not, and memory does not bind sooner than FP32."""
        with np.errstate(invalid="ignore"):
            single = case.column(trace, "PIPE_FP32_ACTIVE")
            binds = (single >= 0.3) & ~(case.column(trace, "DRAM_ACTIVE") > single)
            return binds & (case.column(trace, "PIPE_TENSOR_ACTIVE") < 0.05)


class QuarterPrecision:
    """Tensor pipes bind on a GPU that has FP8, in 16-bit floating point as far as the samples tell."""

    name = "quarter-precision"
    knob = Knob(
        "transformer_engine.pytorch.fp8_autocast",
        "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/index.html",
    )
    applies = Applies("work in bf16 or fp16", precision=("bf16", "fp16"))

    def find(self, case: Case) -> Advice | None:
        """The advice where tensor pipes are near their ceiling for half of the time, at full clock."""
        able = [trace for trace in case.scored if self._has_fp8(case, trace)]
        if not able or case.loss("capped") >= _MOST_CAPPED:
            return None
        trace = max(able, key=lambda each: share(each, self._where(case, each)))
        where = self._where(case, trace)
        evidence = case.evidence(trace, where, ("PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE"))
        if share(trace, where) < 0.5 or evidence is None:
            return None
        sentence = (
            f"The tensor pipes of {case.name(trace.device)} were near their ceiling for "
            f"{100 * share(trace, where):.0f} % of the time."
        )
        action = "FP8 does twice the work in the time, where the model allows it."
        saved = share(trace, where) / 2
        return Advice(
            self.name,
            sentence,
            action,
            0.0,
            less_time(saved) + _SCORE,
            self.knob,
            (evidence,),
            self.applies.text,
            saved=saved,
        )

    def _has_fp8(self, case: Case, trace: Trace) -> bool:
        models = {score.device.uuid: score.model for score in case.job.gpus}
        return any(name in models[trace.device.uuid] for name in _FP8)

    def _where(self, case: Case, trace: Trace) -> Flags:
        """Return where tensor pipes are busy, and not with integers or doubles."""
        with np.errstate(invalid="ignore"):
            tensor = case.column(trace, "PIPE_TENSOR_ACTIVE")
            others = np.fmax(*(case.column(trace, metric) for metric in _OTHER_TENSOR))
            return np.asarray((tensor >= 0.6) & ~(others >= 0.5 * tensor), np.bool_)
