"""Report for a terminal: nodes and checks in 80 columns, problems first."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from gipfel_cluster.model import one_line

from .model import CheckResult, Owner, Severity, Verdict
from .report import NodeReport, VettingReport

WIDTH = 80
#: Stands for a space at which a line is not broken.
_GLUE = "\N{NO-BREAK SPACE}"
_MOST_ROWS = 16
_MOST_REASONS = 24
_NAME = 20
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: A shape and a word for each verdict; the second shape is for terminals without it.
SHAPES: Mapping[Verdict, tuple[str, str, str]] = {
    Verdict.PASS: ("✓", "+", "32"),
    Verdict.DEGRADED: ("~", "~", "33"),
    Verdict.INCONCLUSIVE: ("?", "?", "33"),
    Verdict.NOT_RUN: ("\N{EN DASH}", "-", "35"),
    Verdict.FAIL: ("✗", "x", "31"),
}
_WAITING, _RUNNING, _NOT_APPLICABLE = ("·", "."), ("◐", "o"), ("∅", "0")


class Table:
    """Formats reports as lines.

    Parameters
    ----------
    color
        Whether the terminal takes colors.
    plain
        Use letters alone, for a locale that can't write others.
    """

    def __init__(self, *, color: bool = False, plain: bool = False, width: int = WIDTH) -> None:
        self._color, self._plain, self._width = color, plain, max(40, width)

    def lines(self, report: VettingReport, *, most_rows: int = _MOST_ROWS) -> list[str]:
        """Return the whole report."""
        cells = _cells(report.results)
        untested = _not_applicable(report.results)
        shown = sorted(report.nodes, key=lambda each: each.vetted)[:most_rows]
        columns = len(report.checks) if len(report.checks) <= self._columns() else self._columns()
        lines = [self._title(report)]
        if report.nodes:
            lines.append(" " * (_NAME + 2) + " ".join(_letter(number) for number in range(columns)))
        marked: Mapping[tuple[str, str], Verdict | None] = {**untested, **cells}
        lines += [self._row(report, node, marked, columns) for node in shown]
        if len(report.nodes) > len(shown):
            lines.append(self._rest(report.nodes, shown))
        lines += self._legend(report, columns)
        if untested:
            lines.append(f"{_pick(_NOT_APPLICABLE, plain=self._plain)} n/a: nothing was measured")
        lines += self._reasons(report)
        return lines

    def _columns(self) -> int:
        return min(len(_LETTERS), (self._width - _NAME - 2 - 14) // 2)

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
        marks = []
        for check in report.checks[:columns]:
            key = next((each for each in ((node.node, check.name), ("", check.name)) if each in cells), None)
            if key is not None:
                verdict = cells[key]
                marks.append(
                    _pick(_NOT_APPLICABLE, plain=self._plain) if verdict is None else self._shape(verdict)
                )
            else:
                marks.append(_pick(_RUNNING if node.running == check.name else _WAITING, plain=self._plain))
        word = "" if report.ended_ns is None else node.verdict.value.replace("_", " ")
        return f"{_shortened(node.node, _NAME):<{_NAME}}  {' '.join(marks)}  {word}".rstrip()

    def _shape(self, verdict: Verdict) -> str:
        shape, plain, color = SHAPES[verdict]
        text = plain if self._plain else shape
        return f"\033[{color}m{text}\033[0m" if self._color else text

    def _rest(self, nodes: Sequence[NodeReport], shown: Sequence[NodeReport]) -> str:
        counts: dict[str, int] = {}
        names = {each.node for each in shown}
        for node in nodes:
            if node.node not in names:
                word = node.verdict.value.replace("_", " ")
                counts[word] = counts.get(word, 0) + 1
        return "and " + ", ".join(f"{count} more: {word}" for word, count in counts.items())

    def _legend(self, report: VettingReport, columns: int) -> list[str]:
        words = [
            f"{_letter(number)} {check.name}".replace(" ", _GLUE)
            for number, check in enumerate(report.checks[:columns])
        ]
        hidden = len(report.checks) - columns
        words += [f"and {hidden} more checks".replace(" ", _GLUE)] if hidden > 0 else []
        wrapped = textwrap.wrap("   ".join(words), self._width, break_on_hyphens=False)
        return [self._written(line.replace(_GLUE, " ")) for line in wrapped]

    def _reasons(self, report: VettingReport) -> list[str]:
        bad = [each for each in report.results if each.verdict is not Verdict.PASS and not each.left_out]
        bad.sort(key=lambda each: -each.verdict.rank)
        groups: dict[tuple[str, Verdict, Owner | None], list[CheckResult]] = {}
        for each in bad:
            groups.setdefault((each.reason, each.verdict, each.owner), []).append(each)
        lines: list[str] = []
        for (reason, verdict, owner), group in list(groups.items())[:_MOST_REASONS]:
            who = _names(each.node or each.subject for each in group)
            checks = _names(each.check for each in group)
            ended = reason if reason.endswith((".", "!", "?")) else f"{reason}."
            word = verdict.value.replace("_", " ")
            if all(each.severity is not Severity.ERROR for each in group):
                word += " (a warning)"
            whose = f" ({owner})" if owner not in {None, Owner.NODE} else ""
            text = f"{who}: {checks}: {word}{whose}: {ended} {group[0].fix}".rstrip()
            first = f"{self._shape(verdict)} "
            wrapped = textwrap.wrap(self._words(text), self._width - 2) or [""]
            lines += [first + wrapped[0], *(f"  {line}" for line in wrapped[1:])]
        if len(groups) > _MOST_REASONS:
            lines.append(f"and {len(groups) - _MOST_REASONS} more reasons in the report")
        return lines

    def _words(self, text: str) -> str:
        return self._written(one_line(text))

    def _written(self, text: str) -> str:
        return text.encode("ascii", "replace").decode() if self._plain else text

    def _cut(self, text: str) -> str:
        text = self._words(text)
        return text if len(text) <= self._width else text[: self._width - 3] + "..."


def _cells(results: Iterable[CheckResult]) -> dict[tuple[str, str], Verdict]:
    cells: dict[tuple[str, str], Verdict] = {}
    for each in results:
        if each.applies and (each.node or "|" not in each.subject):
            key = (each.node, each.check)
            cells[key] = max(cells.get(key, each.verdict), each.verdict, key=lambda verdict: verdict.rank)
    return cells


def _not_applicable(results: Iterable[CheckResult]) -> dict[tuple[str, str], None]:
    """Return the nodes and checks that measured nothing, because there was nothing to measure."""
    return {(each.node, each.check): None for each in results if not each.applies}


def _letter(number: int) -> str:
    return _LETTERS[number]


def _pick(shapes: tuple[str, str], *, plain: bool) -> str:
    return shapes[1 if plain else 0]


def _shortened(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _names(names: Iterable[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:4]) + (f" and {len(unique) - 4} more" if len(unique) > 4 else "")
