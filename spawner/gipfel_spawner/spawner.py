"""`EDFSpawner`: a notebook server in a job, inside the container of an environment definition file."""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy.orm import object_session

from gipfel_cluster.job.vetting import VettingProgress
from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import JobRequest, LostJobError, Scheduler

from .cluster.letting_go import MarkFinder
from .cluster.watcher import UNSEEN
from .failure.problem import SpawnProblem
from .form.options import UserOptions
from .leaving.spawner import audited_start
from .start.spawner import LOOK_SECONDS, StartingSpawner


class EDFSpawner(StartingSpawner):
    """Starts single-user servers as jobs of a scheduler, inside EDF containers."""

    _token_digest = ""
    _starting = False
    _mark = ""

    @audited_start
    async def start(self) -> tuple[str, int]:
        """Submit the job and wait until its server has given its port; returns where the hub reaches it.

        Raises
        ------
        SpawnProblem
            The job can't be submitted, or ended before its server answered.
        """
        self._begin_start()
        self._port_taken, self.port = False, 0
        self._token_digest = _digest(self.api_token)
        self._starting = True
        self._ends.pop(self._log_name, None)
        try:
            options = self.chosen_options()
            self.cluster_name = self.site_of(options.cluster).name
            # Nobody outside this machine has to reach a server that runs on it.
            self.ip = "127.0.0.1" if self.site.is_local else "0.0.0.0"  # noqa: S104
            await self._submit(options)
            return await self._await_server()
        except GipfelError as error:
            self.note_misfit(error)
            raise SpawnProblem(error) from None
        finally:
            self._starting = False
            self._progress.close()

    async def _submit(self, options: UserOptions) -> None:
        account = self._find_account()
        errands = self._errands(account)
        edf = options.edf or self.default_edf
        if edf.startswith("~/"):
            edf = account.home + edf[1:]
        if edf:
            self._progress.say(5, f"Checking the environment {edf}.")
            has_image = await errands.check(edf)
            self._has_image = has_image and (options.engine or self.site.engine) != "host"
        request = await self._request(options, edf, account)
        await errands.make_log_folder()
        self.job_id = await self._submit_marked(request)
        # Saved now, not when the server answers: a hub that restarts meanwhile finds its job again.
        self._save_state()
        where = f" to {self.cluster_name}" if self.clusters else ""
        self._progress.say(10, f"Job {self.job_id} is submitted{where}.")

    async def _submit_marked(self, request: JobRequest) -> str:
        """Submit so that the job is found whatever happens meanwhile: to this start, to the hub, to Slurm."""
        self._mark = f"{self.marks}{secrets.token_hex(8)}"
        self._save_state()
        try:
            # A second run on another node would be no server of this start.
            return await self._cluster.scheduler.submit(
                request.model_copy(update={"mark": self._mark, "requeue": False})
            )
        except LostJobError as lost:
            self._watcher.end_lost(lost)
            problem = f"{lost.problem} If it took the job all the same, the job will be cancelled."
            raise GipfelError(problem, lost.fix) from None
        except asyncio.CancelledError:
            self._watcher.end_lost(LostJobError(self._mark, request.user))
            raise

    @property
    def marks(self) -> str:
        """How the marks of this hub's jobs begin; another hub on the same cluster has another secret."""
        secret: bytes = self.user.settings.get("cookie_secret") or b""
        return f"gipfel-{hashlib.sha256(b'marks' + secret).hexdigest()[:12]}-"

    def all_schedulers(self) -> tuple[Scheduler, ...]:
        """The schedulers of the hub's clusters, each once."""
        found = [self._shared(site).scheduler for site in self.sites.values()]
        return tuple({id(each): each for each in found}.values())

    def owns(self, token: str) -> bool:
        """Whether this is the token of the server that was started last."""
        return bool(token and self._token_digest) and hmac.compare_digest(self._token_digest, _digest(token))

    def take_port(self, port: int) -> bool:
        """Take the server's port, once for each start; False where none is awaited."""
        if not self._awaits_server:
            return False
        self.port, self._port_taken = port, True
        # A server may be faster than the answer of the command that submits it.
        if self.job_id:
            self._save_state()
        return True

    def take_vetting(self, progress: VettingProgress) -> bool:
        """Take how far the vetting before the server is; False where no server is awaited."""
        if self._awaits_server:
            self.hear_vetting(progress)
            return True
        return False

    @property
    def _awaits_server(self) -> bool:
        return not self._port_taken and bool(self._starting or (self.job_id and self._check_pending))

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Tell what happens to the job until its server answers."""
        async for event in self._progress.follow():
            yield event

    async def poll(self) -> int | None:
        """None while the job runs, waits or is not known; else its exit status, 0 where that is not known."""
        if not self.job_id and (self._starting or not await self._find_again()):
            return None if self._starting or self._mark else 0
        if self.ready:
            self._watcher.watch(self.job_id, when_ended=self._note_end)
        status = self._watcher.status(self.job_id)
        if status is UNSEEN:
            status = await self._watcher.ask(self.job_id)
        return (status.exit_code or 0) if status.answer == "ended" else None

    async def _find_again(self) -> bool:
        """Look for the job that an earlier hub process was submitting when it ended."""
        scheduler = self._cluster.scheduler
        if not (self._mark and isinstance(scheduler, MarkFinder)):
            self._mark = ""
            return False
        try:
            found = await scheduler.find(self._mark, self._find_account().user)
        except GipfelError as error:
            self.log.warning("Whether %s has a job is not known yet: %s", self._log_name, error)
            return False
        if found is None:
            self._mark = ""
            return False
        self.job_id = found
        self._save_state()
        return True

    async def _find_submitted(self) -> None:
        while not self.job_id and not await self._find_again():
            if not self._mark:
                raise GipfelError("The hub ended before the job was submitted.", "Start again.")
            await asyncio.sleep(self.watch_interval)

    async def get_url(self) -> str:
        """Where the server is; after a restart of the hub in the middle of a start, wait for it first."""
        # The port is kept before the hub keeps the address: a restart in between must find the node again.
        if self._port_taken and self.server.port == self.port:
            url: str = self.server.url
            return url
        found: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        # With these two the hub's pages show a start that goes on, with its events and its stop button.
        self._spawn_future = asyncio.ensure_future(self._resume(found))
        self._spawn_pending = True
        try:
            address, port = await found
        except Exception as error:  # noqa: BLE001 - the hub would let the job run on, and never look again
            self.log.warning("%s's server was not started: %s", self._log_name, error)
            # The hub asks this address in vain, and cleans up: it has no other way to hear of it here.
            self.http_timeout = 1
            return "http://127.0.0.1:1/"
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{port}{self.server.base_url}"

    async def _resume(self, found: "asyncio.Future[tuple[str, int]]") -> None:
        """Go on with a start of an earlier hub process, until the hub has reached the server."""
        self._begin_start()
        try:
            await self._find_submitted()
            found.set_result(await self._await_server())
            while self._check_pending:  # noqa: ASYNC110 - the hub clears it, and tells nobody
                await asyncio.sleep(LOOK_SECONDS)
        except asyncio.CancelledError:
            # The user stops the start. Whoever waits for the address waits on, which does no harm.
            self._check_pending, self._spawn_future = False, None
            raise
        except Exception as error:
            if not found.done():
                found.set_exception(error)
            raise
        finally:
            self._progress.close()
            self._spawn_pending = False
        self._spawn_future = None
        if self.ready:
            # The hub checks its routes before, and then every five minutes.
            await self.user.settings["proxy"].add_user(self.user, self.name)

    async def stop(self, now: bool = False) -> None:  # noqa: FBT001, FBT002 - JupyterHub's signature
        """Cancel the job and wait until it has ended.

        Raises
        ------
        SpawnProblem
            The scheduler does not answer; the job is cancelled as soon as it does.
        """
        job_id = self.job_id
        user = self._find_account().user
        if not job_id:
            if self._mark:
                self._watcher.end_lost(LostJobError(self._mark, user))
            return
        try:
            await self._cluster.scheduler.cancel(job_id, user=user)
        except GipfelError as error:
            # The hub forgets a server that it stops, whatever comes of it.
            self._watcher.end_later(job_id, user)
            later = GipfelError(f"{error.problem} Job {job_id} will be cancelled when it answers.", error.fix)
            raise SpawnProblem(later, reason="stop", status_code=503) from None
        deadline = time.monotonic() + self.stop_timeout
        self._watcher.watch(job_id, closely=True)
        while not now and self._watcher.status(job_id).answer != "ended":
            if time.monotonic() > deadline:
                self.log.warning("Job %s did not end within %g s.", job_id, self.stop_timeout)
                self._watcher.end_later(job_id, user)
                return
            await asyncio.sleep(LOOK_SECONDS)

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up the job that another hub process started."""
        super().load_state(state)
        self.port = int(state.get("port") or 0)
        self._port_taken = self.port > 0
        self._token_digest = str(state.get("token_digest", ""))
        self._mark = str(state.get("mark", ""))

    def get_state(self) -> dict[str, Any]:
        """The job's number, the port once it is known, and a digest of the server's token."""
        state: dict[str, Any] = super().get_state()
        if self.job_id:
            state["token_digest"] = self._token_digest
            if self._port_taken:
                state["port"] = self.port
        elif self._mark:
            state |= {"mark": self._mark, "token_digest": self._token_digest}
        return state

    def clear_state(self) -> None:
        """Forget the job."""
        if self.job_id:
            self._watcher.forget(self.job_id)
        self._port_taken, self._token_digest, self._mark = False, "", ""
        super().clear_state()

    def _save_state(self) -> None:
        self.orm_spawner.state = self.get_state()
        session = object_session(self.orm_spawner)
        if session is not None:
            session.commit()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
