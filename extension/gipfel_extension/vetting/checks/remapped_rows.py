"""Rows of a GPU's memory that were replaced, or wait to be."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..gpus.reading import GpuReading
from ..model import Finding, Scope, Verdict
from .gpus import failed, for_each, passed, unsaid


class RemappedRows(Frozen):
    """No remapping failed or waits for a reset.

    Parameters
    ----------
    most_uncorrected
        Rows replaced after uncorrected errors; 512 is what an H100's spare rows allow, and Azure's limit.
    most_retired
        Pages, on GPUs that retire pages instead; Meta's limit is 10.
    """

    type: ClassVar[str] = "remapped_rows"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    most_uncorrected: Annotated[int, Field(ge=0)] = 512
    most_retired: Annotated[int, Field(ge=0)] = 10

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:  # noqa: PLR0911 - one for each thing that can be wrong
        rows = gpu.remapped
        if rows is None:
            return self._pages(gpu)
        reset = "Take another node, and ask the operators to reset this GPU."
        if rows.failed:
            return failed(
                "A row of memory could not be replaced.", "Take another node: this GPU needs replacing."
            )
        if rows.pending:
            return failed("Rows of memory wait for a reset to be replaced.", reset)
        if rows.uncorrected > self.most_uncorrected:
            text = f"{rows.uncorrected} rows were replaced after uncorrected errors."
            return failed(text, "Take another node, and tell the operators.", float(rows.uncorrected))
        if gpu.recovery_action:
            return failed("The driver asks for this GPU to be reset or its node rebooted.", reset)
        if rows.uncorrected:
            text = f"{rows.uncorrected} row(s) were replaced after uncorrected errors, none waits."
            return Finding(verdict=Verdict.PASS, reason=text, figure=float(rows.uncorrected))
        return passed(f"{rows.corrected} row(s) replaced, none waits.", 0.0)

    def _pages(self, gpu: GpuReading) -> Finding:
        if gpu.retired_pages is None:
            return unsaid("which rows or pages were replaced")
        count = float(gpu.retired_pages)
        if gpu.retired_pages > self.most_retired:
            return failed(
                f"{gpu.retired_pages} pages are retired.", "Take another node, and tell the operators.", count
            )
        return passed(f"{gpu.retired_pages} page(s) retired.", count)
