"""How fast a GPU is reached from the host."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..attribution.statistics import summary
from ..check import CheckContext
from ..model import Finding, Scope, Verdict
from ..quantities import Quantity, shown
from .devices import measure


class HostCopy(Frozen):
    """Bytes per second from pinned host memory to each GPU, and back; the way there is the figure.

    The way back must reach a share of it, in the median and in a tenth of the samples.

    Parameters
    ----------
    bytes
        Size of the copy.
    seconds
        Per sample, at most.
    least_back
        Share of the way there: superchips are slower on the way back, by less than this.
    """

    type: ClassVar[str] = "host_copy"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 120.0
    uses_torch: ClassVar[bool] = True

    bytes: Annotated[Quantity, Field(ge=2**20, le=2**33)] = 2.0**28
    samples: Annotated[int, Field(ge=5, le=200)] = 7
    seconds: Annotated[float, Field(gt=0, le=60)] = 0.1
    least_back: Annotated[Quantity, Field(ge=0, le=1)] = 0.6

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU."""
        request = {"bytes": int(self.bytes), "samples": self.samples, "seconds": self.seconds}
        found = measure(context, "host_copy", request)  # type: ignore[arg-type]
        return [self._with_way_back(each) for each in found]

    def _with_way_back(self, finding: Finding) -> Finding:
        if finding.verdict is not Verdict.PASS or finding.figure is None:
            return finding
        given: Any = finding.evidence.get("to_host")
        back = [float(each) for each in given] if isinstance(given, list) else []
        if not back:
            reason = "The way back to the host was not measured."
            return finding.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "reason": reason})
        numbers = summary(back)
        if min(numbers.median, numbers.p10) >= self.least_back * finding.figure:
            return finding
        low, there = shown(numbers.p10, finding.unit), shown(finding.figure, finding.unit)
        reason = f"Back to the host {low} (a tenth of the samples), of {there} on the way there."
        fix = "Take another node, and tell the operators: one direction of the link is slow."
        return finding.model_copy(update={"verdict": Verdict.FAIL, "reason": reason, "fix": fix})
