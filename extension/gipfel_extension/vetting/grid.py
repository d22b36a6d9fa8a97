"""Vetting report as a grid of nodes x checks with a limited number of rows, bad nodes first.

`make_grid` builds it for every view; `grid_html` renders it without scripts, for executed notebooks and
print.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from gipfel_cluster.model import Frozen, one_line, pluralize

from ..telemetry.figures.static_html import Cell, Html, cell, fragment, items, table, tag
from .model import CheckResult, Owner, Severity, Verdict
from .report import NodeReport, VettingReport

#: States of a cell without a verdict: its check is running or waiting, or had nothing to test (see
#: `CheckResult.applies`).
CellState = Literal["running", "waiting", "not_applicable"]
#: Verdict of a check on a node, or the reason why it has none.
CellVerdict = Verdict | CellState
#: A symbol for every verdict and state, so that they differ without colours.
CELL_SHAPES: Mapping[str, str] = {
    "pass": "✓",
    "degraded": "~",
    "inconclusive": "?",
    "not_run": "\N{EN DASH}",
    "fail": "✗",
    "running": "◐",
    "waiting": "·",
    "not_applicable": "n/a",
}
MAX_ROWS = 60
_MAX_COMPONENTS = 20
_MAX_NAMES = 4
_MAX_TEXT = 400


_CLASSES = {"fail": "bad", "degraded": "warn", "inconclusive": "warn", "not_run": "warn", "pass": "good"}


class GridCell(Frozen):
    """One check on one node: its verdict or state, and the reason in one sentence."""

    verdict: CellVerdict
    reason: str = ""


class GridRow(Frozen):
    """Row of one node; its cells are in the order of the checks."""

    node: str
    verdict: CellVerdict
    vetted: bool
    running: str = ""
    cells: tuple[GridCell, ...]


class FaultyComponent(Frozen):
    """Nodes, GPUs or links that have the same verdict for the same reason.

    Parameters
    ----------
    who
        Names of the nodes, GPUs or links.
    checks
        Names of the checks.
    owner
        Owner of the fault (see `Owner`), which may be another component; empty if unknown.
    """

    who: str
    checks: str
    verdict: CellVerdict
    reason: str
    fix: str = ""
    owner: str = ""


class VettingGrid(Frozen):
    """Part of a report that a page shows.

    Parameters
    ----------
    started_ns, ended_ns
        UTC nanoseconds.
    rows
        The first nodes; bad ones come first.
    more
        Number of nodes without a row, by verdict or state.
    done
        Number of nodes that have a verdict of every check.
    """

    protocol: str
    started_ns: int
    ended_ns: int | None
    complete: bool
    nodes: int
    vetted: int
    done: int
    checks: tuple[str, ...]
    rows: tuple[GridRow, ...]
    more: dict[CellVerdict, int]
    faulty_components: tuple[FaultyComponent, ...]
    more_faulty_components: int
    exclude: str
    outcome: str
    notes: tuple[str, ...]

    @property
    def heading(self) -> str:
        """Return the progress or the outcome as a short phrase."""
        nodes = pluralize(self.nodes, "node")
        if self.ended_ns is None:
            return f"{self.done} of {nodes} done ({self.protocol})"
        seconds = (self.ended_ns - self.started_ns) / 1e9
        end = "" if self.complete else ", not complete"
        return f"{self.vetted} of {nodes} vetted ({self.protocol}, {seconds:.0f} s{end})"


def make_grid(report: VettingReport, *, max_rows: int = MAX_ROWS) -> VettingGrid:
    """Return the grid of a report with at most `max_rows` rows."""
    by_cell = _results_by_cell(report.results)
    checks = [each.name for each in report.checks]
    done = sum(
        all((node.node, check) in by_cell or ("", check) in by_cell for check in checks)
        for node in report.nodes
    )
    ended = report.ended_ns is not None
    bad = {each.node for each in report.results if each.node and _is_bad(each)}
    ordered = sorted(report.nodes, key=lambda each: _sort_key(each, bad, ended=ended))
    shown = ordered[:max_rows]
    faults = group_faults(report.results)
    return VettingGrid(
        protocol=report.protocol,
        started_ns=report.started_ns,
        ended_ns=report.ended_ns,
        complete=report.complete,
        nodes=len(report.nodes),
        vetted=len(report.good_nodes),
        done=done,
        checks=tuple(checks),
        rows=tuple(_row(node, checks, by_cell, ended=ended) for node in shown),
        more=dict(Counter(_state(node, ended=ended) for node in ordered[max_rows:])),
        faulty_components=tuple(map(_faulty_component, faults[:_MAX_COMPONENTS])),
        more_faulty_components=max(0, len(faults) - _MAX_COMPONENTS),
        exclude=report.exclude,
        outcome=report.outcome,
        notes=report.notes,
    )


def _sort_key(node: NodeReport, bad: set[str], *, ended: bool) -> int:
    if ended:
        return -1 - node.verdict.rank if not node.vetted else 0
    return 0 if node.node in bad else 1


def _is_bad(result: CheckResult) -> bool:
    return (
        result.verdict is not Verdict.PASS and result.severity is Severity.ERROR and not result.not_required
    )


def _results_by_cell(results: Iterable[CheckResult]) -> dict[tuple[str, str], list[CheckResult]]:
    """Return the results by node and check, the worst first, without those of links, which have no cell."""
    by_cell: dict[tuple[str, str], list[CheckResult]] = {}
    for each in results:
        if each.node or "|" not in each.subject:
            by_cell.setdefault((each.node, each.check), []).append(each)
    for members in by_cell.values():
        members.sort(key=lambda each: -each.verdict.rank)
    return by_cell


def _row(
    node: NodeReport,
    checks: Sequence[str],
    by_cell: Mapping[tuple[str, str], list[CheckResult]],
    *,
    ended: bool,
) -> GridRow:
    return GridRow(
        node=node.node,
        verdict=_state(node, ended=ended),
        vetted=node.vetted,
        running=node.running,
        cells=tuple(_cell(node, check, by_cell, ended=ended) for check in checks),
    )


def _cell(
    node: NodeReport, check: str, by_cell: Mapping[tuple[str, str], list[CheckResult]], *, ended: bool
) -> GridCell:
    found = by_cell.get((node.node, check)) or by_cell.get(("", check))
    if not found:
        return GridCell(verdict="running" if not ended and node.running == check else "waiting")
    found = [each for each in found if each.applies] or found
    verdict: CellVerdict = found[0].verdict if found[0].applies else "not_applicable"
    return GridCell(verdict=verdict, reason=_reason(found, node.node))


def _state(node: NodeReport, *, ended: bool) -> CellVerdict:
    """Return the node's verdict; while the run continues, whether a check of it is running."""
    if ended:
        return node.verdict
    return "running" if node.running else "waiting"


