"""NVLink: whether every link is up, and its counters of errors."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, JsonValue

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..gpus.reading import GpuReading
from ..model import Finding, Scope, Verdict
from .gpus import failed, for_each, passed, unsaid


class NvLinks(Frozen):
    """All links are up and hardly ever had to repeat.

    Parameters
    ----------
    links
        How many must be up; None takes all that NVML lists.
    most_recoveries
        Times that a link had to be trained again.
    most_replays
        A healthy node of Alps had 95: replays alone convict nobody.
    required
        Whether a GPU without NVLink fails.
    """

    type: ClassVar[str] = "nvlink"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    links: Annotated[int, Field(ge=1, le=36)] | None = None
    most_recoveries: Annotated[int, Field(ge=0)] = 0
    most_replays: Annotated[int, Field(ge=0)] = 1000
    required: bool = True

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        if not gpu.nvlinks and not self.required and self.links is None:
            reason = "This GPU has no NVLink, as the protocol allows."
            evidence: dict[str, JsonValue] = {"applies": False, "left_out": True}
            return Finding(verdict=Verdict.NOT_RUN, reason=reason, evidence=evidence)
        if not gpu.nvlinks:
            return unsaid("anything of NVLink")
        unknown = [str(link.index) for link in gpu.nvlinks if link.active is None]
        if unknown:
            return unsaid(f"whether NVLink {', '.join(unknown)} is up")
        return self._of_links(gpu)

    def _of_links(self, gpu: GpuReading) -> Finding:
        up = [link for link in gpu.nvlinks if link.active]
        wanted = self.links or len(gpu.nvlinks)
        if len(up) < wanted:
            down = ", ".join(str(link.index) for link in gpu.nvlinks if not link.active)
            fix = "Take another node, and tell the operators: the link, its switch or its GPU needs them."
            return failed(
                f"{len(up)} of {wanted} NVLinks are up; down: {down or 'not listed'}.", fix, float(len(up))
            )
        recoveries = sum(link.recovery_errors or 0 for link in up)
        if recoveries > self.most_recoveries:
            fix = "Tell the operators; a bandwidth check says whether it costs anything."
            reason = f"NVLinks had to recover {recoveries} time(s)."
            return Finding(verdict=Verdict.DEGRADED, reason=reason, fix=fix, figure=float(recoveries))
        replays = sum((link.replay_errors or 0) + (link.crc_errors or 0) for link in up)
        if replays > self.most_replays:
            fix = "Tell the operators; a bandwidth check says whether it costs anything."
            reason = f"NVLinks repeated {replays} time(s)."
            return Finding(verdict=Verdict.DEGRADED, reason=reason, fix=fix, figure=float(replays))
        return passed(f"{len(up)} NVLinks are up, {replays} repetitions.", float(len(up)))
