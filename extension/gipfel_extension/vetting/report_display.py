"""Vetting report for people: followed while another process runs it, and as a table for a terminal."""

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line

from .model import CheckResult, Owner, Severity, Verdict
from .report import REPORT, NodeReport, VettingReport, read_report

WIDTH = 80
#: Replaces a space at which a line must not be broken.
_NO_BREAK = "\N{NO-BREAK SPACE}"
_MAX_ROWS = 16
_MAX_REASONS = 24
_NAME_WIDTH = 20
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: For each verdict a symbol, its ASCII replacement, and the number of an ANSI color.
SYMBOLS: Mapping[Verdict, tuple[str, str, str]] = {
    Verdict.PASS: ("✓", "+", "32"),
    Verdict.DEGRADED: ("~", "~", "33"),
    Verdict.INCONCLUSIVE: ("?", "?", "33"),
    Verdict.NOT_RUN: ("\N{EN DASH}", "-", "35"),
    Verdict.FAIL: ("✗", "x", "31"),
}
_WAITING, _RUNNING, _NOT_APPLICABLE = ("·", "."), ("◐", "o"), ("∅", "0")


class ReportFile:
    """``vetting.json`` of a run folder, which is read again only when it has changed.

    Parameters
    ----------
    folder
        The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / REPORT
        #: Identifies the content that was read last; empty if nothing was read.
        self.version = ""
        self._problem: GipfelError | None = None
        self._report: VettingReport | None = None

    def refresh(self) -> bool:
        """Read the file if it has changed; return whether it has.

        Raises
        ------
        GipfelError
            The file can't be read, or is not a report.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            changed = self.version != ""
            self._report, self._problem, self.version = None, None, ""
            return changed
        except OSError as error:
            raise GipfelError(f"{self.path} can't be read: {error.strerror}.") from error
        version = f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"
        changed = version != self.version
        if changed:
            self._report, self._problem, self.version = None, None, version
            try:
                self._report = read_report(self.path.parent)
            except GipfelError as error:
                # The error is kept until the file changes, because a page asks every second.
                self._problem = error
        if self._problem is not None:
            raise self._problem
        return changed

    @property
    def report(self) -> VettingReport | None:
        """Return the report that was read last; None if there is none."""
        return self._report

    @property
    def changed_ns(self) -> int:
        """Return when the content that was read last had been written, UTC in nanoseconds; 0 for none."""
        return int(self.version.partition("-")[0], 16) if self.version else 0


def vet_argv(
    protocol: str, *, action: str = "report", skip_vetted: str = "", min_nodes: int | None = None
) -> tuple[str, ...]:
    """Return the command of ``gipfel vet`` with this interpreter; ``$GIPFEL_RUN`` gets its report.

    Parameters
    ----------
    protocol
        A file, or a name that `find_protocol` knows.
    skip_vetted
        A duration such as ``1 h``: nodes vetted within it don't run their own checks again.
    """
    argv = [sys.executable, "-I", "-m", "gipfel_extension.cli", "vet", f"--action={action}"]
    if skip_vetted:
        argv.append(f"--skip-vetted={skip_vetted}")
    if min_nodes is not None:
        argv.append(f"--min-nodes={min_nodes}")
    return (*argv, "--", protocol)


