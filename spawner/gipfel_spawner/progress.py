"""What a waiting user reads: one event for each thing that changed."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from gipfel_cluster.scheduler.protocol import JobStatus


class Progress:
    """The events of one start, from its beginning; any number of pages may follow them."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._closed = False
        self._changed = asyncio.Event()

    def say(self, percent: int, message: str) -> None:
        """Add an event, unless it says what the last one said."""
        if not self._events or self._events[-1]["message"] != message:
            self._events.append({"progress": percent, "message": message})
            self._tell()

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        self._tell()

    def _tell(self) -> None:
        # Whoever follows is woken at once: the hub stops listening as soon as the server answers.
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """All events so far, then each as it comes, until the start is over."""
        seen = 0
        while True:
            changed = self._changed
            while seen < len(self._events):
                seen += 1
                yield dict(self._events[seen - 1])
            if self._closed:
                return
            await changed.wait()


def describe(job_id: str, status: JobStatus, *, now: datetime | None = None) -> tuple[int, str]:
    """Percent and words for a job that starts; the clock times are the hub's.

    A percentage stands for a step (submitted, queued, node, container, server), not for time.
    """
    if status.answer == "unknown":
        return 20, f"Job {job_id}: the scheduler does not answer. {status.reason} The job stays as it is."
    if status.state == "PENDING":
        words = f"Job {job_id} is queued"
        if status.reason:
            words += f": {status.reason}"
        if status.expected_start:
            words += f"; expected start {_clock(status.expected_start, now)}"
        return 30, words + "."
    if status.state == "CONFIGURING":
        return 40, f"Job {job_id}: its nodes are made ready."
    if status.state == "RUNNING":
        node = status.nodes[0] if status.nodes else "its node"
        others = f" and {len(status.nodes) - 1} more" if len(status.nodes) > 1 else ""
        return 60, f"Job {job_id} runs on {node}{others}: the container starts, then the server."
    return 30, f"Job {job_id} is {status.state.lower()}."


def describe_end(job_id: str, status: JobStatus, seconds: float | None) -> str:
    """How a job ended, without a full stop; ``seconds`` is for how long it was seen to run."""
    words = f"Job {job_id} ended"
    if seconds is not None:
        words += f" after {seconds:.0f} s"
    if status.nodes:
        words += f" on {status.nodes[0]}"
    known = [f"exit status {status.exit_code}" if status.exit_code else "", status.state, status.reason]
    detail = ", ".join(each for each in known if each)
    return f"{words} ({detail})" if detail else words


def _clock(time: str, now: datetime | None) -> str:
    try:
        moment = datetime.fromisoformat(time).astimezone()
    except ValueError:
        return time
    today = (now or datetime.now().astimezone()).date() == moment.date()
    return moment.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
