"""Vetting report for people: followed while another process runs it, and as a table for a terminal."""

import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line, pluralize

from .grid import GridRow, group_faults, join_names, make_grid, sentence
from .model import CheckResult, Owner, Severity
from .report import REPORT, VettingReport, read_report

WIDTH = 80
#: Replaces a space at which a line must not be broken.
_NO_BREAK = "\N{NO-BREAK SPACE}"
_MAX_ROWS = 16
_MAX_REASONS = 24
_NAME_WIDTH = 20
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: For each verdict or state a symbol, its ASCII replacement, and the number of an ANSI color or nothing.
SYMBOLS: Mapping[str, tuple[str, str, str]] = {
    "pass": ("✓", "+", "32"),
    "degraded": ("~", "~", "33"),
    "inconclusive": ("?", "?", "33"),
    "not_run": ("\N{EN DASH}", "-", "35"),
    "fail": ("✗", "x", "31"),
    "running": ("◐", "o", ""),
    "waiting": ("·", ".", ""),
    "not_applicable": ("∅", "0", ""),
}


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
        #: The report that was read last; None if there is none.
        self.report: VettingReport | None = None
        self._problem: GipfelError | None = None

    def refresh(self) -> bool:
        """Read the file if it has changed; return whether it has.

        Raises
        ------
        GipfelError
            The file can't be read, or is not a report.
        """
        try:
            status = self.path.stat()
            version = f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"
        except FileNotFoundError:
            version = ""
        except OSError as error:
            raise GipfelError(f"{self.path} can't be read: {error.strerror}.") from error
        changed = version != self.version
        if changed:
            self.report, self._problem, self.version = None, None, version
            try:
                self.report = read_report(self.path.parent) if version else None
            except GipfelError as error:
                # The error is kept until the file changes, because a page asks every second.
                self._problem = error
        if self._problem is not None:
            raise self._problem
        return changed

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
        grid = make_grid(report, max_rows=max_rows)
        columns = min(len(grid.checks), len(_LETTERS), (self._width - _NAME_WIDTH - 2 - 14) // 2)
        lines = [self._title(report)]
        if grid.rows:
            lines.append(" " * (_NAME_WIDTH + 2) + " ".join(_LETTERS[:columns]))
        lines += [self._row(row, columns, ended=report.ended_ns is not None) for row in grid.rows]
        if grid.more:
            counts = [f"{count} more: {state.replace('_', ' ')}" for state, count in grid.more.items()]
            lines.append(f"and {', '.join(counts)}")
        lines += self._legend(grid.checks, columns)
        if not all(each.applies for each in report.results):
            lines.append(f"{self._symbol('not_applicable')} n/a: nothing was measured")
        return lines + self._reasons(report.results)

    def _title(self, report: VettingReport) -> str:
        count, checks = pluralize(len(report.nodes), "node"), pluralize(len(report.checks), "check")
        end = report.ended_ns
        state = "" if end is None else f", {(end - report.started_ns) / 1e9:.0f} s"
        if end is not None and not report.complete:
            state += ", not complete"
        return self._cut(f"Vetting by {report.protocol}: {count}, {checks}{state}")

    def _row(self, row: GridRow, columns: int, *, ended: bool) -> str:
        symbols = " ".join(self._symbol(cell.verdict) for cell in row.cells[:columns])
        verdict_text = row.verdict.replace("_", " ") if ended else ""
        return f"{_shortened(row.node, _NAME_WIDTH):<{_NAME_WIDTH}}  {symbols}  {verdict_text}".rstrip()

    def _symbol(self, verdict: str) -> str:
        symbol, plain, color = SYMBOLS[verdict]
        text = plain if self._plain else symbol
        return f"\033[{color}m{text}\033[0m" if self._color and color else text

    def _legend(self, checks: Sequence[str], columns: int) -> list[str]:
        words = [
            f"{letter} {check}".replace(" ", _NO_BREAK)
            for letter, check in zip(_LETTERS, checks[:columns], strict=False)
        ]
        hidden = len(checks) - columns
        words += [f"and {hidden} more checks".replace(" ", _NO_BREAK)] if hidden > 0 else []
        wrapped = textwrap.wrap("   ".join(words), self._width, break_on_hyphens=False)
        return [self._printable(line.replace(_NO_BREAK, " ")) for line in wrapped]

    def _reasons(self, results: Sequence[CheckResult]) -> list[str]:
        groups = group_faults(results)
        lines: list[str] = []
        for group in groups[:_MAX_REASONS]:
            first = group[0]
            subjects = join_names(each.node or each.subject for each in group)
            checks = join_names(each.check for each in group)
            is_warning = all(each.severity is not Severity.ERROR for each in group)
            verdict = first.verdict.value.replace("_", " ") + (" (a warning)" if is_warning else "")
            owner = f" ({first.owner})" if first.owner not in {None, Owner.NODE} else ""
            text = f"{subjects}: {checks}: {verdict}{owner}: {sentence(first.reason)} {first.fix}".rstrip()
            wrapped = textwrap.wrap(self._printable(one_line(text)), self._width - 2) or [""]
            lines.append(f"{self._symbol(first.verdict)} {wrapped[0]}")
            lines += [f"  {line}" for line in wrapped[1:]]
        if len(groups) > _MAX_REASONS:
            lines.append(f"and {len(groups) - _MAX_REASONS} more reasons in the report")
        return lines

    def _printable(self, text: str) -> str:
        return text.encode("ascii", "replace").decode() if self._plain else text

    def _cut(self, text: str) -> str:
        text = self._printable(one_line(text))
        return text if len(text) <= self._width else text[: self._width - 3] + "..."


def _shortened(name: str, max_length: int) -> str:
    return name if len(name) <= max_length else name[: max_length - 1] + "…"
