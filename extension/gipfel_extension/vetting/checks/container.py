"""Whether the container is sane: its user has a name, its C library is new enough, torch can use the GPUs."""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext, Missing
from ..model import Finding, Owner, Scope, Verdict
from ..probing import ProbeSpec, probe_file
from .gpus import failed, passed


class Container(Frozen):
    """What the image's own Python says.

    Parameters
    ----------
    glibc
        Least version, such as 2.38, which the host's network stack on Alps needs; empty for any.
    torch
        Whether torch must be there and see every GPU of the job.
    """

    type: ClassVar[str] = "container"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 60.0
    uses_torch: ClassVar[bool] = True

    glibc: str = Field(default="", pattern=r"^(\d+\.\d+)?$")
    torch: bool = True

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        spec = ProbeSpec(argv=(probe_file("container"),), time_limit_s=context.time_limit_s * 0.9, torch=True)
        answer = context.probes.run(spec)
        if answer.missing:
            raise Missing(answer.error, "Choose an image with a Python.", Owner.IMAGE)
        seen: Any = answer.evidence
        finding = self._judged(seen, answer.error, context.expected_gpus)
        return [finding.model_copy(update={"evidence": answer.evidence})]

    def _judged(self, seen: Any, error: str, expected: int | None) -> Finding:  # noqa: PLR0911
        if error:
            return failed(
                error, "See whether the image fits the driver, and whether the GPUs are given to it."
            )
        if not seen.get("user"):
            fix = (
                "The image has no entry for you in /etc/passwd: programs that ask for a name or a home fail."
            )
            return failed(f"User {seen.get('uid')} has no name in the container.", fix)
        if self.glibc and not _new_enough(str(seen.get("libc", "")), self.glibc):
            return failed(
                f"The image has {seen.get('libc') or 'no glibc'}, not {self.glibc}.", "Take a newer image."
            )
        if not self.torch:
            return passed(f"User {seen['user']}, {seen.get('libc')}.")
        if not seen.get("torch"):
            why = seen.get("torch_error") or "it is not installed"
            return failed(f"torch can't be imported: {why}", "Choose an image with torch.")
        if expected is not None and seen.get("gpus") != expected:
            fix = "See whether the image's torch is built for these GPUs, and the container is given them."
            return failed(f"torch sees {seen.get('gpus')} of {expected} GPUs.", fix)
        if expected is None and not seen.get("gpus") and seen.get("cuda"):
            reason = "torch sees no GPU, and nobody says whether there must be one."
            return Finding(
                verdict=Verdict.INCONCLUSIVE, reason=reason, fix="Run it in a job that asks for GPUs."
            )
        return passed(
            f"User {seen['user']}, {seen.get('libc')}, torch {seen['torch']}, {seen.get('gpus')} GPU(s)."
        )


def _new_enough(libc: str, least: str) -> bool:
    name, _, version = libc.partition(" ")
    try:
        found = [int(part) for part in version.split(".")[:2]]
    except ValueError:
        return False
    return name == "glibc" and found >= [int(part) for part in least.split(".")]
