"""The next job of a service, which takes over its URL before the time limit of the running one."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.notation import parse_duration

from .services import prepare_service, with_resources
from .submission import POLL_SECONDS, JobSubmission

if TYPE_CHECKING:
    from ..lifetime import ServerLifetime
    from ..spawner import EDFSpawner

#: Seconds that the earlier job has to answer its open requests once new requests go to the next job.
_DRAIN_S = 5.0
#: Seconds after a failed attempt until the next job is submitted again.
_RETRY_S = 300.0
_CONNECT_S = 3.0


class ServiceSuccessor:
    """Submits the next job of a running service in time, and changes the URL's target once it is ready.

    Both jobs use the server's token. The hub's database has only a digest of it, so that a restarted hub gets
    the token itself with the service's next report.

    Example
    -------
    ``successor.overlap_s = 600`` at the start; at each report of the service, ``successor.on_report(token)``.
    """

    def __init__(self, spawner: "EDFSpawner", lifetime: "ServerLifetime") -> None:
        self._spawner, self._lifetime = spawner, lifetime
        #: Seconds before the time limit at which the next job is submitted; 0 for none.
        self.overlap_s = 0
        #: ID of the next job; empty if there is none.
        self.job_id = ""
        self._running_since = self._whole_s = 0.0
        self._next_try = 0.0
        self._port, self._awaits_port = 0, False
        self._limit_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what an earlier hub process has stored."""
        self.job_id = str(state.get("successor") or "")
        self.overlap_s = int(state.get("overlap_s") or 0)
        self._spawner.follower.running_since = float(state.get("running_since") or 0)

    def get_state(self) -> dict[str, Any]:
        """Return what a restarted hub needs: the next job, the overlap, and since when this job runs."""
        since = self._spawner.follower.running_since
        state = {"successor": self.job_id, "overlap_s": self.overlap_s, "running_since": since}
        return {name: value for name, value in state.items() if value} if self.overlap_s else {}

    def on_report(self, token: str) -> None:
        """Submit the next job if the time limit is near; called when the service reports its activity.

        ``token`` is the token of the report, which the caller has checked to be the server's.
        """
        self._spawner.api_token = token
        ends, now = self._ends(), time.monotonic()
        if not self.overlap_s or ends is None or self._task is not None:
            return
        left = ends - time.time()
        self._whole_s = max(self._whole_s, left)
        # At most 75 % of the job's time: with a time limit below the overlap, each job would submit the next
        # one at once.
        is_due = left <= min(self.overlap_s, self._whole_s * 0.75)
        if is_due and now >= self._next_try and self._spawner.ready:
            self._next_try = now + _RETRY_S
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._on_done)

    def _ends(self) -> float | None:
        """Return the end of the time limit: as the service has reported it, else as it was requested."""
        limit = self._spawner.options.with_defaults().time
        seconds, since = parse_duration(limit) if limit else None, self._spawner.follower.running_since
        if self._lifetime.ends is not None or not seconds or not since:
            return self._lifetime.ends
        return since + seconds + self._lifetime.extended

    def set_port(self, port: int) -> bool:
        """Record the port of the next job's service; return False if none is starting."""
        if not self._awaits_port:
            return False
        self._port, self._awaits_port = port, False
        return True

    def end(self) -> None:
        """Cancel the next job, if there is one: its service has ended, or the hub was restarted."""
        if self._task is not None:
            self._task.cancel()
        self._drop()

    def end_left(self) -> None:
        """Cancel the next job that an earlier hub process submitted: this process does not follow it."""
        if self._task is None:
            self._drop()

    def _drop(self) -> None:
        job_id, self.job_id, self._port, self._awaits_port = self.job_id, "", 0, False
        if job_id:
            placement = self._spawner.placement
            placement.watcher.end_later(job_id, placement.account().user)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._spawner.log.warning("No job takes over %s: %s", self._spawner._log_name, error)  # noqa: SLF001
            self._drop()

    async def _run(self) -> None:
        earlier = self._spawner.job_id
        await self._submit()
        address = await self._ready()
        await self._take_over(earlier, address)

    async def _submit(self) -> None:
        spawner = self._spawner
        placement, options = spawner.placement, spawner.options.read_stored()
        account = placement.account()
        prepared = await prepare_service(
            options,
            server=spawner.name,
            prefix=spawner.server.base_url,
            edf=options.edf,
            engine=options.engine or placement.settings.engine,
            commands=placement.commands(account),
            is_successor=True,
        )
        edf = account.expand(prepared.edf or spawner.default_edf)
        directories = tuple(filter(None, (prepared.directory, prepared.packages)))
        options = with_resources(options, prepared)
        request = await spawner.options.request(options, edf, account, service=directories)
        # With a mark of its own, so that it is found and cancelled if the submission is interrupted.
        submission = JobSubmission(spawner, placement, save=lambda: None)
        self._awaits_port = True
        self.job_id = await submission.submit(request)
        self._limit_s = max(spawner.server_timeout, prepared.limit_s)
        spawner.save_state()
        spawner.log.info("Job %s will take over %s.", self.job_id, spawner._log_name)  # noqa: SLF001

    async def _ready(self) -> str:
        """Return the address of the next job's service once it answers.

        Raises
        ------
        GipfelError
            The job has ended, or its service reported no port in time.
        """
        placement, running, self._running_since = self._spawner.placement, 0.0, 0.0
        placement.watcher.watch(self.job_id, closely=True)
        while True:
            status = placement.watcher.status(self.job_id)
            if status.answer == "ended":
                raise GipfelError(f"Job {self.job_id} ended before its service was ready.", "See its log.")
            if status.state == "RUNNING":
                running = running or time.monotonic()
                self._running_since = self._running_since or time.time()
            if running and time.monotonic() - running > self._limit_s:
                raise GipfelError(f"The service of job {self.job_id} was not ready in time.", "See its log.")
            if self._port and not status.nodes:
                placement.watcher.poll_soon()
            elif self._port:
                with contextlib.suppress(GipfelError, OSError, TimeoutError):
                    address = await placement.cluster.scheduler.address(status.nodes[0])
                    async with asyncio.timeout(_CONNECT_S):
                        _, writer = await asyncio.open_connection(address, self._port)
                    writer.close()
                    return address
            await asyncio.sleep(POLL_SECONDS)

    async def _take_over(self, earlier: str, address: str) -> None:
        spawner, watcher = self._spawner, self._spawner.placement.watcher
        # There is no `await` from here to the new route: the hub must not see a half of the change.
        job_id, self.job_id, self._whole_s, self._next_try = self.job_id, "", 0.0, 0.0
        watcher.forget(earlier)
        spawner.server.ip, spawner.server.port = address, self._port
        spawner.port, self._port = self._port, 0
        spawner.follower.running_since = self._running_since
        self._lifetime.on_successor(job_id)
        spawner.save_state()
        spawner.follower.watch_end()
        await spawner.user.settings["proxy"].add_user(spawner.user, spawner.name)
        await spawner.service_host.route(spawner.server.host)
        try:
            await asyncio.sleep(_DRAIN_S)
        finally:
            watcher.end_later(earlier, spawner.placement.account().user)
