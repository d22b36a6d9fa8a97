"""Requirement files of pip, and lists of requirements in other files."""

import re
from collections.abc import Iterator

from gipfel_cluster.installs import command_problems, logical_lines

from ..model import Finding, Severity
from .names import likely_meant

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?\s*(.*)")
_COMMIT = re.compile(r"@[0-9a-f]{40}(?:$|[#&\s])")
_SHOWN = 4
_SEVERITIES: dict[str, Severity] = {
    "piped-script": "high", "extra-index": "high", "insecure-index": "high", "unpinned-install": "low",
}  # fmt: skip


def problem_findings(text: str) -> Iterator[Finding]:
    """Yield a finding for each kind of problem of shell lines or options of pip."""
    for problem in command_problems(text):
        yield Finding(
            rule=problem.code,
            severity=_SEVERITIES[problem.code],
            message=f"Line {problem.line}: {problem.reason}: {problem.consequence}.",
            fix=problem.fix,
        )


def name_findings(names: Iterator[str]) -> Iterator[Finding]:
    """Yield a finding for each name that may be a typing error."""
    for name in dict.fromkeys(names):
        if meant := likely_meant(name):
            yield Finding(
                rule="similar-name",
                severity="high",
                message=f"{name[:80]} is one letter away from {meant}, and may be another package.",
                fix=f"Write {meant} if you mean that, else except this finding with the reason.",
            )


def requirements_findings(text: str) -> Iterator[Finding]:
    """Yield what is wrong with a requirements file. Source: pip's reference, Requirements File Format."""
    lines = [line.strip() for _, line in logical_lines(text) if line.strip()]
    # Options of a requirements file are those of the command.
    options = "\n".join(line if line.startswith("-") else "" for line in lines)
    yield from problem_findings(options)
    listed = [line for line in lines if not line.startswith("-")]
    yield from name_findings(match[1] for line in listed if (match := _REQUIREMENT.match(line)))
    loose = [line for line in listed if not _is_pinned(line)]
    if loose:
        names = ", ".join(re.split(r"[\s<>=!~;\[@]", line)[0][:60] for line in loose[:_SHOWN])
        more = f" and {len(loose) - _SHOWN} more" if len(loose) > _SHOWN else ""
        message = f"Without a version: {names}{more}. Each installation may bring other code."
        fix = "Lock them: uv pip compile --generate-hashes requirements.in -o requirements.txt."
        yield Finding(rule="unpinned-install", severity="low", message=message, fix=fix)
    elif listed and not any("--hash=" in line for line in listed):
        message = "Versions are pinned, but not their content: an index can deliver other files."
        fix = "Add hashes: uv pip compile --generate-hashes requirements.in -o requirements.txt."
        yield Finding(rule="no-hashes", severity="low", message=message, fix=fix)


def _is_pinned(line: str) -> bool:
    if re.match(r"(\S+\s*@\s*)?(git|hg|svn|bzr)\+", line):
        return _COMMIT.search(line) is not None
    return "==" in line or "--hash=" in line or " @ " in line or line.startswith((".", "/", "file:", "http"))
