"""Findings as lines for a terminal of 80 columns."""

import textwrap
from collections.abc import Iterator

from .finding import Examination, Finding, Status

_WIDTH = 80
_NAME = 24
_MARKS: dict[Status, str] = {"ok": "✓", "missing": "✗", "warning": "!", "not applicable": "–"}  # noqa: RUF001 - a dash
_PLAIN: dict[Status, str] = {"ok": "+", "missing": "x", "warning": "!", "not applicable": "-"}
_WORDS: dict[Status, str] = {"ok": "", "missing": "missing: ", "warning": "warning: ", "not applicable": ""}
_COLOURS: dict[Status, str] = {"ok": "green", "missing": "red", "warning": "yellow", "not applicable": ""}


def colour_of(status: Status) -> str:
    """Return the name of a status's colour; empty for the terminal's own."""
    return _COLOURS[status]


def lines_of(examination: Examination, *, plain: bool = False) -> Iterator[tuple[str, Status | None]]:
    """Give the lines of a whole examination, each with the status that colours its mark.

    Parameters
    ----------
    plain
        For terminals that know ASCII alone.
    """
    group = ""
    for finding in examination.findings:
        if finding.group != group:
            if group:
                yield "", None
            group = finding.group
            yield group, None
        yield from _finding_lines(finding, plain=plain)
    yield "", None
    yield from ((line, None) for line in textwrap.wrap(summary(examination), _WIDTH))


def summary(examination: Examination) -> str:
    """Say in one line whether everything that is needed is here."""
    missing, warnings = examination.of("missing"), examination.of("warning")
    rest = f" Warnings: {len(warnings)}." if warnings else ""
    if missing:
        return f"Missing: {', '.join(each.name for each in missing)}.{rest}"
    return f"Everything that is needed is here.{rest}"


def _finding_lines(finding: Finding, *, plain: bool) -> Iterator[tuple[str, Status | None]]:
    mark = (_PLAIN if plain else _MARKS)[finding.status]
    indent = " " * (_NAME + 4)
    what = textwrap.wrap(
        f"{_WORDS[finding.status]}{finding.what}",
        _WIDTH - len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]
    yield f"  {mark} {finding.name:<{_NAME}}{what[0]}", finding.status
    yield from ((f"{indent}{line}", None) for line in what[1:])
    # The whole width, so that a command can be copied in one piece more often.
    arrow = "->" if plain else "→"
    if finding.fix:
        yield from (
            (line, None)
            for line in textwrap.wrap(
                finding.fix,
                _WIDTH,
                initial_indent=f"      {arrow} ",
                subsequent_indent="        ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