class Table:
    """Formatter of reports as lines of text.

    Parameters
    ----------
    color
        Whether the terminal supports colors.
    plain
        Whether to use ASCII only.
    """

    def __init__(self, *, color: bool = False, plain: bool = False, width: int = WIDTH) -> None:
        self._color, self._plain, self._width = color, plain, max(40, width)

    def lines(self, report: VettingReport, *, max_rows: int = _MAX_ROWS) -> list[str]:
        """Return the lines of the report, with at most `max_rows` nodes."""
        cells = _cells(report.results)
        untested = _not_applicable(report.results)
        shown = sorted(report.nodes, key=lambda each: each.vetted)[:max_rows]
        columns = len(report.checks) if len(report.checks) <= self._columns() else self._columns()
        lines = [self._title(report)]
        if report.nodes:
            lines.append(" " * (_NAME_WIDTH + 2) + " ".join(_letter(number) for number in range(columns)))
        by_cell: Mapping[tuple[str, str], Verdict | None] = {**untested, **cells}
        lines += [self._row(report, node, by_cell, columns) for node in shown]
        if len(report.nodes) > len(shown):
            lines.append(self._rest(report.nodes, shown))
        lines += self._legend(report, columns)
        if untested:
            lines.append(f"{_pick(_NOT_APPLICABLE, plain=self._plain)} n/a: nothing was measured")
        lines += self._reasons(report)
        return lines

    def _columns(self) -> int:
        return min(len(_LETTERS), (self._width - _NAME_WIDTH - 2 - 14) // 2)

    def _title(self, report: VettingReport) -> str:
        count = f"{len(report.nodes)} node{'s' if len(report.nodes) != 1 else ''}"
        checks = f"{len(report.checks)} check{'s' if len(report.checks) != 1 else ''}"
        end = report.ended_ns
        state = "" if end is None else f", {(end - report.started_ns) / 1e9:.0f} s"
        if end is not None and not report.complete:
            state += ", not complete"
        return self._cut(f"Vetting by {report.protocol}: {count}, {checks}{state}")

    def _row(
        self,
        report: VettingReport,
        node: NodeReport,
        cells: Mapping[tuple[str, str], Verdict | None],
        columns: int,
    ) -> str:
        symbols = []
        for check in report.checks[:columns]:
            key = next((each for each in ((node.node, check.name), ("", check.name)) if each in cells), None)
            if key is not None:
                verdict = cells[key]
                symbols.append(
                    _pick(_NOT_APPLICABLE, plain=self._plain) if verdict is None else self._symbol(verdict)
                )
            else:
                symbols.append(_pick(_RUNNING if node.running == check.name else _WAITING, plain=self._plain))
        verdict_text = "" if report.ended_ns is None else node.verdict.value.replace("_", " ")
        name = _shortened(node.node, _NAME_WIDTH)
        return f"{name:<{_NAME_WIDTH}}  {' '.join(symbols)}  {verdict_text}".rstrip()

    def _symbol(self, verdict: Verdict) -> str:
        symbol, plain, color = SYMBOLS[verdict]
        text = plain if self._plain else symbol
        return f"\033[{color}m{text}\033[0m" if self._color else text

    def _rest(self, nodes: Sequence[NodeReport], rows: Sequence[NodeReport]) -> str:
        counts: dict[str, int] = {}
        names = {each.node for each in rows}
        for node in nodes:
            if node.node not in names:
                verdict = node.verdict.value.replace("_", " ")
                counts[verdict] = counts.get(verdict, 0) + 1
        return "and " + ", ".join(f"{count} more: {verdict}" for verdict, count in counts.items())

    def _legend(self, report: VettingReport, columns: int) -> list[str]:
        words = [
            f"{_letter(number)} {check.name}".replace(" ", _NO_BREAK)
            for number, check in enumerate(report.checks[:columns])
        ]
        hidden = len(report.checks) - columns
        words += [f"and {hidden} more checks".replace(" ", _NO_BREAK)] if hidden > 0 else []
        wrapped = textwrap.wrap("   ".join(words), self._width, break_on_hyphens=False)
        return [self._printable(line.replace(_NO_BREAK, " ")) for line in wrapped]

    def _reasons(self, report: VettingReport) -> list[str]:
        bad = [each for each in report.results if each.verdict is not Verdict.PASS and not each.not_required]
        bad.sort(key=lambda each: -each.verdict.rank)
        groups: dict[tuple[str, Verdict, Owner | None], list[CheckResult]] = {}
        for each in bad:
            groups.setdefault((each.reason, each.verdict, each.owner), []).append(each)
        lines: list[str] = []
        for (reason, verdict, owner), group in list(groups.items())[:_MAX_REASONS]:
            subjects = _join_names(each.node or each.subject for each in group)
            checks = _join_names(each.check for each in group)
            sentence = reason if reason.endswith((".", "!", "?")) else f"{reason}."
            verdict_text = verdict.value.replace("_", " ")
            if all(each.severity is not Severity.ERROR for each in group):
                verdict_text += " (a warning)"
            owner_text = f" ({owner})" if owner not in {None, Owner.NODE} else ""
            text = f"{subjects}: {checks}: {verdict_text}{owner_text}: {sentence} {group[0].fix}".rstrip()
            first = f"{self._symbol(verdict)} "
            wrapped = textwrap.wrap(self._printable(one_line(text)), self._width - 2) or [""]
            lines += [first + wrapped[0], *(f"  {line}" for line in wrapped[1:])]
        if len(groups) > _MAX_REASONS:
            lines.append(f"and {len(groups) - _MAX_REASONS} more reasons in the report")
        return lines

    def _printable(self, text: str) -> str:
        return text.encode("ascii", "replace").decode() if self._plain else text

    def _cut(self, text: str) -> str:
        text = self._printable(one_line(text))
        return text if len(text) <= self._width else text[: self._width - 3] + "..."


def _cells(results: Iterable[CheckResult]) -> dict[tuple[str, str], Verdict]:
    cells: dict[tuple[str, str], Verdict] = {}
    for each in results:
        if each.applies and (each.node or "|" not in each.subject):
            key = (each.node, each.check)
            cells[key] = max(cells.get(key, each.verdict), each.verdict, key=lambda verdict: verdict.rank)
    return cells


def _not_applicable(results: Iterable[CheckResult]) -> dict[tuple[str, str], None]:
    """Return the nodes and checks that had nothing to measure."""
    return {(each.node, each.check): None for each in results if not each.applies}


def _letter(number: int) -> str:
    return _LETTERS[number]


def _pick(symbols: tuple[str, str], *, plain: bool) -> str:
    return symbols[1 if plain else 0]


def _shortened(name: str, max_length: int) -> str:
    return name if len(name) <= max_length else name[: max_length - 1] + "…"


def _join_names(names: Iterable[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:4]) + (f" and {len(unique) - 4} more" if len(unique) > 4 else "")
