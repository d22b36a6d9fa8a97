"""Following one start: from a submitted job to a server that answers, or to why it does not."""

import asyncio
import contextlib
import time

from gipfel_cluster.job.spec import VettingProgress
from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.scheduler.protocol import JobStatus

from ..cluster.watcher import UNSEEN
from ..failure.cause import Evidence
from ..failure.problem import Failure, SpawnProblem
from .account import LogTail
from .placement import ServerPlacement
from .progress import Progress, describe, describe_container, describe_end, vetting_page, vetting_text
from .traits import SpawnerTraits

LOOK_SECONDS = 0.25
_LOG_SECONDS = 5.0
_CONNECT_SECONDS = 3.0
# Between the container and the server; the waiting page has the same steps.
_VETTING_PERCENT = 65
# What went wrong may be far above the stack that it ended with.
_SEARCHED_LINES = 200
_NO_LOG = "It left no log. Is your home folder full, over its quota, or not there on the node?"
# A job that is being ended is over for its user, though its node may take long to report that.
_ENDING_SECONDS = 5.0


class StartFollower:
    """Progress, limits and end of one server's start.

    `begin` it, then `wait` for the server; meanwhile the server's own reports arrive at `set_port` and
    `on_vetting`, and the waiting page reads `progress`.
    """

    def __init__(self, spawner: SpawnerTraits, placement: ServerPlacement) -> None:
        self._spawner = spawner
        self._placement = placement
        self.progress = Progress()
        self.port_taken = False
        #: Whether the environment of this start has an image; None before that is known.
        self.has_image: bool | None = None
        self._deadline: float | None = None
        # Whether the job vets its nodes, and when it reported so last.
        self._vets = False
        self._vetting_heard = 0.0

    def begin(self) -> None:
        """Forget the start before."""
        self.progress, self.has_image = Progress(), None
        self._vets, self._vetting_heard = False, 0.0
        # A little before JupyterHub's own limit, whose message does not mention the queue.
        limit = self._spawner.start_timeout
        self._deadline = None if limit is None else time.monotonic() + max(limit - 2, 1)

    def set_port(self, port: int) -> None:
        """Record the port that the server listens on."""
        self._spawner.port, self.port_taken = port, True

    @property
    def in_container(self) -> bool:
        """True where the server starts in a container, as far as that is known."""
        if self.has_image is not None:
            return self.has_image
        edf = (self._spawner.user_options or {}).get("edf") or self._spawner.default_edf
        return bool(edf) and self._placement.site.engine != "host"

    @property
    def _contained(self) -> bool:
        """True where the server starts later than its job: a container or a vetting comes first."""
        return self.in_container or bool((self._spawner.user_options or {}).get("vet"))

    async def wait(self) -> tuple[str, int]:
        """Wait for the job, then for its server's port, then until that can be reached.

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
        """Watch the job of a server that runs, and tell the hub as soon as it has ended."""
        self._placement.watcher.watch(self._spawner.job_id, when_ended=self._on_end)

    async def _follow(self, job_id: str) -> tuple[str, int]:
        seen: JobStatus | None = None
        running = ending = looked = 0.0
        address = ""
        while True:
            if self._spawner.job_id != job_id:
                raise GipfelError("The start was cancelled.")
            now, status = time.monotonic(), self._placement.watcher.status(job_id)
            if status.state == "COMPLETING":
                ending = ending or now
            if status.answer == "ended" or (ending and now - ending > _ENDING_SECONDS):
                raise await self._end_of_job(status, now - running if running else None)
            seen = self._report_status(status, seen)
            if self.port_taken and not running and not status.nodes:
                self._placement.watcher.hurry()
            if status.state == "RUNNING" or self.port_taken:
                running = running or now
            if self.port_taken and status.nodes:
                address = address or await self._address(status.nodes[0])
                if address and await self._reaches(address, status):
                    return address, self._spawner.port
            elif running and not self._vets and now - max(running, looked) > _LOG_SECONDS:
                # Only of a start that takes its time: each look is a command in the user's account.
                looked = now
                last = _last(await self._log_tail())
                self._report(*describe_container(job_id, status, last, contained=self._contained))
            # A vetting has limits of its own, and reports that it continues.
            if running and now - max(running, self._vetting_heard) > self._spawner.server_timeout:
                raise await self._silent_server(status, address)
            self._check_deadline(status)
            await asyncio.sleep(LOOK_SECONDS)

    def _report_status(self, status: JobStatus, seen: JobStatus | None) -> JobStatus | None:
        """Report the scheduler's answer where it is new."""
        if status is UNSEEN or status == seen:
            return seen
        self._report(*describe(self._spawner.job_id, status, contained=self._contained))
        return status

    def _report(self, percent: int, text: str) -> None:
        # A vetting that reported means that the job runs and that its container has started.
        if percent >= _VETTING_PERCENT or not self._vetting_heard:
            self.progress.report(percent, text)

    def on_vetting(self, progress: VettingProgress) -> None:
        """Record the vetting progress that the job reported, and show it on the waiting page."""
        self._vets, self._vetting_heard = not progress.ended, time.monotonic()
        self.progress.report(_VETTING_PERCENT, vetting_text(progress), vetting_page(progress))

    def _check_deadline(self, status: JobStatus) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            state = describe(self._spawner.job_id, status)[1]
            raise GipfelError(
                f"Job {self._spawner.job_id} took more than {self._spawner.start_timeout} s. {state}",
                "It is cancelled; ask for less, or try again later.",
            )

    async def _reaches(self, address: str, status: JobStatus) -> bool:
        """Return whether the hub can connect to the server; tell a firewall from a slow server."""
        self.progress.report(75, f"The server has started on {status.nodes[0]}; the hub calls it.")
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
            self._spawner.log.warning("The address of %s: %s", node, error)
            return ""

    async def _log_tail(self) -> LogTail:
        placement, token = self._placement, self._spawner.api_token
        account = placement.account()
        name = placement.log_name(placement.site.name, self._spawner.job_id)
        text = await placement.commands(account).last_lines(
            f"{account.log_folder}/{name}", most=_SEARCHED_LINES
        )
        return LogTail(text=text.replace(token, "…") if token else text)

    async def _end_of_job(self, status: JobStatus, seconds: float | None) -> SpawnProblem:
        failure = await self._explain_end(status, seconds)
        return SpawnProblem(failure.error, reason="job", failure=failure, status_code=500)

    async def _explain_end(self, status: JobStatus, seconds: float | None) -> Failure:
        tail = await self._log_tail()
        return Failure.of(
            f"{describe_end(self._spawner.job_id, status, seconds)}.",
            Evidence(state=status.state, reason=status.reason, exit_code=status.exit_code, log=tail.text),
            last=tail.verdict or _NO_LOG,
        )

    async def _silent_server(self, status: JobStatus, address: str) -> SpawnProblem:
        spawner, tail = self._spawner, await self._log_tail()
        node = status.nodes[0] if status.nodes else "its node"
        limit = f"{spawner.server_timeout:g} s"
        what = f"Job {spawner.job_id} runs on {node}, but its server gave no port in {limit}."
        state = "SILENT"
        if self.port_taken:
            what = (
                f"The server runs on {node}, but the hub can't reach {address or node} port {spawner.port}."
            )
            state = "BLOCKED"
        failure = Failure.of(
            what,
            Evidence(state=state, reason=one_line(spawner.hub.api_url), log=tail.text),
            last=tail.verdict,
        )
        return SpawnProblem(failure.error, reason="server", failure=failure, status_code=500)

    def _on_end(self) -> None:
        # Now, not at the hub's next look.
        self._notifying = asyncio.ensure_future(self._notify_end(self._spawner.job_id))

    async def _notify_end(self, job_id: str) -> None:
        spawner = self._spawner
        while spawner.job_id == job_id and spawner.pending in {"spawn", "check"}:  # noqa: ASYNC110 - the hub's own flag
            await asyncio.sleep(LOOK_SECONDS)
        if spawner.job_id == job_id and spawner.ready:
            self.last_end = await self._explain_end(self._placement.watcher.status(job_id), None)
            await spawner.poll_and_notify()

    @property
    def last_end(self) -> Failure | None:
        """End of the last server of this name without its user; None where there was none."""
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
        """Ends of this hub's servers by name: JupyterHub makes a new spawner for each page."""
        ends: dict[str, Failure] = self._spawner.user.settings.setdefault("gipfel_ends", {})
        return ends


def _last(tail: LogTail) -> str:
    """Return the last line of a log."""
    lines = [one_line(line) for line in tail.text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
