"""Environment by the version of the network stack: what is right for one version is wrong for the next."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext, Missing
from ..model import Finding, Scope, Verdict
from .environment import compared


class NetworkStack(Frozen):
    """The variables of the network stack's version that is mounted here.

    Parameters
    ----------
    version_from
        A file whose first line is the version (an absolute path), or an environment variable.
    expected
        Version, with * and ?, to variable to value; null for one that must not be set. The first that fits
        counts.
    """

    type: ClassVar[str] = "network_stack"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 20.0

    version_from: Line = Field(min_length=1)
    expected: Mapping[Line, Mapping[str, str | None]] = Field(min_length=1)

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        version = self._version(context)
        for pattern, expected in self.expected.items():
            if fnmatchcase(version, pattern):
                found = compared(expected, context.environment)
                reason = f"Network stack {version}: {found.reason}"
                return [found.model_copy(update={"reason": reason, "evidence": {"version": version}})]
        reason = f"The protocol says nothing of network stack {version[:80]!r}."
        fix = f"Add this version to 'expected'; known are {', '.join(self.expected)}."
        return [Finding(verdict=Verdict.INCONCLUSIVE, reason=reason, fix=fix)]

    def _version(self, context: CheckContext) -> str:
        fix = "See whether the hook of the network stack is on in the EDF."
        if not self.version_from.startswith("/"):
            value = context.environment.get(self.version_from, "").strip()
            if not value:
                raise Missing(f"{self.version_from} is not set: the network stack has no version.", fix)
            return value
        try:
            lines = context.host.text(self.version_from).strip().splitlines()
        except OSError as error:
            raise Missing(f"{self.version_from} can't be read: {error.strerror}.", fix) from error
        if not lines:
            raise Missing(f"{self.version_from} is empty.", fix)
        return lines[0].strip()
