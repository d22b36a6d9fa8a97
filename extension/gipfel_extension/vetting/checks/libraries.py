"""Whether every shared library of a folder can be loaded."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext, Missing
from ..model import Finding, Owner, Scope, Verdict
from ..probing import ProbeSpec, probe_file
from .gpus import failed


class Libraries(Frozen):
    """All libraries of a folder of the image load.

    Parameters
    ----------
    folder
        Such as ``/usr/local/cuda/lib64``.
    """

    type: ClassVar[str] = "libraries"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 120.0

    folder: Annotated[Line, Field(min_length=1, max_length=1000)]

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        spec = ProbeSpec(
            argv=(probe_file("libraries"),),
            request={"folder": self.folder},
            time_limit_s=context.time_limit_s * 0.9,
        )
        answer = context.probes.run(spec)
        if answer.missing:
            raise Missing(answer.error, "Choose an image with a Python.", Owner.IMAGE)
        if answer.error:
            return [
                failed(f"{self.folder} can't be looked at: {answer.error}", "See whether the image has it.")
            ]
        seen: Any = answer.evidence
        if not seen.get("count"):
            return [failed(f"{self.folder} holds no library.", "See whether the image has it.")]
        if seen["broken"]:
            name, said = next(iter(seen["broken"].items()))
            reason = f"{len(seen['broken'])} of {seen['count']} libraries can't be loaded: {name}: {said}"
            return [failed(reason, "Mend the image, or what is mounted into it.")]
        return [Finding(verdict=Verdict.PASS, reason=f"{seen['count']} libraries of {self.folder} load.")]
