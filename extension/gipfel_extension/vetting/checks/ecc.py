"""Errors of a GPU's memory since the driver was loaded."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..gpus.reading import GpuReading
from ..model import Finding, Scope, Verdict
from .gpus import failed, for_each, passed, unsaid


class Ecc(Frozen):
    """ECC is on, no uncorrected error, and not very many corrected ones.

    Parameters
    ----------
    most_corrected
        The lower of what Azure's (20 million) and Meta's (50 million) node checks allow.
    must_be_on
        Whether a GPU without ECC fails.
    """

    type: ClassVar[str] = "ecc"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    most_corrected: Annotated[int, Field(ge=0)] = 20_000_000
    must_be_on: bool = True

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        if gpu.ecc_enabled is False:
            if not self.must_be_on:
                return passed("ECC is off, as the protocol allows.")
            return failed("ECC is off.", "Ask the operators to turn it on, or take another node.")
        if gpu.ecc_uncorrected is None:
            return unsaid("how many memory errors it had")
        if gpu.ecc_uncorrected:
            fix = "Take another node, and tell the operators: the GPU needs a reset at least."
            return failed(
                f"{gpu.ecc_uncorrected} uncorrected memory error(s).", fix, float(gpu.ecc_uncorrected)
            )
        corrected = gpu.ecc_corrected or 0
        if corrected > self.most_corrected:
            reason = f"{corrected} corrected memory errors, more than {self.most_corrected}."
            fix = "Tell the operators: this memory is wearing out."
            return Finding(verdict=Verdict.DEGRADED, reason=reason, fix=fix, figure=float(corrected))
        return passed(f"No uncorrected memory error, {corrected} corrected.", 0.0)
