"""Report as a grid of nodes x checks, bad nodes first, as many rows as a page can show.

`grid_of` builds it for every view; `grid_html` draws it without scripts, for executed notebooks and paper.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from gipfel_cluster.model import Frozen, one_line

from .model import CheckResult, Owner, Severity, Verdict
from .report import NodeReport, VettingReport

#: What a cell holds that has no verdict yet.
RUNNING, WAITING = "running", "waiting"
#: What a cell holds whose check had nothing to look at, which vets nobody: see `CheckResult.applies`.
NOT_APPLICABLE = "not_applicable"
#: A shape for every word, since colours alone tell nothing to some.
CELL_SHAPES: Mapping[str, str] = {
    "pass": "✓",
    "degraded": "~",
    "inconclusive": "?",
    "not_run": "\N{EN DASH}",
    "fail": "✗",
    RUNNING: "◐",
    WAITING: "·",
    NOT_APPLICABLE: "n/a",
}
MOST_ROWS = 60
_MOST_CULPRITS = 20
_MOST_NAMES = 4
_LONGEST = 400
_STYLE = """<style>
.gipfel-vetting{color-scheme:light dark;font:13px/1.4 system-ui,sans-serif;max-width:100%}
.gipfel-vetting .scroll{overflow-x:auto}
.gipfel-vetting table{border-collapse:collapse}
.gipfel-vetting th,.gipfel-vetting td{background:none;border:1px solid #8886;padding:1px 6px;
text-align:center}
.gipfel-vetting th[scope=row]{font-weight:normal;text-align:left}
.gipfel-vetting thead th{font-weight:normal}
.gipfel-vetting table{font:inherit}
.gipfel-vetting .bad{color:var(--jp-error-color1,#c62828);font-weight:bold}
.gipfel-vetting .odd{color:var(--jp-warn-color1,#9a6700);font-weight:bold}
.gipfel-vetting .good{color:var(--jp-success-color1,#2e7d32)}
.gipfel-vetting li{overflow-wrap:anywhere}
@media (prefers-color-scheme:dark){.gipfel-vetting .bad{color:var(--jp-error-color1,#ff8a80)}
.gipfel-vetting .odd{color:var(--jp-warn-color1,#fc6)}
.gipfel-vetting .good{color:var(--jp-success-color1,#81c784)}}
</style>"""
_CLASSES = {"fail": "bad", "degraded": "odd", "inconclusive": "odd", "not_run": "odd", "pass": "good"}


class GridCell(Frozen):
    """One check on one node: a verdict, or one of the words above, with its reason in one sentence."""

    verdict: str
    reason: str = ""


class GridRow(Frozen):
    """One node; its cells are in the order of the checks."""

    node: str
    verdict: str
    vetted: bool
    running: str = ""
    cells: tuple[GridCell, ...]


class FaultyComponent(Frozen):
    """Nodes, GPUs or links that share a verdict, with its reason.

    The owner says whose fault it is, which may be none of theirs.
    """

    who: str
    checks: str
    verdict: str
    reason: str
    fix: str = ""
    owner: str = ""


class VettingGrid(Frozen):
    """A report, cut to what a page shows.

    Parameters
    ----------
    started_ns, ended_ns
        UTC, in nanoseconds.
    rows
        The first of all nodes, bad ones first.
    more
        Verdicts of the nodes without a row, and how many have each.
    done
        How many nodes have a verdict of every check.
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
    more: dict[str, int]
    culprits: tuple[FaultyComponent, ...]
    more_culprits: int
    exclude: str
    outcome: str
    notes: tuple[str, ...]

    @property
    def heading(self) -> str:
        """Return the progress or the outcome in a few words."""
        nodes = f"{self.nodes} node{'' if self.nodes == 1 else 's'}"
        if self.ended_ns is None:
            return f"{self.done} of {nodes} done ({self.protocol})"
        seconds = (self.ended_ns - self.started_ns) / 1e9
        end = "" if self.complete else ", not complete"
        return f"{self.vetted} of {nodes} vetted ({self.protocol}, {seconds:.0f} s{end})"


def grid_of(report: VettingReport, *, most_rows: int = MOST_ROWS) -> VettingGrid:
    """Return the grid of a report with at most `most_rows` rows."""
    found = _worst_of_each(report.results)
    checks = [each.name for each in report.checks]
    common = {check: found[("", check)] for check in checks if ("", check) in found}
    done = sum(
        all((node.node, check) in found or check in common for check in checks) for node in report.nodes
    )
    ended = report.ended_ns is not None
    accused = {each.node for each in report.results if each.node and _tells(each)}
    ordered = sorted(report.nodes, key=lambda each: _place(each, accused, ended=ended))
    shown = ordered[:most_rows]
    culprits = _faulty_components(report.results)
    return VettingGrid(
        protocol=report.protocol,
        started_ns=report.started_ns,
        ended_ns=report.ended_ns,
        complete=report.complete,
        nodes=len(report.nodes),
        vetted=len(report.good_nodes),
        done=done,
        checks=tuple(checks),
        rows=tuple(_row(node, checks, found, common, ended=ended) for node in shown),
        more=_counted(ordered[most_rows:], ended=ended),
        culprits=tuple(culprits[:_MOST_CULPRITS]),
        more_culprits=max(0, len(culprits) - _MOST_CULPRITS),
        exclude=report.exclude,
        outcome=report.outcome,
        notes=report.notes,
    )


def _place(node: NodeReport, accused: set[str], *, ended: bool) -> int:
    if ended:
        return -1 - node.verdict.rank if not node.vetted else 0
    return 0 if node.node in accused else 1


def _tells(result: CheckResult) -> bool:
    return result.verdict is not Verdict.PASS and result.severity is Severity.ERROR and not result.left_out


def _worst_of_each(results: Iterable[CheckResult]) -> dict[tuple[str, str], list[CheckResult]]:
    """Return the results by node and check, the worst first; those of links have no cell."""
    found: dict[tuple[str, str], list[CheckResult]] = {}
    for each in results:
        if each.node or "|" not in each.subject:
            found.setdefault((each.node, each.check), []).append(each)
    for members in found.values():
        members.sort(key=lambda each: -each.verdict.rank)
    return found


def _row(
    node: NodeReport,
    checks: Sequence[str],
    found: Mapping[tuple[str, str], list[CheckResult]],
    common: Mapping[str, list[CheckResult]],
    *,
    ended: bool,
) -> GridRow:
    cells = []
    for check in checks:
        own = found.get((node.node, check)) or common.get(check)
        if own:
            own = [each for each in own if each.applies] or own
            verdict = own[0].verdict.value if own[0].applies else NOT_APPLICABLE
            cells.append(GridCell(verdict=verdict, reason=_reason(own, node.node)))
        else:
            now = not ended and node.running == check
            cells.append(GridCell(verdict=RUNNING if now else WAITING))
    word = node.verdict.value if ended else RUNNING if node.running else WAITING
    return GridRow(node=node.node, verdict=word, vetted=node.vetted, running=node.running, cells=tuple(cells))


def _reason(results: Sequence[CheckResult], node: str) -> str:
    worst = results[0]
    whose = "" if worst.subject in {"", node, "all"} else f"{worst.subject}: "
    alike = sum(each.verdict is worst.verdict for each in results) - 1
    more = f" (and {alike} more)" if alike and worst.verdict is not Verdict.PASS else ""
    return _cut(f"{whose}{worst.reason}{more}")


def _faulty_components(results: Iterable[CheckResult]) -> list[FaultyComponent]:
    bad = [each for each in results if each.verdict is not Verdict.PASS and not each.left_out]
    # What decides, and what failed, comes first; "not run" follows from something else as a rule.
    rank = {Verdict.FAIL: 0, Verdict.DEGRADED: 1, Verdict.INCONCLUSIVE: 2, Verdict.NOT_RUN: 3}
    bad.sort(key=lambda each: (each.severity is not Severity.ERROR, rank[each.verdict]))
    groups: dict[tuple[str, Verdict, Owner | None], list[CheckResult]] = {}
    for each in bad:
        groups.setdefault((each.reason, each.verdict, each.owner), []).append(each)
    return [
        FaultyComponent(
            who=_names(_who(each) for each in group),
            checks=_names(each.check for each in group),
            verdict=verdict.value,
            reason=_cut(reason if reason.endswith((".", "!", "?")) else f"{reason}."),
            fix=_cut(group[0].fix),
            owner=owner.value if owner else "",
        )
        for (reason, verdict, owner), group in groups.items()
    ]


def _who(result: CheckResult) -> str:
    if result.node and result.subject not in {"", result.node, "all"}:
        return f"{result.node} {result.subject}"
    return result.node or result.subject.replace("|", " to ")


def _counted(nodes: Iterable[NodeReport], *, ended: bool) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in nodes:
        word = node.verdict.value if ended else RUNNING if node.running else WAITING
        counts[word] = counts.get(word, 0) + 1
    return counts


def _names(names: Iterable[str]) -> str:
    unique = list(dict.fromkeys(names))
    rest = f" and {len(unique) - _MOST_NAMES} more" if len(unique) > _MOST_NAMES else ""
    return ", ".join(unique[:_MOST_NAMES]) + rest


def _cut(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def grid_html(grid: VettingGrid) -> str:
    """Return the grid as one element with its own style; every text in it is escaped."""
    when = datetime.fromtimestamp(grid.started_ns / 1e9, UTC)
    said = f'<time datetime="{when:%Y-%m-%dT%H:%M}Z">{when:%Y-%m-%d %H:%M} UTC</time>'
    parts = [f"<p><strong>Vetting: {_text(grid.heading)}</strong> <small>{said}</small></p>"]
    if grid.rows:
        heads = "".join(f"<th scope='col'>{_text(check)}</th>" for check in grid.checks)
        rows = "".join(_html_row(row, grid.checks) for row in grid.rows)
        parts.append(
            f"<div class='scroll'><table><thead><tr><th scope='col'>node</th>{heads}<th scope='col'>verdict"
            f"</th></tr></thead><tbody>{rows}</tbody></table></div>"
        )
    if grid.more:
        rest = ", ".join(f"{number} {_text(_word(word))}" for word, number in grid.more.items())
        parts.append(f"<p>and more nodes: {rest}</p>")
    if grid.culprits:
        parts.append(f"<ul>{''.join(map(_component_html, grid.culprits))}</ul>")
    if grid.more_culprits:
        parts.append(f"<p>and {grid.more_culprits} more reasons in the report</p>")
    if grid.outcome:
        parts.append(f"<p>{_text(grid.outcome)}</p>")
    if grid.exclude:
        parts.append(f"<p><code>--exclude={_text(grid.exclude)}</code></p>")
    return f"<div class='gipfel-vetting'>{_STYLE}{''.join(parts)}</div>"


def _html_row(row: GridRow, checks: tuple[str, ...]) -> str:
    cells = []
    for check, cell in zip(checks, row.cells, strict=True):
        said = _text(f"{check}: {_word(cell.verdict)}. {cell.reason}".strip())
        shape = CELL_SHAPES.get(cell.verdict, "·")
        cells.append(
            f'<td class=\'{_CLASSES.get(cell.verdict, "")}\' title="{said}" aria-label="{said}">{shape}</td>'
        )
    word = _text(_word(row.verdict))
    return f"<tr><th scope='row'>{_text(row.node)}</th>{''.join(cells)}<td>{word}</td></tr>"


def _component_html(culprit: FaultyComponent) -> str:
    head = f"{CELL_SHAPES.get(culprit.verdict, '')} {culprit.who}"
    whose = f" ({culprit.owner})" if culprit.owner not in {"", Owner.NODE} else ""
    text = f"{culprit.checks}: {_word(culprit.verdict)}{whose}. {culprit.reason} {culprit.fix}".strip()
    kind = _CLASSES.get(culprit.verdict, "")
    return f"<li><span class='{kind}'>{_text(head)}</span> · {_text(text)}</li>"


def _word(verdict: str) -> str:
    return verdict.replace("_", " ")


def _text(text: str) -> str:
    """Return a text escaped for an element and for an attribute, on one line, without control characters."""
    return escape(one_line(text), quote=True)
