"""From a submitted job to a server that answers, and what to say where it does not come to that."""

import asyncio
import contextlib
import time
from typing import Any

from gipfel_cluster.job.vetting import VettingProgress
from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.scheduler.protocol import JobStatus

from ..cluster.watcher import UNSEEN
from ..errands import Tail
from ..failure.causes import Evidence
from ..failure.page import Failure
from ..failure.problem import SpawnProblem
from ..leaving.spawner import LeavingSpawner
from .progress import Progress, describe, describe_container, describe_end
from .vetting import vetting_page, vetting_words

LOOK_SECONDS = 0.25
_LOG_SECONDS = 5.0
_CONNECT_SECONDS = 3.0
# Between the container and the server; the waiting page has the same steps.
_VETTING_PERCENT = 65
# What went wrong may stand far above the stack that it ended with.
_SEARCHED_LINES = 200
_NO_LOG = "It left no log. Is your home folder full, over its quota, or not there on the node?"
# A job that is being ended is over for its user, though its node may take long to say so.
_ENDING_SECONDS = 5.0


class StartingSpawner(LeavingSpawner):
    """Follows a job until its server answers."""

    _port_taken = False
    _deadline: float | None = None
    #: Whether the job vets its nodes, and when it said so last.
    _vets = False
    _vetting_heard = 0.0
    #: Whether the environment of this start has an image; None before that was looked at.
    _has_image: bool | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._progress = Progress()

    @property
    def in_container(self) -> bool:
        """Return whether the server starts in a container, as far as that is known."""
        if self._has_image is not None:
            return self._has_image
        return bool((self.user_options or {}).get("edf") or self.default_edf) and self.site.engine != "host"

    @property
    def _says_container(self) -> bool:
        """Return whether a running job is one whose server does not start yet: a vetting comes before it."""
        return self.in_container or bool((self.user_options or {}).get("vet"))

    @property
    def _ends(self) -> dict[str, Failure]:
        """Of this hub's servers that ended by themselves: why, by their names."""
        ends: dict[str, Failure] = self.user.settings.setdefault("gipfel_ends", {})
        return ends

    def _begin_start(self) -> None:
        self._progress, self._has_image = Progress(), None
        self._vets, self._vetting_heard = False, 0.0
        # A little before JupyterHub's own limit, whose message says nothing of the queue.
        limit = self.start_timeout
        self._deadline = None if limit is None else time.monotonic() + max(limit - 2, 1)

    async def _await_server(self) -> tuple[str, int]:
        """Wait for the job, then for its server's port, then until that can be reached."""
        job_id = self.job_id
        self._watcher.watch(job_id, closely=True)
        try:
            return await self._follow(job_id)
        finally:
            if self.job_id == job_id:
                self._watcher.watch(job_id, when_ended=self._note_end)

    async def _follow(self, job_id: str) -> tuple[str, int]:
        seen: JobStatus | None = None
        running = ending = looked = 0.0
        address = ""
        while True:
            if self.job_id != job_id:
                raise GipfelError("The start was cancelled.")
            now, status = time.monotonic(), self._watcher.status(job_id)
            if status.state == "COMPLETING":
                ending = ending or now
            if status.answer == "ended" or (ending and now - ending > _ENDING_SECONDS):
                raise await self._end_of_job(status, now - running if running else None)
            seen = self._tell_status(status, seen)
            if self._port_taken and not running and not status.nodes:
                self._watcher.hurry()
            if status.state == "RUNNING" or self._port_taken:
                running = running or now
            if self._port_taken and status.nodes:
                address = address or await self._address(status.nodes[0])
                if address and await self._reaches(address, status):
                    return address, self.port
            elif running and not self._vets and now - max(running, looked) > _LOG_SECONDS:
                # Only of a start that takes its time: each look is a command in the user's account.
                looked = now
                last = _last(await self._log_tail())
                self._say(*describe_container(job_id, status, last, contained=self._says_container))
            # A vetting has limits of its own, and says that it goes on.
            if running and now - max(running, self._vetting_heard) > self.server_timeout:
                raise await self._silent_server(status, address)
            self._check_deadline(status)
            await asyncio.sleep(LOOK_SECONDS)

    def _tell_status(self, status: JobStatus, seen: JobStatus | None) -> JobStatus | None:
        """Say what the scheduler says, where that is new."""
        if status is UNSEEN or status == seen:
            return seen
        self._say(*describe(self.job_id, status, contained=self._says_container))
        return status

    def _say(self, percent: int, words: str) -> None:
        # Who has heard of a vetting knows that the job runs and that its container has started.
        if percent >= _VETTING_PERCENT or not self._vetting_heard:
            self._progress.say(percent, words)

    def hear_vetting(self, progress: VettingProgress) -> None:
        """Tell those who wait how far the vetting of the job's nodes is."""
        self._vets, self._vetting_heard = not progress.ended, time.monotonic()
        self._progress.say(_VETTING_PERCENT, vetting_words(progress), vetting_page(progress))

    def _check_deadline(self, status: JobStatus) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            stands = describe(self.job_id, status)[1]
            raise GipfelError(
                f"Job {self.job_id} took more than {self.start_timeout} s. {stands}",
                "It is cancelled; ask for less, or try again later.",
            )

    async def _reaches(self, address: str, status: JobStatus) -> bool:
        """Whether the hub can connect to the server; a firewall is told from a server that is slow."""
        self._progress.say(75, f"The server has started on {status.nodes[0]}; the hub calls it.")
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(address, self.port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self._progress.say(80, f"The server answers on {status.nodes[0]}.")
        return True

    async def _address(self, node: str) -> str:
        try:
            return await self._cluster.scheduler.address(node)
        except GipfelError as error:
            self.log.warning("The address of %s: %s", node, error)
            return ""

    async def _log_tail(self) -> Tail:
        account = self._find_account()
        text = await self._errands(account).last_lines(
            f"{account.log_folder}/{self._log_name_of(self.site.name, self.job_id)}", most=_SEARCHED_LINES
        )
        return Tail(text=text.replace(self.api_token, "…") if self.api_token else text)

    async def _end_of_job(self, status: JobStatus, seconds: float | None) -> SpawnProblem:
        failure = await self._explain_end(status, seconds)
        return SpawnProblem(failure.error, reason="job", failure=failure, status_code=500)

    async def _explain_end(self, status: JobStatus, seconds: float | None) -> Failure:
        tail = await self._log_tail()
        return Failure.of(
            f"{describe_end(self.job_id, status, seconds)}.",
            Evidence(state=status.state, reason=status.reason, exit_code=status.exit_code, log=tail.text),
            last=tail.verdict or _NO_LOG,
        )

    def _note_end(self) -> None:
        """The job of a server that ran has ended: tell the hub now, not at its next look."""
        self._telling = asyncio.ensure_future(self._tell_end(self.job_id))

    async def _tell_end(self, job_id: str) -> None:
        while self.job_id == job_id and self.pending in {"spawn", "check"}:  # noqa: ASYNC110 - the hub's own flag
            await asyncio.sleep(LOOK_SECONDS)
        if self.job_id == job_id and self.ready:
            self._ends[self._log_name] = await self._explain_end(self._watcher.status(job_id), None)
            await self.poll_and_notify()

    async def run_post_stop_hook(self) -> None:
        """Keep who stopped the server for its user's page, where that was somebody else."""
        order = self.stop_order
        if order and self.job_id and order.by != self.user.name:
            what = f"Job {self.job_id} was stopped: {order.reason or 'an administrator ended it'}."
            self._ends[self._log_name] = Failure(what=what, fix="Start again when you need it.")
        await super().run_post_stop_hook()

    @property
    def last_end(self) -> Failure | None:
        """Why the last server of this name ended by itself; for the hub's page."""
        return self._ends.get(self._log_name)

    async def _silent_server(self, status: JobStatus, address: str) -> SpawnProblem:
        tail = await self._log_tail()
        node = status.nodes[0] if status.nodes else "its node"
        what = f"Job {self.job_id} runs on {node}, but its server gave no port in {self.server_timeout:g} s."
        state = "SILENT"
        if self._port_taken:
            what = f"The server runs on {node}, but the hub can't reach {address or node} port {self.port}."
            state = "BLOCKED"
        failure = Failure.of(
            what, Evidence(state=state, reason=one_line(self.hub.api_url), log=tail.text), last=tail.verdict
        )
        return SpawnProblem(failure.error, reason="server", failure=failure, status_code=500)


def _last(tail: Tail) -> str:
    """The last line of a log."""
    lines = [one_line(line) for line in tail.text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
