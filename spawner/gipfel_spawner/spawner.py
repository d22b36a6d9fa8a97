"""`EDFSpawner`: a notebook server in a job, inside the container of an environment definition file."""

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from sqlalchemy.orm import object_session
from traitlets import default, observe

from gipfel_cluster.job.spec import VettingProgress
from gipfel_cluster.model import GipfelError
from gipfel_cluster.ports import PORTS_VARIABLE, PortRange

from .cluster.watcher import UNSEEN
from .failure.problem import Failure, SpawnProblem
from .form.options import UserOptions
from .lifetime import ServerLifetime
from .start.follower import LOOK_SECONDS, StartFollower
from .start.placement import ServerPlacement
from .start.spawn_options import SpawnOptions
from .start.submission import JobSubmission
from .start.traits import SpawnerTraits


class EDFSpawner(SpawnerTraits):
    """Starts single-user servers as jobs of a scheduler, inside EDF containers.

    This class holds JupyterHub's hooks and the configuration; the work is done by what it holds:
    ``placement`` (cluster, account), ``options`` (form and job request), ``submission`` (the job and its
    mark), ``follower`` (from the job to a server that answers) and ``lifetime`` (activity, extension, audit).
    """

    _token_digest = ""
    _starting = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Before the configuration, whose observers use them.
        self.placement = ServerPlacement(self)
        self.options = SpawnOptions(self, self.placement)
        self.submission = JobSubmission(self, self.placement, save=self._save_state)
        self.follower = StartFollower(self, self.placement)
        self.lifetime = ServerLifetime(self, self.placement, self.options)
        super().__init__(*args, **kwargs)

    @observe(
        "clusters", "cluster", "scheduler", "exec_prefix", "broker_socket", "engine", "runtime", "python"
    )
    def _forget_sites(self, _change: object) -> None:
        self.placement.forget_sites()

    @observe("job_id")
    def _note_submission(self, change: dict[str, Any]) -> None:
        if change["new"]:
            self.lifetime.on_submitted()

    @default("options_from_form")
    def _default_options_from_form(self) -> Callable[..., Any]:
        return self.options.from_form

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Callable[..., Any]:
        # They are read when the server starts: of an error in this hook, JupyterHub logs the stack.
        return lambda _spawner, _options: None

    @default("options_form")
    def _default_options_form(self) -> Callable[..., Any]:
        return type(self).render_options_form

    async def render_options_form(self) -> str:
        """Return the form, with a line for whatever could not be asked."""
        return await self.options.render()

    def options_from_query(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the options of a link for the form; a link starts no job.

        Raises
        ------
        SpawnProblem
            Always: JupyterHub then shows the form.
        """
        return self.options.from_query(query)

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Add what depends on cluster and account: home folder, user name, shell, run folders."""
        return self.placement.job_environment(env)

    def get_env(self) -> dict[str, Any]:
        """Return JupyterHub's variables, with the hub's address as nodes reach it, and the allowed ports."""
        own = self.hub_connect_url
        self.hub_connect_url = self.placement.site.hub_connect_url or own
        try:
            environment: dict[str, Any] = super().get_env()
        finally:
            self.hub_connect_url = own
        if self.server_ports:
            environment[PORTS_VARIABLE] = self.server_ports
        return environment

    async def start(self) -> tuple[str, int]:
        """Submit the job and wait until its server has reported its port; returns where the hub reaches it.

        Raises
        ------
        SpawnProblem
            The job can't be submitted, or ended before its server answered.
        """
        self.lifetime.begin()
        try:
            return await self._start()
        except Exception as error:
            self.lifetime.on_start_failed(error)
            raise
        finally:
            self.lifetime.end_start()

    async def _start(self) -> tuple[str, int]:
        self.follower.begin()
        self.follower.port_taken, self.port = False, 0
        self._token_digest = _digest(self.api_token)
        self._starting = True
        self.follower.last_end = None
        try:
            options = self.options.chosen()
            self.placement.cluster_name = self.placement.site_of(options.cluster).name
            # Nobody outside this machine has to reach a server that runs on it.
            self.ip = "127.0.0.1" if self.placement.site.is_local else "0.0.0.0"  # noqa: S104
            await self._submit(options)
            return await self.follower.wait()
        except GipfelError as error:
            self.options.note_error(error)
            raise SpawnProblem(error) from None
        finally:
            self._starting = False
            self.follower.progress.close()

    async def _submit(self, options: UserOptions) -> None:
        account, site = self.placement.account(), self.placement.site
        commands = self.placement.commands(account)
        edf = options.edf or self.default_edf
        if edf.startswith("~/"):
            edf = account.home + edf[1:]
        if edf:
            self.follower.progress.report(5, f"Checking the environment {edf}.")
            has_image = await commands.check(edf)
            self.follower.has_image = has_image and (options.engine or site.engine) != "host"
        request = await self.options.request(options, edf, account)
        await commands.make_log_folder()
        self.job_id = await self.submission.submit(request)
        # Saved now, not when the server answers: a hub that restarts meanwhile finds its job again.
        self._save_state()
        where = f" to {self.placement.cluster_name}" if self.clusters else ""
        self.follower.progress.report(10, f"Job {self.job_id} is submitted{where}.")

    def owns(self, token: str) -> bool:
        """Return whether this is the token of the server that was started last."""
        return bool(token and self._token_digest) and hmac.compare_digest(self._token_digest, _digest(token))

    def allows_port(self, port: int) -> bool:
        """Return whether the site lets a server listen there."""
        ports = PortRange.parse(self.server_ports)
        return ports is None or port in ports

    def set_port(self, port: int) -> bool:
        """Record the server's port, once for each start; return False where none is awaited."""
        if not self._awaits_server:
            return False
        self.follower.set_port(port)
        # A server may be faster than the answer of the command that submits it.
        if self.job_id:
            self._save_state()
        return True

    def on_vetting(self, progress: VettingProgress) -> bool:
        """Record the vetting progress that the job reported; return False where no server is awaited."""
        if self._awaits_server:
            self.follower.on_vetting(progress)
            return True
        return False

    @property
    def _awaits_server(self) -> bool:
        pending = self._starting or (self.job_id and self._check_pending)
        return not self.follower.port_taken and bool(pending)

    @property
    def in_container(self) -> bool:
        """True where the server starts in a container, as far as that is known; for the waiting page."""
        return self.follower.in_container

    @property
    def last_end(self) -> Failure | None:
        """End of the last server of this name, where it ended by itself; for the hub's page."""
        return self.follower.last_end

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Report what happens to the job until its server answers."""
        async for event in self.follower.progress.follow():
            yield event

    async def poll(self) -> int | None:
        """Return None while the job runs, waits or is not known; else its exit status, 0 where unknown."""
        if not self.job_id and (self._starting or not await self.submission.find()):
            return None if self._starting or self.submission.mark else 0
        if self.ready:
            self.follower.watch_end()
        watcher = self.placement.watcher
        status = watcher.status(self.job_id)
        if status is UNSEEN:
            status = await watcher.ask(self.job_id)
        return (status.exit_code or 0) if status.answer == "ended" else None

    async def get_url(self) -> str:
        """Return where the server is; after a hub restart in the middle of a start, wait for it first."""
        # The port is kept before the hub keeps the address: a restart in between must find the node again.
        if self.follower.port_taken and self.server.port == self.port:
            url: str = self.server.url
            return url
        found: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        # With these two the hub's pages show a start in progress, with its events and its stop button.
        self._spawn_future = asyncio.ensure_future(self._resume(found))
        self._spawn_pending = True
        try:
            address, port = await found
        except Exception as error:  # noqa: BLE001 - the hub would let the job run on, and never look again
            self.log.warning("%s's server was not started: %s", self._log_name, error)
            # The hub asks this address in vain, and cleans up: nothing else reports the failure to it here.
            self.http_timeout = 1
            return "http://127.0.0.1:1/"
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{port}{self.server.base_url}"

    async def _resume(self, found: "asyncio.Future[tuple[str, int]]") -> None:
        """Continue a start of an earlier hub process, until the hub has reached the server."""
        self.follower.begin()
        try:
            await self.submission.wait_until_found()
            found.set_result(await self.follower.wait())
            while self._check_pending:  # noqa: ASYNC110 - the hub clears it without any event
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
            self.follower.progress.close()
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
        job_id, watcher = self.job_id, self.placement.watcher
        user = self.placement.account().user
        if not job_id:
            self.submission.cancel_lost(user)
            return
        try:
            await self.placement.cluster.scheduler.cancel(job_id, user=user)
        except GipfelError as error:
            # The hub forgets a server that it stops, whatever comes of it.
            watcher.end_later(job_id, user)
            later = GipfelError(f"{error.problem} Job {job_id} will be cancelled when it answers.", error.fix)
            raise SpawnProblem(later, reason="stop", status_code=503) from None
        deadline = time.monotonic() + self.stop_timeout
        watcher.watch(job_id, closely=True)
        while not now and watcher.status(job_id).answer != "ended":
            if time.monotonic() > deadline:
                self.log.warning("Job %s did not end within %g s.", job_id, self.stop_timeout)
                watcher.end_later(job_id, user)
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def run_post_stop_hook(self) -> None:
        """Record the end of a job for its user's page and the audit log, then run the site's hook."""
        order = self.lifetime.stop_order
        if order and self.job_id and order.by != self.user.name:
            what = f"Job {self.job_id} was stopped: {order.reason or 'an administrator ended it'}."
            self.follower.last_end = Failure(what=what, fix="Start again when you need it.")
        self.lifetime.on_stopped()
        hooked = super().run_post_stop_hook()
        if hooked is not None:
            await hooked

    def load_state(self, state: dict[str, Any]) -> None:
        """Load the job that another hub process started."""
        super().load_state(state)
        self.placement.cluster_name = str(state.get("cluster") or "")
        self.lifetime.extended = int(state.get("extended") or 0)
        self.port = int(state.get("port") or 0)
        self.follower.port_taken = self.port > 0
        self._token_digest = str(state.get("token_digest", ""))
        self.submission.mark = str(state.get("mark", ""))

    def get_state(self) -> dict[str, Any]:
        """Return number and cluster of the job, its port once known, and a digest of the server's token."""
        state: dict[str, Any] = super().get_state()
        if self.placement.cluster_name:
            state["cluster"] = self.placement.cluster_name
        if self.job_id:
            if self.lifetime.extended:
                state["extended"] = self.lifetime.extended
            state["token_digest"] = self._token_digest
            if self.follower.port_taken:
                state["port"] = self.port
        elif self.submission.mark:
            state |= {"mark": self.submission.mark, "token_digest": self._token_digest}
        return state

    def clear_state(self) -> None:
        """Forget the job and its cluster."""
        if self.job_id:
            self.placement.watcher.forget(self.job_id)
        self.follower.port_taken, self._token_digest, self.submission.mark = False, "", ""
        super().clear_state()
        self.placement.cluster_name = ""

    def _save_state(self) -> None:
        self.orm_spawner.state = self.get_state()
        session = object_session(self.orm_spawner)
        if session is not None:
            session.commit()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
