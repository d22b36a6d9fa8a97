"""Static views of launches: text and HTML for saved notebooks and terminals, and tables.

`FollowedLaunch` polls a launch. `launch_text` and `launch_html` render its document, which is the dictionary
of `gipfel_extension.training.launch_summary.summarize` with a few more keys. `launches` lists existing
launches.
"""

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from gipfel_cluster.model import GipfelError, pluralize
from gipfel_cluster.workloads.logs import tail_cursor
from gipfel_extension.telemetry.figures.palette import RANKS
from gipfel_extension.telemetry.figures.static_html import (
    Html,
    card,
    details,
    escaped,
    fragment,
    items,
    preformatted,
    table,
    tag,
)
from gipfel_extension.training.launch import Launch
from gipfel_extension.training.launch_summary import (
    TRACE_HELP,
    TRACE_VIEWER,
    flight_recorder_lines,
    summarize,
)
from gipfel_extension.training.launches.logs import ErrorLines, LogRow, launch_logs
from gipfel_extension.training.launches.score import launch_advice_effect, launch_score
from gipfel_extension.training.record import find_folder, known_folders

_MAX_SHOWN_LINES = 200
_MAX_RANKS = 8
_WIDTH, _HEIGHT = 120, 24
_SHAPES = {
    "completed": "✓", "failed": "✗", "lost": "✗", "stopped": "■", "timeout": "✗", "preempted": "◇",
    "running": "●", "queued": "○", "vetting": "◐", "preflight": "◐", "silent": "?",
    "not started": "✗", "checked": "✓", "check failed": "✗",
}  # fmt: skip
MARKS = {"pass": "✓", "warn": "⚠", "fail": "✗", "unknown": "?"}
#: Lines of the log that a view keeps in memory.
MAX_KEPT_LINES = 2000
_MIN_POLL_S = 0.4
#: Share of a core that reading the launch may use; pauses are lengthened accordingly.
_MAX_CPU_SHARE = 0.05
_MIN_SCORE_INTERVAL_S = 15.0
_MAX_LAUNCHES = 50


def headline(document: dict[str, Any]) -> str:
    """Return one line with name, status, nodes and progress of the launch."""
    word = str(document.get("status", "preflight"))
    which = " ".join(f"{document[each]}" for each in ("number", "name") if document.get(each))
    words = [f"{_SHAPES.get(word, '·')} launch{f' {which}' if which else ''}: {word}"]
    if document.get("node_count"):
        words.append(f"{pluralize(document['node_count'], 'node')}, {pluralize(document['ranks'], 'rank')}")
    words += progress_texts(document)
    started_ns, ended_ns = document.get("started_ns"), document.get("ended_ns")
    if started_ns is not None and ended_ns is not None:
        words.append(duration_text((ended_ns - started_ns) / 1e9))
    return " · ".join(words)


def progress_texts(document: dict[str, Any]) -> list[str]:
    """Return step, rates, loss, score and restarts as texts, without those that are unknown."""
    progress, curve = document.get("progress") or {}, document.get("training_curve") or {}
    found = []
    if progress.get("step") is not None:
        total = f"/{progress['total']:,.0f}" if progress.get("total") else ""
        found.append(f"step {progress['step']:,.0f}{total}")
    if curve.get("rate") is not None:
        found.append(f"{number_text(curve['rate'])} {curve['rate_name'].removesuffix('_per_s')}/s")
    if curve.get("steps_per_s"):
        rate = number_text(curve["steps_per_s"])
        found.append(f"{rate} {'step' if rate == '1' else 'steps'}/s")
    if curve.get("losses"):
        found.append(f"loss {number_text(curve['losses'][-1][1], digits=4)}")
    if document.get("score") is not None:
        found.append(f"score {document['score']:.0f} of 100")
    if document.get("restarts"):
        found.append(f"restarts {document['restarts']}")
    return found


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units, such as ``1 h 5 min``."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {seconds % 60:.0f} s" if minutes else f"{max(0.0, seconds):.0f} s"


