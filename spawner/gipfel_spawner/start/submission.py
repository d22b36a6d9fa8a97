"""Submission of a server's job with a mark: a random comment by which an interrupted submission is found."""

import asyncio
import hashlib
import secrets
from collections.abc import Callable

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import JobRequest, LostJobError

from ..cluster.watcher import MarkFinder
from .placement import ServerPlacement
from .traits import SpawnerTraits


class JobSubmission:
    """Submission of one server's job, with a mark in the job's comment.

    Parameters
    ----------
    save
        Commits the spawner's state to the hub's database.
    """

    def __init__(
        self, spawner: SpawnerTraits, placement: ServerPlacement, *, save: Callable[[], None]
    ) -> None:
        self._spawner = spawner
        self._placement = placement
        self._save = save
        #: The mark of the last submission, empty before the first one.
        self.mark = ""

    @property
    def prefix(self) -> str:
        """Prefix of this hub's marks, derived from its cookie secret; other hubs have other prefixes."""
        secret: bytes = self._spawner.user.settings.get("cookie_secret") or b""
        return f"gipfel-{hashlib.sha256(b'marks' + secret).hexdigest()[:12]}-"

    async def submit(self, request: JobRequest) -> str:
        """Submit the job with a mark, so that it is found even if the start, the hub or Slurm is interrupted.

        Raises
        ------
        GipfelError
            The scheduler refused the job or did not answer; if it accepted the job, the job is cancelled.
        """
        self.mark = f"{self.prefix}{secrets.token_hex(8)}"
        self._save()
        try:
            # A requeued job would start a second server that this start does not wait for.
            return await self._placement.cluster.scheduler.submit(
                request.model_copy(update={"mark": self.mark, "requeue": False})
            )
        except LostJobError as lost:
            self._placement.watcher.end_lost(lost)
            problem = f"{lost.problem} If it has accepted the job, the job will be cancelled."
            raise GipfelError(problem, lost.fix) from None
        except asyncio.CancelledError:
            self.cancel_lost(request.user)
            raise

    def cancel_lost(self, user: str) -> None:
        """Cancel the job with this mark as soon as the scheduler shows it, if there is one."""
        if self.mark:
            self._placement.watcher.end_lost(LostJobError(self.mark, user))

    async def find(self) -> bool:
        """Search once for the job that an earlier hub process was submitting when it ended.

        The mark is cleared if there is no such job, and kept while the scheduler does not answer.
        """
        scheduler = self._placement.cluster.scheduler
        if not (self.mark and isinstance(scheduler, MarkFinder)):
            self.mark = ""
            return False
        try:
            found = await scheduler.find(self.mark, self._placement.account().user)
        except GipfelError as error:
            name = self._spawner._log_name  # noqa: SLF001 - JupyterHub's name for its log
            self._spawner.log.warning("Can't search for the job of %s yet: %s", name, error)
            return False
        if found is None:
            self.mark = ""
            return False
        self._spawner.job_id = found
        self._save()
        return True

    async def wait_until_found(self) -> None:
        """Search for the job of an earlier hub process until the scheduler answers.

        Raises
        ------
        GipfelError
            There is no such job.
        """
        while not self._spawner.job_id and not await self.find():
            if not self.mark:
                raise GipfelError("The hub ended before the job was submitted.", "Start the server again.")
            await asyncio.sleep(self._spawner.watch_interval)
