"""All probes side by side, so that those which hang cost one time limit in all.

The answer of one probe, and of all of them.

Findings as lines for a terminal of 80 columns.
"""

import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from gipfel_cluster.model import Frozen, one_line

from .machine import Machine

#: ``missing`` alone keeps something that is needed from working; a ``warning`` costs something.
Status = Literal["ok", "missing", "warning", "not applicable"]


class Finding(Frozen):
    """Result of one probe: ``what`` is the case, and ``fix`` the command or line that changes it."""

    name: str
    group: str
    status: Status
    what: str
    fix: str = ""


class Subject(Frozen):
    """Subject of a probe, which makes its findings."""

    name: str
    group: str

    def ok(self, what: str) -> Finding:
        """Return that it works."""
        return self._finding("ok", what, "")

    def missing(self, what: str, fix: str) -> Finding:
        """Return that something needed does not work."""
        return self._finding("missing", what, fix)

    def warning(self, what: str, fix: str) -> Finding:
        """Return that something optional does not work, or will not for long."""
        return self._finding("warning", what, fix)

    def not_applicable(self, what: str, fix: str = "") -> Finding:
        """Return that this machine has no use for it; ``fix`` is how it would get one."""
        return self._finding("not applicable", what, fix)

    def _finding(self, status: Status, what: str, fix: str) -> Finding:
        return Finding(
            name=self.name, group=self.group, status=status, what=one_line(what), fix=one_line(fix)
        )


class Examination(Frozen):
    """All findings, in the order of their groups."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Return whether everything that is needed is there."""
        return not self.of("missing")

    def of(self, status: Status) -> tuple[Finding, ...]:
        """Return the findings of one status."""
        return tuple(each for each in self.findings if each.status == status)


#: Above what a probe's commands may take by themselves.
PROBE_SECONDS = 30.0


@dataclass(frozen=True)
class Probe:
    """A question and what answers it."""

    subject: Subject
    look: Callable[[Machine], Finding]


def examine(machine: Machine, probes: Iterable[Probe], *, seconds: float = PROBE_SECONDS) -> Examination:
    """Ask every probe; one that raises or takes longer than ``seconds`` is a finding by itself."""
    running = [_Running(probe, machine) for probe in probes]
    until = time.monotonic() + seconds
    return Examination(findings=tuple(each.finding(until, seconds) for each in running))


class _Running:
    """One probe in a thread of its own, which a file system that is gone may hold for ever."""

    def __init__(self, probe: Probe, machine: Machine) -> None:
        self._probe = probe
        self._machine = machine
        self._found: Finding | None = None
        self._thread = threading.Thread(target=self._look, daemon=True, name=probe.subject.name)
        self._thread.start()

    def _look(self) -> None:
        try:
            self._found = self._probe.look(self._machine)
        except Exception as error:  # noqa: BLE001 - one probe must not take the others' answers along
            self._found = self._probe.subject.warning(
                f"This could not be examined: {type(error).__name__}: {error}.", ""
            )

    def finding(self, until: float, seconds: float) -> Finding:
        self._thread.join(max(0.0, until - time.monotonic()))
        return self._found or self._probe.subject.missing(
            f"There was no answer within {seconds:.0f} s: a file system or a program hangs.",
            "Look for a mount that does not answer: timeout 5 df",
        )


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
