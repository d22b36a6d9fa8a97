"""The verdict on a file with its findings, and the union of those on the members of an archive."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gipfel_cluster.model import one_line

from ..model import Finding, Verdict, worst

_MAX_FINDINGS = 50
_MAX_MESSAGE = 2000


@dataclass(frozen=True)
class Judgement:
    """A verdict and the findings that led to it; ``recognized`` is False for data of an unknown kind."""

    verdict: Verdict = "plain"
    findings: tuple[Finding, ...] = ()
    recognized: bool = True

    @classmethod
    def of(cls, findings: Iterable[tuple[Verdict, Finding]]) -> "Judgement":
        """Return the judgement that these findings lead to."""
        pairs = list(findings)
        clean = [
            each.model_copy(update={"message": one_line(each.message)[:_MAX_MESSAGE]}) for _, each in pairs
        ]
        return cls(worst(verdict for verdict, _ in pairs), tuple(clean[:_MAX_FINDINGS]))

    @classmethod
    def unclear(cls, why: str) -> "Judgement":
        """Return the judgement on a file that could not be judged."""
        message = f"It can't be judged: {why}."
        fix = "Load it only where you trust its author."
        return cls.of(
            [("not understood", Finding(rule="not-understood", severity="medium", message=message, fix=fix))]
        )

    @classmethod
    def union(cls, parts: Iterable["Judgement"]) -> "Judgement":
        """Return the judgement on a whole by those on its parts; findings that repeat count once."""
        found = list(parts)
        findings = dict.fromkeys(finding for part in found for finding in part.findings)
        return cls(worst(part.verdict for part in found), tuple(findings)[:_MAX_FINDINGS])

    def inside(self, member: str) -> "Judgement":
        """Return the same with the member's name before each message."""
        name = one_line(member)[:200]
        findings = (each.model_copy(update={"message": f"{name}: {each.message}"}) for each in self.findings)
        return replace(self, findings=tuple(findings))