def number_text(value: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits; large ones as integers with commas, not exponents."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def launch_text(document: dict[str, Any], lines: Sequence[LogRow] = ()) -> str:
    """Return the launch as plain text, with the last lines of its log."""
    texts = [headline(document)]
    if document.get("message"):
        texts.append(f"  {document['message']}")
    texts += [f"  {_outcome(each)}" for each in document.get("preflight", ())]
    texts += [f"  {each}" for each in document.get("command", "").splitlines()]
    texts += [f"  {each}" for each in document.get("traceback", "").splitlines()]
    texts += [f"r{rank} | {text}" for rank, text, _, _ in list(lines)[-20:]]
    return "\n".join(texts)


def launch_html(document: dict[str, Any], lines: Sequence[LogRow] = ()) -> Html:
    """Return the launch as HTML without scripts, with collapsible command and logs."""
    parts = [tag("strong", headline(document)), _progress_bar(document), _curve(document)]
    if document.get("message"):
        parts.append(tag("div", document["message"]))
    if document.get("preflight"):
        parts.append(details("pre-flight", items(map(_outcome, document["preflight"]))))
    if document.get("command"):
        parts.append(details("the exact command", preformatted(document["command"].splitlines())))
    if document.get("traceback"):
        rank = (document.get("failure") or {}).get("rank", "?")
        traceback = preformatted(document["traceback"].splitlines())
        parts.append(details(f"traceback of rank {rank}, the first that failed", traceback, expanded=True))
    if document.get("flight_recorder"):
        parts.append(details("torch's flight recorder", items(document["flight_recorder"])))
    return fragment(card(*parts, *_logs(lines), _paths_html(document)))


def _logs(lines: Sequence[LogRow]) -> list[Html]:
    ranks = sorted({line[0] for line in lines})
    omitted = f", of which {_MAX_RANKS} have a section" if len(ranks) > _MAX_RANKS else ""
    sections = [(f"log of all {len(ranks)} ranks{omitted}" if omitted else "log of all ranks", list(lines))]
    if len(ranks) > 1:
        sections += [
            (f"rank {rank}", [each for each in lines if each[0] == rank]) for rank in ranks[:_MAX_RANKS]
        ]
    if errors := [each for each in lines if each[3]]:
        sections.append(("errors", errors))
    parts = []
    for title, rows in sections:
        if rows:
            last_rows = rows[-_MAX_SHOWN_LINES:]
            more = f", the last {len(last_rows)}" if len(last_rows) < len(rows) else ""
            clock = ", times in UTC" if any(each[2] for each in last_rows) else ""
            heading = f"{title} ({pluralize(len(rows), 'line')}{more}{clock})"
            parts.append(details(heading, preformatted(map(_line, last_rows))))
    return parts


def _line(row: LogRow) -> Html:
    rank, text, time_ms, _ = row
    when = time.strftime("%H:%M:%S ", time.gmtime(time_ms / 1000)) if time_ms else " " * len("00:00:00 ")
    label = tag("span", f"r{rank} |", style=f"color:{RANKS[rank % len(RANKS)]}")
    return Html.of(when, label, " ", escaped(text))


def _progress_bar(document: dict[str, Any]) -> Html:
    fraction = (document.get("progress") or {}).get("fraction")
    if fraction is None:
        return Html()
    bar = tag("progress", f"{fraction:.0%}", max="1", value=f"{fraction:.3f}")
    return Html.of(" ", bar, f" {fraction:.0%}")


def _curve(document: dict[str, Any]) -> Html:
    losses = (document.get("training_curve") or {}).get("losses") or ()
    if len(losses) < 2:
        return Html()
    values = [each[1] for each in losses]
    low, high = min(values), max(values)
    points = " ".join(
        f"{_WIDTH * index / (len(values) - 1):.1f},"
        f"{2 + (_HEIGHT - 4) * (high - value) / ((high - low) or 1):.1f}"
        for index, value in enumerate(values)
    )
    label = f"loss from {values[0]:.4g} to {values[-1]:.4g}"
    line = f'<polyline points="{points}" fill="none" stroke="{RANKS[0]}" stroke-width="1.5"/>'
    return Html(f' <svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{label}">{line}</svg>')


def _paths_html(document: dict[str, Any]) -> Html:
    folder = str(document.get("folder", ""))
    paths = {
        f"folder {folder}": folder,
        f"executed notebook {folder}/notebook.ipynb": document.get("notebook"),
        f"flight recorder's dumps in {folder}/flight_recorder": document.get("dumps"),
    }
    parts: list[object] = [" · ".join(text for text, shown in paths.items() if shown)]
    if document.get("traces"):
        ranks = ", ".join(f"rank {rank}" for rank in document["traces"])
        link = tag("a", "Perfetto", href=TRACE_VIEWER, target="_blank", rel="noopener noreferrer")
        where = f"profiler traces ({ranks}) in {folder}/profile open in "
        parts.append(tag("div", where, link, f". {TRACE_HELP}"))
    return tag("small", *parts)


def _outcome(outcome: dict[str, Any]) -> str:
    fix = f" {outcome['fix']}" if outcome.get("fix") and outcome["verdict"] != "pass" else ""
    return f"{MARKS.get(outcome['verdict'], '·')} {outcome['check']}: {outcome['message']}{fix}"


class FollowedLaunch:
    """Reader of a launch in any state: call `poll`, then pause for ``pause_s`` seconds.

    ``document`` has what `poll` read last, ``lines`` the last lines of the log. ``pause_s`` grows with the
    CPU time of `poll`, to limit the load of the kernel.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.document: dict[str, Any] = {}
        self.lines: deque[LogRow] = deque(maxlen=MAX_KEPT_LINES)
        self._cursor = tail_cursor(launch_logs(launch.folder))
        self._errors = ErrorLines()
        self._score: dict[str, Any] | None = None
        self._score_after = 0.0
        self._advice_effect: str | None = None
        self.pause_s = _MIN_POLL_S

    def poll(self) -> tuple[bool, list[LogRow]]:
        """Read the launch; return whether its document has changed, and the new log lines."""
        began = time.thread_time()
        document = self._document()
        page = self.launch.logs(self._cursor)
        self._cursor = page.cursor
        fresh = self._errors.mark(page.lines)[-MAX_KEPT_LINES:]
        self.lines.extend(fresh)
        self.pause_s = max(_MIN_POLL_S, (time.thread_time() - began) / _MAX_CPU_SHARE)
        document |= self._scored(ended=document.get("phase") == "ended", message=document.get("message", ""))
        changed, self.document = document != self.document, document
        return changed, fresh

    @property
    def ended(self) -> bool:
        """True if the launch had ended when it was read last."""
        return self.document.get("phase") == "ended"

    def lines_of(self, rank: int | None) -> list[LogRow]:
        """Return the last lines of one rank's log, or of all ranks' logs for None."""
        if rank is None:
            return list(self.lines)
        cursor = tail_cursor(launch_logs(self.launch.folder), ranks=(rank,))
        page = self.launch.logs(cursor, ranks=(rank,))
        return ErrorLines().mark(page.lines)[-MAX_KEPT_LINES:]

    def _document(self) -> dict[str, Any]:
        try:
            document = summarize(self.launch)
        except GipfelError as error:
            return {**self.document, "message": str(error), "status": "silent"}
        # These change every few seconds and are not displayed; each change would send a message.
        for name in ("updated_ns", "run"):
            document.pop(name, None)
        if document["phase"] == "ended":
            document["flight_recorder"] = flight_recorder_lines(self.launch.folder)
        return document

    def _scored(self, *, ended: bool, message: str) -> dict[str, Any]:
        """Return the score, which is computed less often, since it takes long with many GPUs."""
        if ended or time.monotonic() >= self._score_after:
            began = time.thread_time()
            with contextlib.suppress(GipfelError):
                self._score = launch_score(self.launch.state, self.launch.folder)
            pause = max(_MIN_SCORE_INTERVAL_S, (time.thread_time() - began) / _MAX_CPU_SHARE)
            self._score_after = time.monotonic() + pause
        score = self._score or {}
        found = {"score": score.get("score"), "bottleneck": score.get("bottleneck")}
        # An ended launch without a message shows the effect of earlier advice.
        return {**found, "message": self._advice_effect_text()} if ended and not message else found

    def _advice_effect_text(self) -> str:
        """Return the effect of the advice for the previous launch; empty if there was none."""
        if self._advice_effect is None:
            self._advice_effect = ""
            with contextlib.suppress(GipfelError):
                effect = launch_advice_effect(self.launch.folder, os.environ)
                self._advice_effect = " ".join(effect.lines) if effect is not None else ""
        return self._advice_effect


class LaunchList(list[Launch]):
    """Launches, the newest first, which show themselves as a table."""

    def __repr__(self) -> str:
        return "\n".join("  ".join(_table_row(each)) for each in self) or "There is no launch yet."

    def _repr_html_(self) -> str:
        if not self:
            return "There is no launch yet: <code>%%launch</code> or <code>LaunchCell()</code> starts one."
        heads = ("launch", "state", "what", "ranks", "progress", "")
        return fragment(table(heads, map(_table_row, self)))


def launches(*, all_runs: bool = True) -> LaunchList:
    """Return the newest launches, at most 50, of all runs or only of this kernel's run."""
    folders = known_folders(os.environ, all_runs=all_runs)
    return LaunchList([Launch(each) for each in reversed(folders[-_MAX_LAUNCHES:])])


def launch_of(which: int | str = "") -> Launch:
    """Return a launch by its number, ``RUN/N`` or its directory; by default the newest one.

    Raises
    ------
    GipfelError
        The launch does not exist.
    """
    if which == "":
        known = known_folders(os.environ, all_runs=True)
        if known:
            return Launch.open(known[-1])
    return Launch.open(find_folder(str(which), os.environ))


def _table_row(launch: Launch) -> tuple[str, ...]:
    try:
        shown: dict[str, Any] = summarize(launch)
    except GipfelError as error:
        return (launch.folder.name, "unreadable", "", "", "", str(error))
    return (
        shown["id"],
        shown["status"],
        shown["title"],
        str(shown["ranks"]),
        " · ".join(progress_texts(shown)),
        shown["message"],
    )