def _reason(results: Sequence[CheckResult], node: str) -> str:
    worst = results[0]
    subject = "" if worst.subject in {"", node, "all"} else f"{worst.subject}: "
    others = sum(each.verdict is worst.verdict for each in results) - 1
    more = f" (and {others} more)" if others and worst.verdict is not Verdict.PASS else ""
    return _shorten(f"{subject}{worst.reason}{more}")


def group_faults(results: Iterable[CheckResult]) -> list[list[CheckResult]]:
    """Return the results that did not pass, those with the same verdict, reason and owner as one group."""
    bad = [each for each in results if each.verdict is not Verdict.PASS and not each.not_required]
    # Errors and failures come first; a check is usually "not run" because of another fault.
    rank = {Verdict.FAIL: 0, Verdict.DEGRADED: 1, Verdict.INCONCLUSIVE: 2, Verdict.NOT_RUN: 3}
    bad.sort(key=lambda each: (each.severity is not Severity.ERROR, rank[each.verdict]))
    groups: dict[tuple[str, Verdict, Owner | None], list[CheckResult]] = {}
    for each in bad:
        groups.setdefault((each.reason, each.verdict, each.owner), []).append(each)
    return list(groups.values())


def _faulty_component(group: Sequence[CheckResult]) -> FaultyComponent:
    first = group[0]
    return FaultyComponent(
        who=join_names(_subject_name(each) for each in group),
        checks=join_names(each.check for each in group),
        verdict=first.verdict,
        reason=_shorten(sentence(first.reason)),
        fix=_shorten(first.fix),
        owner=first.owner.value if first.owner else "",
    )


