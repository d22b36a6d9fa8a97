"""A launch on paper: in a saved or executed notebook or a terminal, without script or kernel."""

import html
import time
from collections.abc import Sequence
from typing import Any

from gipfel_cluster.model import counted
from gipfel_extension.training.launches.log_tail import LogRow
from gipfel_extension.training.launches.rank_files import HOW, VIEWER

_MOST_LINES = 200
_MOST_RANKS = 8
_WIDTH, _HEIGHT = 120, 24
#: Readable on white and on black; a word stands beside each.
COLOURS = ("#1f77b4", "#2e8b57", "#b26a00", "#a64ca6", "#c0392b", "#0f8a8a", "#7a6f00", "#7d6bd0")
_SHAPES = {
    "completed": "✓", "failed": "✗", "lost": "✗", "stopped": "■", "timeout": "✗", "preempted": "◇",
    "running": "●", "queued": "○", "vetting": "◐", "preflight": "◐", "silent": "?",
    "not started": "✗", "checked": "✓", "check failed": "✗",
}  # fmt: skip
MARKS = {"pass": "✓", "warn": "⚠", "fail": "✗", "unknown": "?"}


def headline(document: dict[str, Any]) -> str:
    """One line: which launch, its state, where it runs, how far it is."""
    word = str(document.get("word", "preflight"))
    which = " ".join(f"{document[each]}" for each in ("number", "name") if document.get(each))
    words = [f"{_SHAPES.get(word, '·')} launch{f' {which}' if which else ''}: {word}"]
    if document.get("node_count"):
        words.append(f"{counted(document['node_count'], 'node')}, {counted(document['ranks'], 'rank')}")
    words += figures(document)
    return " · ".join(words)


def figures(document: dict[str, Any]) -> list[str]:
    """Step, pace, rate, loss, score and restarts, each as words; those that nobody knows are left out."""
    progress, course = document.get("progress") or {}, document.get("course") or {}
    found = []
    if progress.get("step") is not None:
        total = f"/{progress['total']:,.0f}" if progress.get("total") else ""
        found.append(f"step {progress['step']:,.0f}{total}")
    if course.get("rate") is not None:
        found.append(f"{course['rate']:,.0f} {course['rate_name'].removesuffix('_per_s')}/s")
    if course.get("steps_per_s"):
        found.append(f"{course['steps_per_s']:.2g} steps/s")
    if course.get("losses"):
        found.append(f"loss {course['losses'][-1][1]:.4g}")
    if document.get("score") is not None:
        found.append(f"score {document['score']:.0f} of 100")
    if document.get("restarts"):
        found.append(f"restarts {document['restarts']}")
    return found


def launch_text(document: dict[str, Any], lines: Sequence[LogRow] = ()) -> str:
    """The launch as plain text; the log's last lines below it."""
    said = [headline(document)]
    if document.get("says"):
        said.append(f"  {document['says']}")
    said += [f"  {_outcome(each)}" for each in document.get("preflight", ())]
    said += [f"  {each}" for each in document.get("command", "").splitlines()]
    said += [f"  {each}" for each in document.get("traceback", "").splitlines()]
    said += [f"r{rank} | {text}" for rank, text, _, _ in list(lines)[-20:]]
    return "\n".join(said)


def launch_html(document: dict[str, Any], lines: Sequence[LogRow] = ()) -> str:
    """The launch as HTML without script: the command, the logs of all ranks and of each unfold."""
    e = html.escape
    parts = [f"<strong>{e(headline(document))}</strong>{_bar(document)}{_curve(document)}"]
    if document.get("says"):
        parts.append(f"<div>{e(str(document['says']))}</div>")
    if document.get("preflight"):
        outcomes = " ".join(f"<li>{e(_outcome(each))}</li>" for each in document["preflight"])
        parts.append(_fold("pre-flight", f"<ul>{outcomes}</ul>"))
    if document.get("command"):
        parts.append(_fold("the exact command", f"<pre>{e(document['command'])}</pre>"))
    if document.get("traceback"):
        rank = (document.get("failure") or {}).get("rank", "?")
        traceback = f"<pre>{e(document['traceback'])}</pre>"
        parts.append(_fold(f"traceback of rank {rank}, the first that failed", traceback, unfolded=True))
    if document.get("flight"):
        said = "".join(f"<li>{e(each)}</li>" for each in document["flight"])
        parts.append(_fold("torch's flight recorder", f"<ul>{said}</ul>"))
    parts += _logs(lines)
    parts.append(_places(document))
    return f"<div>{''.join(parts)}</div>"


