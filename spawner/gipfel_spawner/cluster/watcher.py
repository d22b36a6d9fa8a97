"""Watcher of all jobs of a cluster, which polls the scheduler with one query for all of them.

`PendingCancellations` are jobs that the hub has already dropped and that still have to be cancelled.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import JobStatus, LostJobError, Scheduler

# Number of polls that search for a job that may have been submitted, once the scheduler answers again.
_MAX_ATTEMPTS = 3
#: Status of a job before the first poll.
NOT_POLLED = JobStatus(answer="unknown", reason="The scheduler has not been queried yet.")
_MAX_POLL_SECONDS = 60.0
# Slurm's state of a job whose processes are being ended.
_ENDING = "COMPLETING"


@runtime_checkable
class MarkFinder(Protocol):
    """A scheduler that finds a job by the mark and the user of its request."""

    async def find(self, mark: str, user: str) -> str | None:
        """Return the ID of this unix user's job; None if there is no such job."""


class PendingCancellations:
    """Jobs to cancel as soon as their scheduler, which did not answer, answers again."""

    def __init__(self, scheduler: Scheduler, log: logging.Logger) -> None:
        self._scheduler = scheduler
        self._log = log
        self._jobs: dict[str, str] = {}
        self._lost: dict[str, tuple[str, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs or self._lost)

    def contains(self, job_id: str) -> bool:
        """Return whether this job still has to be cancelled."""
        return job_id in self._jobs

    def add(self, job_id: str, user: str) -> None:
        """Add a job of a unix user."""
        self._jobs[job_id] = user

    def add_lost(self, lost: LostJobError) -> None:
        """Add a job that may have been submitted: it is searched for by its mark, then cancelled."""
        if lost.mark and isinstance(self._scheduler, MarkFinder):
            self._lost[lost.mark] = (lost.user, _MAX_ATTEMPTS)

    async def cancel_all(self, status: Callable[[str], JobStatus]) -> tuple[str, ...]:
        """Try to cancel each job once more; return those that have ended."""
        for mark, (user, attempts) in tuple(self._lost.items()):
            if isinstance(self._scheduler, MarkFinder):
                await self._cancel_lost(self._scheduler, mark, user, attempts)
        ended = tuple(each for each in self._jobs if status(each).answer == "ended")
        for job_id in ended:
            del self._jobs[job_id]
        for job_id, user in tuple(self._jobs.items()):
            try:
                await self._scheduler.cancel(job_id, user=user)
            except GipfelError as error:
                self._log.warning("Job %s can't be cancelled yet: %s", job_id, error)
        return ended

    async def _cancel_lost(self, finder: MarkFinder, mark: str, user: str, attempts: int) -> None:
        try:
            job_id = await finder.find(mark, user)
            if job_id is not None:
                self._log.warning("Job %s was submitted while Slurm did not answer; it is cancelled.", job_id)
                await self._scheduler.cancel(job_id, user=user)
        except GipfelError as error:
            self._log.warning("A job that may have been submitted can't be searched for yet: %s", error)
            return
        if job_id is not None or attempts <= 1:
            del self._lost[mark]
        else:
            self._lost[mark] = (user, attempts - 1)


class JobWatcher:
    """Poller of the status of all watched jobs; it runs only while there is a job.

    Parameters
    ----------
    scheduler
        Queried once per poll for all jobs.
    interval
        Seconds between two polls while a job is watched closely: while it starts, and while it is cancelled.
    calm_interval
        Seconds between two polls otherwise. A scheduler that does not answer is polled with exponential
        backoff, at least once a minute.
    jitter
        Returns a number from 0 to 1, which varies the pauses so that several hubs don't poll together.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        interval: float = 2.0,
        calm_interval: float = 15.0,
        log: logging.Logger,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._scheduler = scheduler
        self._interval = interval
        self._calm_interval = calm_interval
        self._log = log
        self._jitter = jitter
        self._statuses: dict[str, JobStatus] = {}
        self._close: set[str] = set()
        self._ended: dict[str, Callable[[], None]] = {}
        self._cancellations = PendingCancellations(scheduler, log)
        self._task: asyncio.Task[None] | None = None
        self._querying: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._failures = 0
        self._queried = 0.0

    def watch(
        self, job_id: str, *, closely: bool = False, when_ended: Callable[[], None] | None = None
    ) -> None:
        """Poll this job from now on; ``closely`` at the short interval.

        ``when_ended`` is called once, as soon as a poll finds that the job has ended.
        """
        if job_id not in self._statuses or closely != (job_id in self._close):
            self._wake.set()
        self._statuses.setdefault(job_id, NOT_POLLED)
        if closely:
            self._close.add(job_id)
        else:
            self._close.discard(job_id)
        if when_ended is not None and self.status(job_id).answer != "ended":
            self._ended[job_id] = when_ended
        self._run()

    def forget(self, job_id: str) -> None:
        """Stop polling this job, unless it still has to be cancelled."""
        self._ended.pop(job_id, None)
        if not self._cancellations.contains(job_id):
            self._statuses.pop(job_id, None)
            self._close.discard(job_id)

    def status(self, job_id: str) -> JobStatus:
        """Return the last polled status of a job."""
        return self._statuses.get(job_id, NOT_POLLED)

    def poll_soon(self) -> None:
        """Poll before the interval is over, since a job's last status is known to be outdated."""
        self._wake.set()

    async def query(self, job_id: str) -> JobStatus:
        """Poll now and return a job's status; concurrent callers share one poll."""
        self.watch(job_id, closely=job_id in self._close)
        await self._query_all(lambda: self.status(job_id) is NOT_POLLED)
        return self.status(job_id)

    def end_later(self, job_id: str, user: str) -> None:
        """Cancel a job that the hub has already dropped, as soon as the scheduler answers again."""
        self._cancellations.add(job_id, user)
        self.watch(job_id, closely=True)

    def end_lost(self, lost: LostJobError) -> None:
        """Search for a job that may have been submitted and cancel it, as soon as the scheduler answers."""
        self._cancellations.add_lost(lost)
        self._run()

    def _run(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._poll())
            self._task.add_done_callback(self._log_failure)

    async def _query_all(self, missed: Callable[[], bool] = lambda: False) -> None:
        for _ in range(2):
            if self._querying is None or self._querying.done():
                self._querying = asyncio.get_running_loop().create_task(self._query_once())
            await asyncio.shield(self._querying)
            # A query that was already running may not include a job that was added since.
            if not missed():
                return

    async def _query_once(self) -> None:
        # Limits the rate to two queries per interval, however many callers there are.
        await asyncio.sleep(self._queried + self._interval / 2 - time.monotonic())
        job_ids = tuple(each for each, status in self._statuses.items() if status.answer != "ended")
        if not job_ids:
            return
        answers = await self._scheduler.query(job_ids)
        self._queried = time.monotonic()
        for job_id in job_ids:
            if job_id in self._statuses:
                self._set_status(job_id, answers.get(job_id, NOT_POLLED))
        silent = all(status.answer == "unknown" for status in answers.values())
        self._failures = self._failures + 1 if silent else 0

    def _set_status(self, job_id: str, status: JobStatus) -> None:
        self._statuses[job_id] = status
        if status.answer == "ended" and (notify := self._ended.pop(job_id, None)):
            notify()

    async def _poll(self) -> None:
        while self._statuses or self._cancellations:
            self._wake.clear()
            await self._query_all()
            for job_id in await self._cancellations.cancel_all(self.status):
                self.forget(job_id)
            try:
                # asyncio.wait_for of Python 3.11 can lose a cancellation, and the hub would never end.
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _pause(self) -> float:
        """Return the seconds until the next poll, with 10 % jitter, or 50 % after failed queries."""
        if self._failures:
            backoff = min(self._interval * 2.0 ** min(self._failures, 10), _MAX_POLL_SECONDS)
            return backoff * (0.5 + 0.5 * self._jitter())
        ending = any(status.state == _ENDING for status in self._statuses.values())
        short = bool(self._close or self._cancellations or ending)
        return (self._interval if short else self._calm_interval) * (0.9 + 0.1 * self._jitter())

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._log.error("The job watcher failed and restarts with the next job: %s", task.exception())