def sentence(reason: str) -> str:
    """Return a reason with a full stop, unless it has one."""
    return reason if reason.endswith((".", "!", "?")) else f"{reason}."


def _subject_name(result: CheckResult) -> str:
    if result.node and result.subject not in {"", result.node, "all"}:
        return f"{result.node} {result.subject}"
    return result.node or result.subject.replace("|", " to ")


def join_names(names: Iterable[str]) -> str:
    """Return the first different names, and how many more there are."""
    unique = list(dict.fromkeys(names))
    rest = f" and {len(unique) - _MAX_NAMES} more" if len(unique) > _MAX_NAMES else ""
    return ", ".join(unique[:_MAX_NAMES]) + rest


def _shorten(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def grid_html(grid: VettingGrid) -> Html:
    """Return the grid as one HTML element with its own style."""
    started = datetime.fromtimestamp(grid.started_ns / 1e9, UTC)
    time = tag("time", f"{started:%Y-%m-%d %H:%M} UTC", datetime=f"{started:%Y-%m-%dT%H:%M}Z")
    parts = [tag("p", tag("strong", f"Vetting: {one_line(grid.heading)}"), " ", tag("small", time))]
    if grid.rows:
        rows = [_row_cells(row, grid.checks) for row in grid.rows]
        parts.append(table(("node", *grid.checks, "verdict"), rows, row_heads=True, class_="grid"))
    if grid.more:
        rest = ", ".join(f"{number} {_spaced(state)}" for state, number in grid.more.items())
        parts.append(tag("p", f"and more nodes: {rest}"))
    if grid.faulty_components:
        parts.append(items(map(_component_html, grid.faulty_components)))
    if grid.more_faulty_components:
        parts.append(tag("p", f"and {grid.more_faulty_components} more reasons in the report"))
    if grid.outcome:
        parts.append(tag("p", one_line(grid.outcome)))
    if grid.exclude:
        parts.append(tag("p", tag("code", f"--exclude={grid.exclude}")))
    return fragment(*parts)


def _row_cells(row: GridRow, checks: tuple[str, ...]) -> tuple[object, ...]:
    return (
        one_line(row.node),
        *(_check_cell(check, each) for check, each in zip(checks, row.cells, strict=True)),
        _spaced(row.verdict),
    )


def _check_cell(check: str, found: GridCell) -> Cell:
    label = one_line(f"{check}: {_spaced(found.verdict)}. {found.reason}".strip())
    css_class = _CLASSES.get(found.verdict, "")
    return cell(CELL_SHAPES.get(found.verdict, "·"), class_=css_class, title=label, aria_label=label)


def _component_html(component: FaultyComponent) -> Html:
    head = f"{CELL_SHAPES.get(component.verdict, '')} {component.who}"
    owner = f" ({component.owner})" if component.owner not in {"", Owner.NODE} else ""
    text = (
        f"{component.checks}: {_spaced(component.verdict)}{owner}. {component.reason} {component.fix}".strip()
    )
    subject = tag("span", one_line(head), class_=_CLASSES.get(component.verdict, ""))
    return tag("span", subject, f" · {one_line(text)}")


def _spaced(verdict: str) -> str:
    return verdict.replace("_", " ")
