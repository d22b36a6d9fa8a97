"""One watcher for the whole hub: it asks the scheduler about all jobs at once."""

import asyncio
import logging
import random
import time
from collections.abc import Callable

from gipfel_cluster.scheduler.protocol import JobStatus, LostJobError, Scheduler

from .letting_go import LettingGo

#: Of a job that no round has asked about yet.
UNSEEN = JobStatus(answer="unknown", reason="The scheduler has not been asked yet.")
_LONGEST_SECONDS = 60.0
# Slurm's word for a job whose processes are being ended.
_ENDING = "COMPLETING"


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
        self._left = LettingGo(scheduler, log)
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._failures = 0
        self._asked = 0.0

    def watch(
        self, job_id: str, *, closely: bool = False, when_ended: Callable[[], None] | None = None
    ) -> None:
        """Ask about this job from now on; closely while something waits for it to change.

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
        """Ask about this job no more."""
        self._ended.pop(job_id, None)
        if not self._left.holds(job_id):
            self._statuses.pop(job_id, None)
            self._close.discard(job_id)

    def status(self, job_id: str) -> JobStatus:
        """The last answer about a job."""
        return self._statuses.get(job_id, UNSEEN)

    def hurry(self) -> None:
        """Ask soon: somebody has heard that a job is further than its last answer."""
        self._wake.set()

    async def ask(self, job_id: str) -> JobStatus:
        """A fresh answer about a job; who asks meanwhile shares it."""
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
            self._task.add_done_callback(self._note_end)

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
                self._take(job_id, answers.get(job_id, UNSEEN))
        silent = all(status.answer == "unknown" for status in answers.values())
        self._failures = self._failures + 1 if silent else 0

    def _take(self, job_id: str, status: JobStatus) -> None:
        self._statuses[job_id] = status
        if status.answer == "ended" and (tell := self._ended.pop(job_id, None)):
            tell()

    async def _rounds(self) -> None:
        while self._statuses or self._left:
            self._wake.clear()
            await self._ask_all()
            for job_id in await self._left.end(self.status):
                self.forget(job_id)
            try:
                await asyncio.wait_for(self._wake.wait(), self._pause())
            except TimeoutError:
                continue

    def _pause(self) -> float:
        """Seconds until the next round: spread by a tenth, and by a half while the scheduler is silent."""
        if self._failures:
            longest = min(self._interval * 2.0 ** min(self._failures, 10), _LONGEST_SECONDS)
            return longest * (0.5 + 0.5 * self._draw())
        hurried = self._close or self._left or any(s.state == _ENDING for s in self._statuses.values())
        return (self._interval if hurried else self._calm_interval) * (0.9 + 0.1 * self._draw())

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._log.error("The job watcher failed and starts anew with the next job: %s", task.exception())
