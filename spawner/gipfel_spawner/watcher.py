"""One watcher for the whole hub: it asks the scheduler about all jobs at once."""

import asyncio
import logging
from collections.abc import Callable

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import JobStatus, Scheduler

_UNSEEN = JobStatus(answer="unknown", reason="The scheduler has not been asked yet.")
_LONGEST_SECONDS = 60.0


class JobWatcher:
    """Knows how every watched job is; runs only while there is one.

    Parameters
    ----------
    scheduler
        Is asked once a round for all jobs.
    interval
        Seconds between two rounds while a job is watched closely: while it starts, and until it has ended.
    calm_interval
        Seconds between two rounds otherwise. A scheduler that does not answer is asked ever less often, at
        least once a minute.
    """

    def __init__(
        self, scheduler: Scheduler, *, interval: float = 2.0, calm_interval: float = 15.0, log: logging.Logger
    ) -> None:
        self._scheduler = scheduler
        self._interval = interval
        self._calm_interval = calm_interval
        self._log = log
        self._statuses: dict[str, JobStatus] = {}
        self._close: set[str] = set()
        self._to_end: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._failures = 0

    def watch(self, job_id: str, *, closely: bool = False) -> None:
        """Ask about this job from now on; closely while something waits for it to change."""
        if job_id not in self._statuses or closely != (job_id in self._close):
            self._wake.set()
        self._statuses.setdefault(job_id, _UNSEEN)
        if closely:
            self._close.add(job_id)
        else:
            self._close.discard(job_id)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._rounds())
            self._task.add_done_callback(self._note_end)

    def forget(self, job_id: str) -> None:
        """Ask about this job no more."""
        if job_id not in self._to_end:
            self._statuses.pop(job_id, None)
            self._close.discard(job_id)

    def status(self, job_id: str) -> JobStatus:
        """The last answer about a job."""
        return self._statuses.get(job_id, _UNSEEN)

    async def ask(self, job_id: str) -> JobStatus:
        """A fresh answer about a job; who asks meanwhile shares it."""
        self.watch(job_id, closely=job_id in self._close)
        await self._ask_all(lambda: self.status(job_id) is _UNSEEN)
        return self.status(job_id)

    def end_later(self, job_id: str, user: str) -> None:
        """Cancel a job as soon as the scheduler answers again; the hub has let go of it already."""
        self._to_end[job_id] = user
        self.watch(job_id, closely=True)

    async def _ask_all(self, missed: Callable[[], bool] = lambda: False) -> None:
        for _ in range(2):
            if self._asking is None or self._asking.done():
                self._asking = asyncio.get_running_loop().create_task(self._query())
            await asyncio.shield(self._asking)
            # The round that was under way may have begun before this job was watched.
            if not missed():
                return

    async def _query(self) -> None:
        asked = tuple(each for each, status in self._statuses.items() if status.answer != "ended")
        if not asked:
            return
        answers = await self._scheduler.query(asked)
        for job_id in asked:
            if job_id in self._statuses:
                self._statuses[job_id] = answers.get(job_id, _UNSEEN)
        silent = all(status.answer == "unknown" for status in answers.values())
        self._failures = self._failures + 1 if silent else 0

    async def _end_abandoned(self) -> None:
        for job_id, user in tuple(self._to_end.items()):
            if self.status(job_id).answer == "ended":
                del self._to_end[job_id]
                self.forget(job_id)
                continue
            try:
                await self._scheduler.cancel(job_id, user=user)
            except GipfelError as error:
                self._log.warning("Job %s can't be cancelled yet: %s", job_id, error)

    async def _rounds(self) -> None:
        while self._statuses:
            self._wake.clear()
            await self._ask_all()
            await self._end_abandoned()
            try:
                await asyncio.wait_for(self._wake.wait(), self._pause())
            except TimeoutError:
                continue

    def _pause(self) -> float:
        if self._failures:
            return min(self._interval * 2.0**self._failures, _LONGEST_SECONDS)
        return self._interval if self._close else self._calm_interval

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._log.error("The job watcher failed and starts anew with the next job: %s", task.exception())