def _logs(lines: Sequence[LogRow]) -> list[str]:
    ranks = sorted({line[0] for line in lines})
    folds = [("log of all ranks", list(lines))]
    if len(ranks) > 1:
        folds += [
            (f"rank {rank}", [each for each in lines if each[0] == rank]) for rank in ranks[:_MOST_RANKS]
        ]
    if errors := [each for each in lines if each[3]]:
        folds.append(("errors", errors))
    found = []
    for title, held in folds:
        if held:
            shown = held[-_MOST_LINES:]
            more = f", the last {len(shown)}" if len(shown) < len(held) else ""
            body = "\n".join(_line(each) for each in shown)
            clock = ", times in UTC" if any(each[2] for each in shown) else ""
            found.append(_fold(f"{title} ({len(held)} lines{more}{clock})", f"<pre>{body}</pre>"))
    return found


def _line(row: LogRow) -> str:
    rank, text, time_ms, _ = row
    when = time.strftime("%H:%M:%S ", time.gmtime(time_ms / 1000)) if time_ms else " " * len("00:00:00 ")
    colour = COLOURS[rank % len(COLOURS)]
    return f'{when}<span style="color:{colour}">r{rank} |</span> {html.escape(text)}'


def _fold(title: str, body: str, *, unfolded: bool = False) -> str:
    return f"<details{' open' if unfolded else ''}><summary>{html.escape(title)}</summary>{body}</details>"


def _bar(document: dict[str, Any]) -> str:
    fraction = (document.get("progress") or {}).get("fraction")
    if fraction is None:
        return ""
    return f' <progress max="1" value="{fraction:.3f}">{fraction:.0%}</progress> {fraction:.0%}'


def _curve(document: dict[str, Any]) -> str:
    losses = (document.get("course") or {}).get("losses") or ()
    if len(losses) < 2:
        return ""
    values = [each[1] for each in losses]
    low, high = min(values), max(values)
    points = " ".join(
        f"{_WIDTH * index / (len(values) - 1):.1f},"
        f"{2 + (_HEIGHT - 4) * (high - value) / ((high - low) or 1):.1f}"
        for index, value in enumerate(values)
    )
    label = f"loss from {values[0]:.4g} to {values[-1]:.4g}"
    line = f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>'
    return f' <svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{label}">{line}</svg>'


def _places(document: dict[str, Any]) -> str:
    folder = str(document.get("folder", ""))
    said = [f"folder {folder}"] if folder else []
    if document.get("notebook"):
        said.append(f"executed notebook {folder}/notebook.ipynb")
    if document.get("dumps"):
        said.append(f"flight recorder's dumps in {folder}/flight_recorder")
    shown = html.escape(" · ".join(said))
    if document.get("traces"):
        ranks = ", ".join(f"rank {rank}" for rank in document["traces"])
        link = f'<a href="{VIEWER}" target="_blank" rel="noopener noreferrer">Perfetto</a>'
        where = html.escape(f"{folder}/profile")
        shown += f"<div>profiler traces ({ranks}) in {where} open in {link}. {html.escape(HOW)}</div>"
    return f"<small>{shown}</small>"


def _outcome(outcome: dict[str, Any]) -> str:
    fix = f" {outcome['fix']}" if outcome.get("fix") and outcome["verdict"] != "pass" else ""
    return f"{MARKS.get(outcome['verdict'], '·')} {outcome['check']}: {outcome['message']}{fix}"
