"""A vetting before a server's start, in words and as the waiting page shows it."""

from collections.abc import Mapping
from html import escape

from gipfel_cluster.job.vetting import VettingProgress

_SHAPES: Mapping[str, str] = {
    "pass": "✓",
    "degraded": "~",
    "inconclusive": "?",
    "not_run": "\N{EN DASH}",
    "fail": "✗",
    "running": "◐",
    "waiting": "○",
}


def vetting_words(progress: VettingProgress) -> str:
    """How far it is in one line, or what came of it."""
    if progress.ended and progress.outcome:
        return f"Vetting: {progress.outcome}"
    nodes = f"{progress.nodes} node{'' if progress.nodes == 1 else 's'}"
    bad = f", {progress.bad} with a problem" if progress.bad else ""
    return f"Vetting by {progress.protocol}: {progress.done} of {nodes} done{bad}."


def vetting_page(progress: VettingProgress) -> str:
    """The same with a line for each node, as HTML; every text is escaped, since the job may say anything."""
    rows = []
    for row in progress.rows:
        word = row.state.replace("_", " ")
        said = row.words if row.state == "running" else f"{word}. {row.words}"
        words = escape(said if row.words else word)
        rows.append(
            f'<li><span aria-hidden="true">{_SHAPES[row.state]}</span> '
            f'<strong>{escape(row.node)}</strong> <span class="text-body-secondary">{words}</span></li>'
        )
    more = progress.nodes - len(progress.rows)
    if rows and more > 0:
        rows.append(f"<li>and {more} more</li>")
    listed = (
        f'<ul class="list-unstyled d-inline-block text-start small mb-0">{"".join(rows)}</ul>' if rows else ""
    )
    return f"<div>{escape(vetting_words(progress))}</div>{listed}"
