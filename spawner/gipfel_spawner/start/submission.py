"""One start: submit the server's job with a mark, then wait until its server answers or fails.

A mark is a random comment on the job, by which an interrupted submission is found.
"""

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable

from gipfel_cluster.job import VettingProgress
from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.scheduler.protocol import JobRequest, JobStatus, LostJobError

from ..cluster.watcher import NOT_POLLED, MarkFinder
from ..failure import Failure, SpawnProblem
from ..failure.cause import Evidence
from .account import JobLog
from .placement import ServerPlacement
from .progress import (
    Progress,
    describe_end,
    describe_running,
    describe_status,
    status_page,
    vetting_page,
    vetting_text,
)
from .services import ServiceRestarts
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


POLL_SECONDS = 0.25
_LOG_SECONDS = 5.0
_CONNECT_SECONDS = 3.0
# Lies between the percentages of container and server in `progress`; the waiting page has the same steps.
_VETTING_PERCENT = 65
# The error may be far above the stack trace at the end of the log.
_SEARCHED_LINES = 200
_NO_LOG = (
    "It wrote no log. Check that your home directory is mounted on the node, not full and within its quota."
)
# Seconds in the state COMPLETING after which a job counts as ended: a node can take long to report the end.
_ENDING_SECONDS = 5.0


