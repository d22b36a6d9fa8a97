"""Jobs that the hub has let go of and that must still end."""

import logging
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import JobStatus, LostJobError, Scheduler

# A controller that took a submission before it fell silent shows the job as soon as it speaks again.
_LOOKS = 3


@runtime_checkable
class MarkFinder(Protocol):
    """A scheduler that finds a job by the mark and the user of its request."""

    async def find(self, mark: str, user: str) -> str | None:
        """The number of this unix user's job; None where there is no such job."""


class LettingGo:
    """Cancels jobs whose scheduler was silent when the hub wanted them ended, or submitted."""

    def __init__(self, scheduler: Scheduler, log: logging.Logger) -> None:
        self._scheduler = scheduler
        self._log = log
        self._jobs: dict[str, str] = {}
        self._lost: dict[str, tuple[str, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs or self._lost)

    def holds(self, job_id: str) -> bool:
        """Whether this job must still end."""
        return job_id in self._jobs

    def add(self, job_id: str, user: str) -> None:
        """End this job of this unix user."""
        self._jobs[job_id] = user

    def add_lost(self, lost: LostJobError) -> None:
        """End the job with this mark, if there is one."""
        if lost.mark and isinstance(self._scheduler, MarkFinder):
            self._lost[lost.mark] = (lost.user, _LOOKS)

    async def end(self, status: Callable[[str], JobStatus]) -> tuple[str, ...]:
        """Try once more for each; returns those that have ended."""
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
