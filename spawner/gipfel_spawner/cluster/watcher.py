"""Watcher of all jobs of a cluster: it asks the scheduler about all of them at once.

`PendingCancellations` are the jobs that the hub no longer holds and that must still end.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import JobStatus, LostJobError, Scheduler

# A controller that took a submission before it fell silent shows the job as soon as it speaks again.
_LOOKS = 3
#: Of a job that no round has asked about yet.
UNSEEN = JobStatus(answer="unknown", reason="The scheduler has not been asked yet.")
_LONGEST_SECONDS = 60.0
# Slurm's word for a job whose processes are being ended.
_ENDING = "COMPLETING"


@runtime_checkable
class MarkFinder(Protocol):
    """A scheduler that finds a job by the mark and the user of its request."""

    async def find(self, mark: str, user: str) -> str | None:
        """Return the number of this unix user's job; None where there is no such job."""


class PendingCancellations:
    """Jobs to cancel as soon as their scheduler, which was silent, answers again."""

    def __init__(self, scheduler: Scheduler, log: logging.Logger) -> None:
        self._scheduler = scheduler
        self._log = log
        self._jobs: dict[str, str] = {}
        self._lost: dict[str, tuple[str, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs or self._lost)

    def holds(self, job_id: str) -> bool:
        """Return whether this job must still end."""
        return job_id in self._jobs

    def add(self, job_id: str, user: str) -> None:
        """Cancel this job of this unix user."""
        self._jobs[job_id] = user

    def add_lost(self, lost: LostJobError) -> None:
        """Cancel the job with this mark, if there is one."""
        if lost.mark and isinstance(self._scheduler, MarkFinder):
            self._lost[lost.mark] = (lost.user, _LOOKS)

    async def end(self, status: Callable[[str], JobStatus]) -> tuple[str, ...]:
        """Try once more for each; return those that have ended."""
        for mark, (user, looks) in tuple(self._lost.items()):
            if isinstance(self._scheduler, MarkFinder):
                await self._find(self._scheduler, mark, user, looks)
        ended = tuple(each for each in self._jobs if status(each).answer == "ended")
        for job_id in ended:
            del self._jobs[job_id]
        for job_id, user in tuple(self._jobs.items()):
            try:
                await self._scheduler.cancel(job_id, user=user)
            except GipfelError as error:
                self._log.warning("Job %s can't be cancelled yet: %s", job_id, error)
        return ended

    async def _find(self, finder: MarkFinder, mark: str, user: str, looks: int) -> None:
        try:
            job_id = await finder.find(mark, user)
            if job_id is not None:
                self._log.warning("Job %s was submitted while Slurm was silent; it is cancelled.", job_id)
                await self._scheduler.cancel(job_id, user=user)
        except GipfelError as error:
            self._log.warning("A job that may have been submitted can't be looked for yet: %s", error)
            return
        if job_id is not None or looks <= 1:
            del self._lost[mark]
        else:
            self._lost[mark] = (user, looks - 1)


class JobWatcher:
    """Status of every watched job; it runs only while there is one.

    Parameters
    ----------
    scheduler
        Is asked once a round for all jobs.
    interval
        Seconds between two rounds while a job is watched closely: while it starts, and until it has ended.
    calm_interval
        Seconds between two rounds otherwise. A scheduler that does not answer is asked ever less often, at
        least once a minute.
    draw
        A number from 0 to 1, by which rounds are spread: several hubs must not ask in step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        interval: float = 2.0,
        calm_interval: float = 15.0,
        log: logging.Logger,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._scheduler = scheduler
        self._interval = interval
        self._calm_interval = calm_interval
        self._log = log
        self._draw = draw
        self._statuses: dict[str, JobStatus] = {}
        self._close: set[str] = set()
        self._ended: dict[str, Callable[[], None]] = {}
        self._left = PendingCancellations(scheduler, log)
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._failures = 0
        self._asked = 0.0

    def watch(
        self, job_id: str, *, closely: bool = False, when_ended: Callable[[], None] | None = None
    ) -> None:
        """Ask about this job from now on; closely while its change is awaited.

        ``when_ended`` is called once, as soon as a round finds that the job has ended.
        """
        if job_id not in self._statuses or closely != (job_id in self._close):
            self._wake.set()
        self._statuses.setdefault(job_id, UNSEEN)
        if closely:
            self._close.add(job_id)
        else:
            self._close.discard(job_id)
        if when_ended is not None and self.status(job_id).answer != "ended":
            self._ended[job_id] = when_ended
        self._run()

    def forget(self, job_id: str) -> None:
        """Stop asking about this job."""
        self._ended.pop(job_id, None)
        if not self._left.holds(job_id):
            self._statuses.pop(job_id, None)
            self._close.discard(job_id)

    def status(self, job_id: str) -> JobStatus:
        """Return the last answer about a job."""
        return self._statuses.get(job_id, UNSEEN)

    def hurry(self) -> None:
        """Ask soon: a job is known to be further than its last answer."""
        self._wake.set()

    async def ask(self, job_id: str) -> JobStatus:
        """Return a fresh answer about a job; callers that ask meanwhile share it."""
        self.watch(job_id, closely=job_id in self._close)
        await self._ask_all(lambda: self.status(job_id) is UNSEEN)
        return self.status(job_id)

    def end_later(self, job_id: str, user: str) -> None:
        """Cancel a job as soon as the scheduler answers again; the hub has let go of it already."""
        self._left.add(job_id, user)
        self.watch(job_id, closely=True)

    def end_lost(self, lost: LostJobError) -> None:
        """Look for a job that may have been submitted, and cancel it; as soon as the scheduler answers."""
        self._left.add_lost(lost)
        self._run()

    def _run(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._rounds())
            self._task.add_done_callback(self._log_failure)

    async def _ask_all(self, missed: Callable[[], bool] = lambda: False) -> None:
        for _ in range(2):
            if self._asking is None or self._asking.done():
                self._asking = asyncio.get_running_loop().create_task(self._query())
            await asyncio.shield(self._asking)
            # The round that was under way may have begun before this job was watched.
            if not missed():
                return

    async def _query(self) -> None:
        # However many want to know at once: never more often than twice an interval.
        await asyncio.sleep(self._asked + self._interval / 2 - time.monotonic())
        asked = tuple(each for each, status in self._statuses.items() if status.answer != "ended")
        if not asked:
            return
        answers = await self._scheduler.query(asked)
        self._asked = time.monotonic()
        for job_id in asked:
            if job_id in self._statuses:
                self._set_status(job_id, answers.get(job_id, UNSEEN))
        silent = all(status.answer == "unknown" for status in answers.values())
        self._failures = self._failures + 1 if silent else 0

    def _set_status(self, job_id: str, status: JobStatus) -> None:
        self._statuses[job_id] = status
        if status.answer == "ended" and (notify := self._ended.pop(job_id, None)):
            notify()

    async def _rounds(self) -> None:
        while self._statuses or self._left:
            self._wake.clear()
            await self._ask_all()
            for job_id in await self._left.end(self.status):
                self.forget(job_id)
            try:
                # asyncio.wait_for of Python 3.11 may forget a cancellation, and the hub would never end.
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _pause(self) -> float:
        """Return seconds until the next round, spread by a tenth, by a half while the scheduler is silent."""
        if self._failures:
            longest = min(self._interval * 2.0 ** min(self._failures, 10), _LONGEST_SECONDS)
            return longest * (0.5 + 0.5 * self._draw())
        hurried = self._close or self._left or any(s.state == _ENDING for s in self._statuses.values())
        return (self._interval if hurried else self._calm_interval) * (0.9 + 0.1 * self._draw())

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._log.error("The job watcher failed and starts anew with the next job: %s", task.exception())
