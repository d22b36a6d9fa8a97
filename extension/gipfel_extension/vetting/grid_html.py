"""The grid as HTML that needs no script: for an executed notebook and a report on paper."""

from datetime import UTC, datetime
from html import escape

from gipfel_cluster.model import one_line

from .grid import CELL_SHAPES, Culprit, GridRow, VettingGrid
from .model import Owner

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


def grid_html(grid: VettingGrid) -> str:
    """The grid as one element with its own style; every text in it is escaped."""
    when = datetime.fromtimestamp(grid.started_ns / 1e9, UTC)
    said = f'<time datetime="{when:%Y-%m-%dT%H:%M}Z">{when:%Y-%m-%d %H:%M} UTC</time>'
    parts = [f"<p><strong>Vetting: {_text(grid.heading)}</strong> <small>{said}</small></p>"]
    if grid.rows:
        heads = "".join(f"<th scope='col'>{_text(check)}</th>" for check in grid.checks)
        rows = "".join(_row(row, grid.checks) for row in grid.rows)
        parts.append(
            f"<div class='scroll'><table><thead><tr><th scope='col'>node</th>{heads}<th scope='col'>verdict"
            f"</th></tr></thead><tbody>{rows}</tbody></table></div>"
        )
    if grid.more:
        rest = ", ".join(f"{number} {_text(_word(word))}" for word, number in grid.more.items())
        parts.append(f"<p>and more nodes: {rest}</p>")
    if grid.culprits:
        parts.append(f"<ul>{''.join(map(_culprit, grid.culprits))}</ul>")
    if grid.more_culprits:
        parts.append(f"<p>and {grid.more_culprits} more reasons in the report</p>")
    if grid.outcome:
        parts.append(f"<p>{_text(grid.outcome)}</p>")
    if grid.exclude:
        parts.append(f"<p><code>--exclude={_text(grid.exclude)}</code></p>")
    return f"<div class='gipfel-vetting'>{_STYLE}{''.join(parts)}</div>"


def _row(row: GridRow, checks: tuple[str, ...]) -> str:
    cells = []
    for check, cell in zip(checks, row.cells, strict=True):
        said = _text(f"{check}: {_word(cell.verdict)}. {cell.reason}".strip())
        shape = CELL_SHAPES.get(cell.verdict, "·")
        cells.append(
            f'<td class=\'{_CLASSES.get(cell.verdict, "")}\' title="{said}" aria-label="{said}">{shape}</td>'
        )
    word = _text(_word(row.verdict))
    return f"<tr><th scope='row'>{_text(row.node)}</th>{''.join(cells)}<td>{word}</td></tr>"


def _culprit(culprit: Culprit) -> str:
    head = f"{CELL_SHAPES.get(culprit.verdict, '')} {culprit.who}"
    whose = f" ({culprit.owner})" if culprit.owner not in {"", Owner.NODE} else ""
    text = f"{culprit.checks}: {_word(culprit.verdict)}{whose}. {culprit.reason} {culprit.fix}".strip()
    kind = _CLASSES.get(culprit.verdict, "")
    return f"<li><span class='{kind}'>{_text(head)}</span> · {_text(text)}</li>"


def _word(verdict: str) -> str:
    return verdict.replace("_", " ")


def _text(text: str) -> str:
    """Escaped for an element and for an attribute; one line, and nothing that drives a terminal."""
    return escape(one_line(text), quote=True)