class StartFollower:
    """Progress, time limits and failure of one server's start.

    Call `begin`, then `wait` for the server. Meanwhile the hub's handlers call `set_port` and `on_vetting`
    with the server's reports, and the waiting page reads `progress`.
    """

    def __init__(self, spawner: SpawnerTraits, placement: ServerPlacement) -> None:
        self._spawner = spawner
        self._placement = placement
        self.progress = Progress()
        self.port_received = False
        #: Whether the environment of this start has an image; None while that is unknown.
        self.has_image: bool | None = None
        #: Seconds from the start of the job until its server must have reported its port.
        self.limit_s = 0.0
        #: Whether a service is started again when its job has ended by itself.
        self.keep_up = False
        #: Whether a service has pages for browsers.
        self.has_pages = True
        #: When the hub first saw the job run, in seconds since 1970; 0 before.
        self.running_since = 0.0
        self._deadline: float | None = None
        # Whether the job is vetting its nodes now, and the time of its last report.
        self._is_vetting = False
        self._last_vetting_report = 0.0

    def begin(self) -> None:
        """Reset the state of the previous start."""
        self.progress, self.has_image, self.running_since = Progress(), None, 0.0
        self._is_vetting, self._last_vetting_report = False, 0.0
        self.limit_s = self._spawner.server_timeout
        # It ends shortly before JupyterHub's own limit, whose message does not explain the queue.
        limit = self._spawner.start_timeout
        self._deadline = None if limit is None else time.monotonic() + max(limit - 2, 1)

    def set_port(self, port: int) -> None:
        """Record the port that the server listens on."""
        self._spawner.port, self.port_received = port, True

    @property
    def in_container(self) -> bool:
        """True if the server starts in a container, as far as is known."""
        if self.has_image is not None:
            return self.has_image
        edf = (self._spawner.user_options or {}).get("edf") or self._spawner.default_edf
        return bool(edf) and self._placement.settings.engine != "host"

    @property
    def _has_setup(self) -> bool:
        """True if a container start or a vetting comes between the job's start and the server's."""
        return self.in_container or bool((self._spawner.user_options or {}).get("vet"))

    async def wait(self) -> tuple[str, int]:
        """Wait for the job, then for its server's port, then until the hub can connect to it.

        Returns
        -------
        str, int
            Address and port.

        Raises
        ------
        SpawnProblem
            The job ended, or its server did not answer in time.
        GipfelError
            The start was cancelled, or took too long.
        """
        job_id = self._spawner.job_id
        self._placement.watcher.watch(job_id, closely=True)
        try:
            return await self._follow(job_id)
        finally:
            if self._spawner.job_id == job_id:
                self.watch_end()

    def watch_end(self) -> None:
        """Watch the job of a running server, and notify the hub as soon as it has ended."""
        self._placement.watcher.watch(self._spawner.job_id, when_ended=self._on_end)

    async def _follow(self, job_id: str) -> tuple[str, int]:
        reported: JobStatus | None = None
        running = ending = log_read = 0.0
        address = ""
        while True:
            if self._spawner.job_id != job_id:
                raise GipfelError("The start was cancelled.")
            now, status = time.monotonic(), self._placement.watcher.status(job_id)
            if status.state == "COMPLETING":
                ending = ending or now
            if status.answer == "ended" or (ending and now - ending > _ENDING_SECONDS):
                raise await self._ended_job(status, now - running if running else None)
            reported = self._report_status(status, reported)
            if self.port_received and not running and not status.nodes:
                self._placement.watcher.poll_soon()
            if status.state == "RUNNING" or self.port_received:
                running = running or now
                self.running_since = self.running_since or time.time()
            if self.port_received and status.nodes:
                address = address or await self._address(status.nodes[0])
                if address and await self._reaches(address, status):
                    return address, self._spawner.port
            elif running and not self._is_vetting and now - max(running, log_read) > _LOG_SECONDS:
                # Read only every `_LOG_SECONDS`, because each read runs a command as the user.
                log_read = now
                last = _last(await self.read_log())
                self._report(*describe_running(job_id, status, last, has_setup=self._has_setup))
            # A vetting has its own time limits, and each of its reports restarts this one.
            if running and now - max(running, self._last_vetting_report) > self.limit_s:
                raise await self._silent_server(status, address)
            self._check_deadline(status)
            await asyncio.sleep(POLL_SECONDS)

    def _report_status(self, status: JobStatus, reported: JobStatus | None) -> JobStatus | None:
        """Report the job's status if it has changed; return the last reported one."""
        if status is NOT_POLLED or status == reported:
            return reported
        percent, text = describe_status(self._spawner.job_id, status, has_setup=self._has_setup)
        self._report(percent, text, status_page(text, status))
        return status

    def _report(self, percent: int, text: str, page: str = "") -> None:
        # A vetting report means that the container has started, so earlier steps are no longer reported.
        if percent >= _VETTING_PERCENT or not self._last_vetting_report:
            self.progress.report(percent, text, page)

    def on_vetting(self, progress: VettingProgress) -> None:
        """Record the vetting progress that the job reported, and show it on the waiting page."""
        self._is_vetting, self._last_vetting_report = not progress.ended, time.monotonic()
        self.progress.report(_VETTING_PERCENT, vetting_text(progress), vetting_page(progress))

    def _check_deadline(self, status: JobStatus) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            state = describe_status(self._spawner.job_id, status)[1]
            raise GipfelError(
                f"Job {self._spawner.job_id} took more than {self._spawner.start_timeout} s. {state}",
                "The job is cancelled. Request fewer resources, or try again later.",
            )

    async def _reaches(self, address: str, status: JobStatus) -> bool:
        """Return whether the hub can open a connection to the server's port."""
        self.progress.report(75, f"The server has started on {status.nodes[0]}; the hub is connecting to it.")
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(address, self._spawner.port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self.progress.report(80, f"The server answers on {status.nodes[0]}.")
        return True

    async def _address(self, node: str) -> str:
        try:
            return await self._placement.cluster.scheduler.address(node)
        except GipfelError as error:
            self._spawner.log.warning("The address of node %s is unknown: %s", node, error)
            return ""

    async def read_log(self) -> JobLog:
        """Return the end of the job's log without the server's token, read as the user."""
        placement, token = self._placement, self._spawner.api_token
        account = placement.account()
        name = placement.log_name(placement.settings.name, self._spawner.job_id)
        text = await placement.commands(account).log_tail(
            f"{account.log_directory}/{name}", max_lines=_SEARCHED_LINES
        )
        return JobLog(text=text.replace(token, "…") if token else text)

    async def _ended_job(self, status: JobStatus, seconds: float | None) -> SpawnProblem:
        failure = await self._explain_end(status, seconds)
        self.last_end = failure.model_copy(update={"at_start": True})
        return SpawnProblem(failure.error, reason="job", failure=failure, status_code=500)

    async def _explain_end(self, status: JobStatus, seconds: float | None) -> Failure:
        tail = await self.read_log()
        return Failure.from_evidence(
            f"{describe_end(self._spawner.job_id, status, seconds)}.",
            Evidence(state=status.state, reason=status.reason, exit_code=status.exit_code, log=tail.text),
            default_cause=tail.error_line or _NO_LOG,
        )

    async def _silent_server(self, status: JobStatus, address: str) -> SpawnProblem:
        spawner, tail = self._spawner, await self.read_log()
        node = status.nodes[0] if status.nodes else "its node"
        limit = f"{self.limit_s:g} s"
        event = f"Job {spawner.job_id} is running on {node}, but its server reported no port within {limit}."
        state = "SILENT"
        if self.port_received:
            event = (
                f"The server is running on {node}, but the hub can't connect to {address or node} "
                f"port {spawner.port}."
            )
            state = "BLOCKED"
        failure = Failure.from_evidence(
            event,
            Evidence(state=state, reason=one_line(spawner.hub.api_url), log=tail.text),
            default_cause=tail.error_line,
        )
        self.last_end = failure.model_copy(update={"at_start": True})
        return SpawnProblem(failure.error, reason="server", failure=failure, status_code=500)

    def _on_end(self) -> None:
        # JupyterHub would notice the end only at its next poll.
        self._notifying = asyncio.ensure_future(self._notify_end(self._spawner.job_id))
        self._notifying.add_done_callback(self._log_failure)

    def _log_failure(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._spawner.log.error("The end of a job can't be followed up.", exc_info=error)

    async def _notify_end(self, job_id: str) -> None:
        spawner = self._spawner
        # Read first: if a starting hub finds that a job has ended, it drops the server with these values.
        while_down, keep_up = spawner.pending == "check", self.keep_up
        status = self._placement.watcher.status(job_id)
        waits_for = {"spawn", "check", "stop"} if while_down else {"spawn", "check"}
        while spawner.pending in waits_for and spawner.job_id in {job_id, ""}:  # noqa: ASYNC110 - the hub's own flag
            await asyncio.sleep(POLL_SECONDS)
        if spawner.job_id == job_id and spawner.ready:
            self.last_end = await self._explain_end(status, None)
            await spawner.poll_and_notify()
        elif not while_down or spawner.job_id or not status.state:
            # The scheduler has forgotten the job, which may have ended with exit status 0.
            return
        if keep_up:
            await self._start_again(status)

    async def _start_again(self, status: JobStatus) -> None:
        """Start a service again, now that the hub has forgotten its ended job."""
        spawner = self._spawner
        restarts = ServiceRestarts(spawner.user)
        if not restarts.is_due(spawner.name, status):
            return
        try:
            await restarts.start(spawner.name, spawner.hub.api_url)
        except GipfelError as error:
            spawner.log.warning("%s", error)

    @property
    def last_end(self) -> Failure | None:
        """Failure of the last server of this name that ended by itself; None if there was none."""
        return self._ends.get(self._spawner._log_name)  # noqa: SLF001 - JupyterHub's name for its log

    @last_end.setter
    def last_end(self, failure: Failure | None) -> None:
        name = self._spawner._log_name  # noqa: SLF001 - JupyterHub's name for its log
        if failure is None:
            self._ends.pop(name, None)
        else:
            self._ends[name] = failure

    @property
    def _ends(self) -> dict[str, Failure]:
        """Failures by server name, in the hub's settings: JupyterHub creates a new spawner per page."""
        ends: dict[str, Failure] = self._spawner.user.settings.setdefault("gipfel_ends", {})
        return ends


def _last(tail: JobLog) -> str:
    """Return the last line of a log."""
    lines = [one_line(line) for line in tail.text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
