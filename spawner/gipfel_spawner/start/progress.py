"""Events of a start for the waiting page: one for each change, and the texts of job and vetting."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from html import escape
from typing import Any

from gipfel_cluster.job.spec import VettingProgress
from gipfel_cluster.scheduler.protocol import JobStatus

# A long queue has many events, and every page reads them from the first one that is kept.
_KEPT = 100
_SHAPES: Mapping[str, str] = {
    "pass": "✓",
    "degraded": "~",
    "inconclusive": "?",
    "not_run": "\N{EN DASH}",
    "fail": "✗",
    "running": "◐",
    "waiting": "○",
}


class Progress:
    """Events of one start, from its beginning; any number of pages may follow them."""

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now().astimezone()) -> None:
        self._clock = clock
        self._events: list[tuple[int, dict[str, Any]]] = []
        self._last: tuple[int, str, str] | None = None
        self._added = 0
        self._closed = False
        self._changed = asyncio.Event()

    def report(self, percent: int, message: str, page: str = "") -> None:
        """Add an event, unless it equals the last one; ``page`` is the same as HTML, escaped.

        The page's log shows its time, by the hub's clock.
        """
        said = (percent, message, page)
        if self._last != said:
            self._last = said
            event = {
                "progress": percent,
                "message": message,
                "html_message": _shown(self._clock()) + (page or escape(message)),
            }
            self._added += 1
            self._events.append((self._added, event))
            if len(self._events) > _KEPT:
                # The first ones are about the submission.
                del self._events[2]
            self._notify()

    def close(self) -> None:
        """End the events: nothing more will come."""
        self._closed = True
        self._notify()

    def _notify(self) -> None:
        # Followers are woken at once: the hub stops listening as soon as the server answers.
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """Yield all events so far, then each as it comes, until the start is over."""
        seen = 0
        while True:
            changed = self._changed
            for number, event in tuple(self._events):
                if number > seen:
                    seen = number
                    yield dict(event)
            if self._closed and seen == self._added:
                return
            await changed.wait()


def describe(
    job_id: str, status: JobStatus, *, now: datetime | None = None, contained: bool = True
) -> tuple[int, str]:
    """Return percent and text for a job that starts; the clock times are the hub's.

    ``contained`` is whether its server starts in a container. A percentage is a step, not a share of time:
    10 submitted, 20 queued, 40 node, 60 container, 70 server.
    """
    if status.answer == "unknown":
        return 20, f"Job {job_id}: the scheduler does not answer. {status.reason} The job stays as it is."
    if status.state == "CONFIGURING":
        return 40, f"Job {job_id}: its nodes are booted and made ready{_on(status)}."
    if status.state == "RUNNING":
        return _running(job_id, status, contained=contained)
    if status.state == "COMPLETING":
        return 60, f"Job {job_id} is being ended{_on(status)}."
    if status.state == "PENDING":
        return 30, f"{_queued(job_id, status, now)}."
    return 30, f"Job {job_id} is {status.state.lower().replace('_', ' ')}."


def _running(job_id: str, status: JobStatus, *, contained: bool) -> tuple[int, str]:
    if contained:
        return 60, f"Job {job_id} runs{_on(status)}: the container starts, then the server."
    return 70, f"Job {job_id} runs{_on(status)}: the server starts."


def describe_container(
    job_id: str, status: JobStatus, said: str, *, contained: bool = True
) -> tuple[int, str]:
    """Return percent and text for a job whose node works; ``said`` is the last line of its log."""
    if not said:
        return describe(job_id, status, contained=contained)
    if not contained:
        return 70, f"Job {job_id} runs{_on(status)}: the server starts. Its log says: {said[:200]}"
    if said.startswith(("[I ", "[W ", "[D ")):
        return 70, f"Job {job_id} runs{_on(status)}: the container runs, and the server starts."
    return 60, f"Job {job_id} runs{_on(status)}: the container starts. Its log says: {said[:200]}"


def describe_end(job_id: str, status: JobStatus, seconds: float | None) -> str:
    """Return how a job ended, without a full stop; ``seconds`` is for how long it was seen to run."""
    words = f"Job {job_id} ended"
    if seconds is not None:
        words += f" after {seconds:.0f} s"
    if status.nodes:
        words += f" on {status.nodes[0]}"
    known = [f"exit status {status.exit_code}" if status.exit_code else "", status.state, status.reason]
    detail = ", ".join(each for each in known if each)
    return f"{words} ({detail})" if detail else words


def _queued(job_id: str, status: JobStatus, now: datetime | None) -> str:
    words = f"Job {job_id} is waiting"
    if status.wants:
        words += f" for {status.wants}"
    if status.partition:
        words += f" on partition {status.partition}"
    if status.reason:
        words += f": {status.reason}"
    if status.stuck:
        return f"{words}. It cannot start with these options. Cancel it and change them"
    if status.place is not None:
        words += f"; {_ordinal(status.place)} in line"
    if status.expected_start:
        words += f"; expected {_clock(status.expected_start, now)}"
    return words


def _shown(moment: datetime) -> str:
    return (
        f'<time class="gipfel-time" datetime="{moment.isoformat()}" title="{moment:%F %T %Z}">'
        f"{moment:%T}</time>"
    )


def _on(status: JobStatus) -> str:
    if not status.nodes:
        return ""
    others = f" and {len(status.nodes) - 1} more" if len(status.nodes) > 1 else ""
    return f" on {status.nodes[0]}{others}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _clock(time: str, now: datetime | None) -> str:
    try:
        moment = datetime.fromisoformat(time).astimezone()
    except ValueError:
        return time
    today = (now or datetime.now().astimezone()).date() == moment.date()
    return moment.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")


def vetting_text(progress: VettingProgress) -> str:
    """Return the progress of a vetting in one line, or its outcome."""
    if progress.ended and progress.outcome:
        return f"Vetting: {progress.outcome}"
    nodes = f"{progress.nodes} node{'' if progress.nodes == 1 else 's'}"
    bad = f", {progress.bad} with a problem" if progress.bad else ""
    return f"Vetting by {progress.protocol}: {progress.done} of {nodes} done{bad}."


def vetting_page(progress: VettingProgress) -> str:
    """Return the progress with a line for each node, as HTML; every text is escaped."""
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
    return f"<div>{escape(vetting_text(progress))}</div>{listed}"
