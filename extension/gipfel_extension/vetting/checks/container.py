"""Checks of the container: user and C library, environment, network stack, libraries."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar

from pydantic import Field, JsonValue

from gipfel_cluster.model import OneLine

from ..check import CheckContext, MissingRequirement, required
from ..model import Finding, Owner, failed, inconclusive, passed
from ..probing import ProbeAnswer, ProbeSpec, probe_file
from .gpus import BaseCheck


def _run_probe(
    context: CheckContext, report: str, request: dict[str, JsonValue], *, torch: bool = False
) -> ProbeAnswer:
    """Return the answer of the probe ``container``; raise MissingRequirement if the image has no Python."""
    spec = ProbeSpec(
        argv=(probe_file("container"), report),
        request=request,
        time_limit_s=context.time_limit_s * 0.9,
        torch=torch,
    )
    answer = context.probes.run(spec)
    if answer.missing:
        raise MissingRequirement(answer.error, "Use an image with Python.", Owner.IMAGE)
    return answer


class Container(BaseCheck):
    """Check that the user has a name, glibc is new enough, and torch can use the GPUs.

    Parameters
    ----------
    glibc
        Required version, such as 2.38, which the network libraries of Alps' hosts need; empty for any.
    torch
        Whether torch must be installed and see every GPU of the job.
    """

    time_limit_s: ClassVar[float] = 60.0
    uses_torch: ClassVar[bool] = True

    glibc: str = Field(default="", pattern=r"^(\d+\.\d+)?$")
    torch: bool = True

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        answer = _run_probe(context, "environment", {}, torch=True)
        finding = self._judge(answer.evidence, answer.error, context.expected_gpus)
        return [finding.model_copy(update={"evidence": answer.evidence})]

    def _judge(self, seen: Any, error: str, expected: int | None) -> Finding:  # noqa: PLR0911
        if error:
            return failed(
                error, "Check whether the image fits the driver, and whether the container has the GPUs."
            )
        if not seen.get("user"):
            fix = "Add your user to the image's /etc/passwd: programs that look up a name or a home fail."
            return failed(f"User {seen.get('uid')} has no name in the container.", fix)
        if self.glibc and not _new_enough(str(seen.get("libc", "")), self.glibc):
            return failed(
                f"The image has {seen.get('libc') or 'no glibc'}, not glibc {self.glibc}.",
                "Use a newer image.",
            )
        if not self.torch:
            return passed(f"User {seen['user']}, {seen.get('libc')}.")
        if not seen.get("torch"):
            cause = seen.get("torch_error") or "it is not installed"
            return failed(f"torch can't be imported: {cause}", "Use an image with torch.")
        if expected is not None and seen.get("gpus") != expected:
            fix = (
                "Check whether the image's torch is built for these GPUs, and whether the container has them."
            )
            return failed(f"torch sees {seen.get('gpus')} of {expected} GPUs.", fix)
        if expected is None and not seen.get("gpus") and seen.get("cuda"):
            reason = "torch sees no GPU, and it is unknown whether the job has one."
            return inconclusive(reason, "Run it in a job with GPUs.")
        return passed(
            f"User {seen['user']}, {seen.get('libc')}, torch {seen['torch']}, {seen.get('gpus')} GPU(s)."
        )


def _new_enough(libc: str, required: str) -> bool:
    name, _, version = libc.partition(" ")
    try:
        found = [int(part) for part in version.split(".")[:2]]
    except ValueError:
        return False
    return name == "glibc" and found >= [int(part) for part in required.split(".")]


class EnvironmentValues(BaseCheck):
    """Check that each variable has exactly the expected value, or is not set.

    Parameters
    ----------
    expected
        Variables and their values; null for one that must not be set.
    """

    time_limit_s: ClassVar[float] = 10.0

    expected: dict[str, str | None] = Field(min_length=1)

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        return [compare_environment(self.expected, context.environment)]


def compare_environment(expected: Mapping[str, str | None], environment: Mapping[str, str]) -> Finding:
    """Compare variables with what is expected; a value is not shown where none may be set."""
    wrong = []
    for name, value in sorted(expected.items()):
        if value is None and name in environment:
            wrong.append(f"{name} is set, and must not be")
        elif value is not None and name not in environment:
            wrong.append(f"{name} is not set, and must be {value[:80]!r}")
        elif value is not None and environment[name] != value:
            wrong.append(f"{name} is {environment[name][:80]!r}, not {value[:80]!r}")
    if wrong:
        fix = "Set it in the EDF's [env] or in the job. A hook of the site may set it too."
        return failed(f"{'; '.join(wrong[:6])}.", fix, float(len(wrong)))
    return passed(f"{len(expected)} variable(s) are as expected.", 0.0)


class NetworkStack(BaseCheck):
    """Check that variables have the values for the version of the mounted network stack.

    The stack is the host's libfabric and NCCL plugin, which a hook of the site mounts into containers.

    Parameters
    ----------
    version_from
        The absolute path of a file whose first line is the version, or an environment variable.
    expected
        For each pattern of versions (with * and ?), variables with their values; null for a variable that
        must not be set. The first pattern that matches is used.
    """

    time_limit_s: ClassVar[float] = 20.0

    version_from: OneLine = Field(min_length=1)
    expected: Mapping[OneLine, Mapping[str, str | None]] = Field(min_length=1)

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        version = self._version(context)
        for pattern, expected in self.expected.items():
            if fnmatchcase(version, pattern):
                found = compare_environment(expected, context.environment)
                reason = f"Network stack {version}: {found.reason}"
                return [found.model_copy(update={"reason": reason, "evidence": {"version": version}})]
        reason = f"The protocol has no entry for network stack {version[:80]!r}."
        fix = f"Add this version to 'expected', which has {', '.join(self.expected)}."
        return [inconclusive(reason, fix)]

    def _version(self, context: CheckContext) -> str:
        fix = "Check whether the EDF enables the hook of the network stack."
        if not self.version_from.startswith("/"):
            value = context.environment.get(self.version_from, "").strip()
            if not value:
                raise MissingRequirement(
                    f"{self.version_from} is not set: the network stack has no version.", fix
                )
            return value
        with required(f"{self.version_from} can't be read", fix):
            lines = context.host.text(self.version_from).strip().splitlines()
        if not lines:
            raise MissingRequirement(f"{self.version_from} is empty.", fix)
        return lines[0].strip()


class Libraries(BaseCheck):
    """Check that all shared libraries in a directory of the image can be loaded.

    Parameters
    ----------
    folder
        A directory such as ``/usr/local/cuda/lib64``.
    """

    time_limit_s: ClassVar[float] = 120.0

    folder: Annotated[OneLine, Field(min_length=1, max_length=1000)]

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        answer = _run_probe(context, "libraries", {"folder": self.folder})
        if answer.error:
            return [
                failed(f"{self.folder} can't be examined: {answer.error}", "Check whether the image has it.")
            ]
        seen: Any = answer.evidence
        if not seen.get("count"):
            return [failed(f"{self.folder} has no library.", "Check whether the image has it.")]
        if seen["broken"]:
            name, error = next(iter(seen["broken"].items()))
            reason = f"{len(seen['broken'])} of {seen['count']} libraries can't be loaded: {name}: {error}"
            return [failed(reason, "Correct the image or its mounts.")]
        return [passed(f"{seen['count']} libraries of {self.folder} can be loaded.")]
