"""Progress events of a start for the waiting page, the texts for job status and vetting, and local times."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from html import escape
from typing import Any, Literal

from gipfel_cluster.job import VettingProgress
from gipfel_cluster.scheduler.protocol import JobStatus

# A long wait in the queue causes many events, and every page load reads all stored ones.
_MAX_KEPT = 100
_SHAPES: Mapping[str, str] = {
    "pass": "✓",
    "degraded": "~",
    "inconclusive": "?",
    "not_run": "\N{EN DASH}",
    "fail": "✗",
    "running": "◐",
    "waiting": "○",
}


def clock_text(time: str, now: datetime | None = None) -> str:
    """Return an ISO time such as ``14:32 CET``, with the date if it is not that of ``now``.

    The time zone is that of ``now``, by default the hub's. A text that is not a time is returned unchanged.
    """
    now = now or datetime.now().astimezone()
    try:
        moment = datetime.fromisoformat(time).astimezone(now.tzinfo)
    except (ValueError, OverflowError):
        # A year before 1 or after 9999 in the other time zone overflows.
        return time
    return moment.strftime("%H:%M %Z" if moment.date() == now.date() else "%Y-%m-%d %H:%M %Z")


def time_element(time: str, text: str, show: Literal["clock", "near"], *, css: str = "") -> str:
    """Return a ``<time>`` element with ``text``, which the page's script replaces.

    Parameters
    ----------
    time
        ISO time with its zone, or without one in the hub's time zone.
    show
        ``clock`` shows hours, minutes and seconds; ``near`` hours and minutes, with the date if it is not
        today.
    css
        A further CSS class of the element.

    Raises
    ------
    ValueError
        The text is not an ISO time.
    """
    try:
        moment = datetime.fromisoformat(time).astimezone().isoformat()
    except OverflowError:
        raise ValueError(f"{time!r} is not a time of the years 1 to 9999.") from None
    classes = f"gipfel-local {css}".strip()
    return f'<time class="{classes}" datetime="{moment}" data-show="{show}">{escape(text)}</time>'


class Progress:
    """Events of one start since its beginning; any number of pages can follow them."""

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now().astimezone()) -> None:
        self._clock = clock
        self._events: list[tuple[int, dict[str, Any]]] = []
        self._last: tuple[int, str, str] | None = None
        self._added = 0
        self._closed = False
        self._changed = asyncio.Event()

    def report(self, percent: int, message: str, page: str = "") -> None:
        """Add an event, unless it equals the last one.

        ``page`` is the message as HTML, by default the escaped message. The waiting page also shows the time
        of each event.
        """
        event_key = (percent, message, page)
        if self._last != event_key:
            self._last = event_key
            event = {
                "progress": percent,
                "message": message,
                "html_message": _event_time(self._clock()) + (page or escape(message)),
            }
            self._added += 1
            self._events.append((self._added, event))
            if len(self._events) > _MAX_KEPT:
                # The first two events are about the submission and are kept.
                del self._events[2]
            self._notify()

    def close(self) -> None:
        """End the stream of events."""
        self._closed = True
        self._notify()

    def _notify(self) -> None:
        # Followers are woken immediately, because the hub stops reading as soon as the server answers.
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """Yield all events so far, then each new one, until the start is over."""
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


def describe_status(
    job_id: str, status: JobStatus, *, now: datetime | None = None, has_setup: bool = True
) -> tuple[int, str]:
    """Return percentage and text for the status of a starting job; clock times are in the hub's time zone.

    ``has_setup`` is whether a container start or a vetting precedes the server. A percentage stands for a
    step, not for a share of time: 30 queued, 40 nodes are prepared, 60 container (or the job is ending), 70
    server; 20 if the scheduler does not answer.
    """
    if status.answer == "unknown":
        return 20, f"Job {job_id}: the scheduler does not answer. {status.reason} The job is not affected."
    if status.state == "CONFIGURING":
        return 40, f"Job {job_id}: its nodes are being prepared{_on(status)}."
    if status.state == "RUNNING":
        return _running(job_id, status, has_setup=has_setup)
    if status.state == "COMPLETING":
        return 60, f"Job {job_id} is ending{_on(status)}."
    if status.state == "PENDING":
        return 30, f"{_queued(job_id, status, now)}."
    return 30, f"Job {job_id} is {status.state.lower().replace('_', ' ')}."


def status_page(text: str, status: JobStatus) -> str:
    """Return the text of `describe_status` as escaped HTML, with the expected start as a ``<time>``."""
    page = escape(text)
    start = status.expected_start
    if not start:
        return page
    clock = clock_text(start)
    try:
        element = time_element(start, clock, "near")
    except ValueError:
        return page
    return page.replace(f"expected start {escape(clock)}", f"expected start {element}")


def _running(job_id: str, status: JobStatus, *, has_setup: bool) -> tuple[int, str]:
    if has_setup:
        return 60, f"Job {job_id} is running{_on(status)}: the container is starting, then the server."
    return 70, f"Job {job_id} is running{_on(status)}: the server is starting."


def describe_running(
    job_id: str, status: JobStatus, last_line: str, *, has_setup: bool = True
) -> tuple[int, str]:
    """Return percentage and text for a running job; ``last_line`` is the last line of its log."""
    if not last_line:
        return describe_status(job_id, status, has_setup=has_setup)
    running = f"Job {job_id} is running{_on(status)}"
    if not has_setup:
        return 70, f"{running}: the server is starting. Last line of its log: {last_line[:200]}"
    if last_line.startswith(("[I ", "[W ", "[D ")):
        return 70, f"{running}: the container is running, and the server is starting."
    return 60, f"{running}: the container is starting. Last line of its log: {last_line[:200]}"


def describe_end(job_id: str, status: JobStatus, seconds: float | None) -> str:
    """Return how a job ended, without a full stop; ``seconds`` is its observed run time."""
    text = f"Job {job_id} ended"
    if seconds is not None:
        text += f" after {seconds:.0f} s"
    if status.nodes:
        text += f" on {status.nodes[0]}"
    known = [f"exit status {status.exit_code}" if status.exit_code else "", status.state, status.reason]
    detail = ", ".join(each for each in known if each)
    return f"{text} ({detail})" if detail else text


def _queued(job_id: str, status: JobStatus, now: datetime | None) -> str:
    text = f"Job {job_id} is waiting"
    if status.requested:
        text += f" for {status.requested}"
    if status.partition:
        text += f" on partition {status.partition}"
    if status.reason:
        text += f": {status.reason}"
    if status.blocked:
        return f"{text}. It cannot start with these options. Cancel it and change them"
    if status.queue_position is not None:
        text += f"; {_ordinal(status.queue_position)} in line"
    if status.expected_start:
        text += f"; expected start {clock_text(status.expected_start, now)}"
    return text


def _event_time(moment: datetime) -> str:
    return time_element(moment.isoformat(), f"{moment:%T %Z}", "clock", css="gipfel-time")


def _on(status: JobStatus) -> str:
    if not status.nodes:
        return ""
    others = f" and {len(status.nodes) - 1} more" if len(status.nodes) > 1 else ""
    return f" on {status.nodes[0]}{others}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def vetting_text(progress: VettingProgress) -> str:
    """Return the progress of a vetting, or its outcome, in one line."""
    if progress.ended and progress.outcome:
        return f"Vetting: {progress.outcome}"
    nodes = f"{progress.nodes} node{'' if progress.nodes == 1 else 's'}"
    bad = f", {progress.bad} with a problem" if progress.bad else ""
    return f"Vetting by {progress.protocol}: {progress.done} of {nodes} done{bad}."


def vetting_page(progress: VettingProgress) -> str:
    """Return the progress of a vetting as escaped HTML with a line for each node."""
    rows = []
    for row in progress.rows:
        state = row.state.replace("_", " ")
        text = row.detail if row.state == "running" else f"{state}. {row.detail}"
        detail = escape(text if row.detail else state)
        rows.append(
            f'<li><span aria-hidden="true">{_SHAPES[row.state]}</span> '
            f'<strong>{escape(row.node)}</strong> <span class="text-body-secondary">{detail}</span></li>'
        )
    more = progress.nodes - len(progress.rows)
    if rows and more > 0:
        rows.append(f"<li>and {more} more</li>")
    listed = (
        f'<ul class="list-unstyled d-inline-block text-start small mb-0">{"".join(rows)}</ul>' if rows else ""
    )
    return f"<div>{escape(vetting_text(progress))}</div>{listed}"
