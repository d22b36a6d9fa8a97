"""Environment variables that must have exactly one value, or none."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..model import Finding, Scope
from .gpus import failed, passed


class EnvironmentValues(Frozen):
    """Each variable is exactly what is expected.

    Parameters
    ----------
    expected
        Variable to its value; null for one that must not be set.
    """

    type: ClassVar[str] = "environment"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 10.0

    expected: dict[str, str | None] = Field(min_length=1)

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        return [compared(self.expected, context.environment)]


def compared(expected: Mapping[str, str | None], given: Mapping[str, str]) -> Finding:
    """The finding for these expectations; no value is shown of a variable that must not be set."""
    wrong = []
    for name, value in sorted(expected.items()):
        if value is None and name in given:
            wrong.append(f"{name} is set, and must not be")
        elif value is not None and name not in given:
            wrong.append(f"{name} is not set, and must be {value[:80]!r}")
        elif value is not None and given[name] != value:
            wrong.append(f"{name} is {given[name][:80]!r}, not {value[:80]!r}")
    if wrong:
        fix = "Set it in the EDF's [env] or in the job; a hook of the site may set it as well."
        return failed(f"{'; '.join(wrong[:6])}.", fix, float(len(wrong)))
    return passed(f"{len(expected)} variable(s) are as expected.", 0.0)
