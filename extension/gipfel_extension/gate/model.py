"""Values of a scan: findings, the judgement on one file, and the document of ``gipfel scan --json``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import field_validator

from gipfel_cluster.image_verdict import Excepted
from gipfel_cluster.model import Frozen, one_line, printable

__all__ = [
    "SEVERITIES",
    "VERDICTS",
    "Excepted",
    "Finding",
    "Item",
    "Judgement",
    "Package",
    "ScanDocument",
    "Severity",
    "Verdict",
    "Vulnerability",
    "shown",
    "worst",
]

Severity = Literal["low", "medium", "high", "critical"]
Verdict = Literal["plain", "needs code", "not understood", "malicious"]

SEVERITIES: tuple[Severity, ...] = ("low", "medium", "high", "critical")
#: From harmless to harmful: loading only builds values; loading runs code that comes with it or that it
#: needs; it could not be judged; it does harm. An archive gets the worst verdict of its members.
VERDICTS: tuple[Verdict, ...] = ("plain", "needs code", "not understood", "malicious")


class _Foreign(Frozen):
    """Base of models with text from scanned files, which may have unpaired surrogates; these are escaped."""

    @field_validator("*", mode="before")
    @classmethod
    def _printable(cls, value: object) -> object:
        return printable(value) if isinstance(value, str) else value


class Finding(_Foreign):
    """One reason for a verdict; `rule` identifies the kind of problem, `fix` says what to do about it."""

    rule: str
    severity: Severity
    message: str
    fix: str = ""


class Item(_Foreign):
    """A scanned file; ``path`` names members of an archive as ``outer!member``."""

    path: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()


class Package(_Foreign):
    """An installed package.

    ``ecosystem`` is OSV's name, such as ``Debian:12`` or ``PyPI``; empty if OSV has none. ``path`` is the
    file that the package was found in. ``source`` and ``source_version`` are the name and version that
    advisories use, such as those of Debian's source package; empty if they use the package's own. ``owner``
    is the package of the operating system (deb, rpm) that has this Python package in it, and whose advisories
    apply instead of PyPI's; empty if there is none.
    """

    ecosystem: str
    name: str
    version: str
    path: str
    source: str = ""
    source_version: str = ""
    owner: str = ""

    @property
    def advisory_name(self) -> str:
        """Return the name that advisories use."""
        return self.source or self.name

    @property
    def advisory_version(self) -> str:
        """Return the version to compare with advisories."""
        return self.source_version or self.version


class Vulnerability(_Foreign):
    """An advisory that applies to a package; ``fixed`` is empty if no fixed version is known.

    ``fix`` names the line to change in the Containerfile or EDF, and its new text.
    """

    id: str
    aliases: tuple[str, ...] = ()
    severity: Severity
    ecosystem: str
    package: str
    version: str
    fixed: str = ""
    summary: str = ""
    fix: str = ""


class ScanDocument(Frozen):
    """The result of a scan.

    ``not_judged`` has a line for what should have been judged and could not be, ``not_scanned`` a line for
    what a scan of this kind of target never reads. ``other_files`` counts files of kinds that can't hold code
    that runs on loading; only their kind was determined. ``advisories_age_s`` is None without advisories.
    ``digests`` maps each image to the SHA-256 of its content. ``advisories_complete`` is False if a package
    or an advisory could not be judged, so that vulnerabilities may be missing.
    """

    items: tuple[Item, ...] = ()
    packages: tuple[Package, ...] = ()
    vulnerabilities: tuple[Vulnerability, ...] = ()
    advisories_age_s: float | None = None
    not_judged: tuple[str, ...] = ()
    not_scanned: tuple[str, ...] = ()
    excepted: tuple[Excepted, ...] = ()
    other_files: int = 0
    digests: Mapping[str, str] = {}
    advisories_complete: bool = True

    def severities(self) -> Iterable[Severity]:
        """Yield the severity of each finding and vulnerability."""
        for item in self.items:
            yield from (finding.severity for finding in item.findings)
        yield from (each.severity for each in self.vulnerabilities)

    def exit_status(self, bound: Severity) -> int:
        """Return 1 if something at or above the bound was found, 2 if something was not judged, else 0."""
        least = SEVERITIES.index(bound)
        if any(SEVERITIES.index(each) >= least for each in self.severities()):
            return 1
        # An item without findings does not count: all of its findings were accepted.
        unclear = any(item.verdict == "not understood" and item.findings for item in self.items)
        return 2 if unclear or self.not_judged else 0


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of some verdicts; ``plain`` if there are none."""
    return max(verdicts, key=VERDICTS.index, default="plain")


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
        """Combine pairs of a verdict and a finding into a judgement, which has the worst of the verdicts."""
        pairs = list(findings)
        clean = [
            each.model_copy(update={"message": one_line(each.message)[:_MAX_MESSAGE]}) for _, each in pairs
        ]
        return cls(worst(verdict for verdict, _ in pairs), tuple(clean[:_MAX_FINDINGS]))

    @classmethod
    def unclear(cls, why: str) -> "Judgement":
        """Return the judgement ``not understood``, with the reason."""
        message = f"It could not be judged: {why}."
        fix = "Load it only where you trust its author."
        return cls.of(
            [("not understood", Finding(rule="not-understood", severity="medium", message=message, fix=fix))]
        )

    @classmethod
    def union(cls, parts: Iterable["Judgement"]) -> "Judgement":
        """Return the judgement on an archive, given those on its members; repeated findings count once."""
        found = list(parts)
        findings = dict.fromkeys(finding for part in found for finding in part.findings)
        return cls(worst(part.verdict for part in found), tuple(findings)[:_MAX_FINDINGS])

    def inside(self, member: str) -> "Judgement":
        """Return this judgement with the member's name before each message."""
        name = one_line(member)[:200]
        findings = (each.model_copy(update={"message": f"{name}: {each.message}"}) for each in self.findings)
        return replace(self, findings=tuple(findings))


def shown(path: str) -> str:
    """Return a path for display, with U+FFFD in place of bytes that are not UTF-8."""
    return path.encode(errors="surrogateescape").decode(errors="replace")
