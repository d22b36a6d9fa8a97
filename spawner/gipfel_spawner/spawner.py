"""`EDFSpawner`: a notebook server in a job, inside the container of an environment definition file."""

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from sqlalchemy.orm import object_session
from traitlets import default, observe

from gipfel_cluster.job import VettingProgress
from gipfel_cluster.model import GipfelError
from gipfel_cluster.ports import PORTS_VARIABLE, PortRange

from .cluster.watcher import NOT_POLLED
from .failure import Failure, SpawnProblem
from .form.options import UserOptions
from .gpu_hours import month_gpu_hours
from .lifetime import ServerLifetime
from .start.placement import ServerPlacement
from .start.service_host import ServiceHost
from .start.services import ServiceShares, prepare_start
from .start.spawn_options import SpawnOptions
from .start.submission import POLL_SECONDS, JobSubmission, StartFollower
from .start.successor import ServiceSuccessor
from .start.traits import SpawnerTraits


class EDFSpawner(SpawnerTraits):
    """Spawner that starts single-user servers as jobs of a scheduler, inside EDF containers.

    This class has JupyterHub's hooks and the configuration, and delegates the work to its collaborators:
    ``placement`` (cluster, account), ``options`` (form and job request), ``submission`` (the job and its
    mark), ``follower`` (from the job to a server that answers), ``lifetime`` (activity, extension, audit) and
    ``successor`` (the next job of a service).
    """

    _token_digest = ""
    _starting = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Created before the traits are configured, because the traits' observers use them.
        self.placement = ServerPlacement(self)
        self.options = SpawnOptions(self, self.placement)
        self.submission = JobSubmission(self, self.placement, save=self.save_state)
        self.follower = StartFollower(self, self.placement)
        self.lifetime = ServerLifetime(self, self.placement, self.options)
        self.successor = ServiceSuccessor(self, self.lifetime)
        self.service_host = ServiceHost(self)
        super().__init__(*args, **kwargs)

    @observe(
        "clusters", "cluster", "scheduler", "exec_prefix", "broker_socket", "engine", "runtime", "python"
    )
    def _reset_cluster_settings(self, _change: object) -> None:
        self.placement.reset_settings()

    @observe("job_id")
    def _note_submission(self, change: dict[str, Any]) -> None:
        if change["new"]:
            self.lifetime.on_submitted()
            if self.follower.port_received:
                # The server reported before the submit command had returned.
                self.lifetime.on_running()

    @default("options_from_form")
    def _default_options_from_form(self) -> Callable[..., Any]:
        return self.options.from_form

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Callable[..., Any]:
        # The options are read in `start` instead: JupyterHub logs a stack trace of an error in this hook.
        return lambda _spawner, _options: None

    @default("options_form")
    def _default_options_form(self) -> Callable[..., Any]:
        return type(self).render_options_form

    async def render_options_form(self) -> str:
        """Return the form as HTML, with a line for each query that failed."""
        # Set by JupyterHub to the handler of the page.
        number = getattr(self.handler, "repeat", 0)
        history, created = self.lifetime.history(), self.lifetime.user_created
        session = await history.get(self.user.name, number, since=created) if number else None
        jobs = [each.job_id for each in self.user.all_spawners() if getattr(each, "job_id", "")]
        hours = await month_gpu_hours(self, running=jobs)
        lines = (hours.text, *hours.budgets)
        return await self.options.render(session.options if session else None, gpu_hours=lines)

    def options_from_query(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Preselect the options of a link in the form; a link never starts a job.

        Raises
        ------
        SpawnProblem
            Always: JupyterHub then shows the form.
        """
        return self.options.from_query(query)

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Add the variables of cluster and account, such as home directory, user name and run folders."""
        return self.placement.job_environment(env)

    def get_env(self) -> dict[str, Any]:
        """Return JupyterHub's variables with the hub's address as seen from nodes, and the allowed ports."""
        default_url = self.hub_connect_url
        self.hub_connect_url = self.placement.settings.hub_connect_url or default_url
        try:
            environment: dict[str, Any] = super().get_env()
        finally:
            self.hub_connect_url = default_url
        if self.server_ports:
            environment[PORTS_VARIABLE] = self.server_ports
        if self.service_host.origin:
            environment["JUPYTERHUB_OAUTH_CALLBACK_URL"] = self.service_host.callback
        return environment

    async def start(self) -> tuple[str, int]:
        """Submit the job, wait until its server has reported its port, and return its address and port.

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
        self.follower.port_received, self.port = False, 0
        self._token_digest = _digest(self.api_token)
        self._starting = True
        self.follower.last_end = None
        try:
            options = self.options.read_stored()
            self.placement.cluster_name = self.placement.settings_of(options.cluster).name
            # A server on the hub's own machine is reached through loopback only.
            self.ip = "127.0.0.1" if self.placement.settings.is_local else "0.0.0.0"  # noqa: S104
            await self._submit(options)
            address, port = await self.follower.wait()
            await self.service_host.route(_url(address, port))
        except GipfelError as error:
            self.options.note_error(error)
            raise SpawnProblem(error) from None
        else:
            return address, port
        finally:
            self._starting = False
            self.follower.progress.close()

    async def _submit(self, options: UserOptions) -> None:
        account, settings = self.placement.account(), self.placement.settings
        commands = self.placement.commands(account)
        edf = options.edf or self.default_edf
        service: tuple[str, ...] = ()
        if options.service:
            options, edf, service = await prepare_start(self, options, commands)
        # Shares of this server's name may have been given for another service.
        ServiceShares(self).end_refused(is_service=bool(options.service))
        edf = account.expand(edf)
        if edf:
            self.follower.progress.report(5, f"Checking the environment {edf}.")
            image = await commands.check(edf)
            self.follower.has_image = bool(image) and (options.engine or settings.engine) != "host"
            if self.follower.has_image and commands.refuses_images:
                self.follower.progress.report(7, "Looking up known vulnerabilities of the image.")
                await commands.check_image(image)
        request = await self.options.request(options, edf, account, service=service)
        await commands.create_log_directory()
        self.job_id = await self.submission.submit(request)
        # Saved now rather than when the server answers, so that a restarted hub finds the job again.
        self.save_state()
        cluster = f" to {self.placement.cluster_name}" if self.clusters else ""
        self.follower.progress.report(10, f"Job {self.job_id} is submitted{cluster}.")

    def owns(self, token: str) -> bool:
        """Return whether this is the token of the most recently started server."""
        return bool(token and self._token_digest) and hmac.compare_digest(self._token_digest, _digest(token))

    def allows_port(self, port: int) -> bool:
        """Return whether the site allows a server to listen on this port."""
        ports = PortRange.parse(self.server_ports)
        return ports is None or port in ports

    def set_port(self, port: int) -> bool:
        """Record the server's port, once per start; return False if no server is starting."""
        if not self._awaits_server:
            return self.successor.set_port(port)
        self.follower.set_port(port)
        self.lifetime.on_running()
        # A server can report its port before the submit command has returned.
        if self.job_id:
            self.save_state()
        return True

    def on_vetting(self, progress: VettingProgress) -> bool:
        """Record the vetting progress that the job reported; return False if no server is starting."""
        if self._awaits_server:
            self.follower.on_vetting(progress)
            return True
        return False

    @property
    def _awaits_server(self) -> bool:
        pending = self._starting or (self.job_id and self._check_pending)
        return not self.follower.port_received and bool(pending)

    @property
    def in_container(self) -> bool:
        """True if the server starts in a container, as far as is known; used by the waiting page."""
        return self.follower.in_container

    @property
    def last_end(self) -> Failure | None:
        """Failure of the last server of this name, if it ended by itself; shown on the hub's page."""
        return self.follower.last_end

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield JupyterHub's progress events until the server answers."""
        async for event in self.follower.progress.follow():
            yield event

    async def poll(self) -> int | None:
        """Return None while the job runs, waits or is unknown; else its exit status, 0 if that is unknown."""
        if not self.job_id and (self._starting or not await self.submission.find()):
            return None if self._starting or self.submission.mark else 0
        if self.job_id and not self._awaits_server:
            # This also happens while a restarted hub checks its servers: a later poll may find the job ended.
            self.follower.watch_end()
        if self.ready:
            self.successor.end_left()
        watcher = self.placement.watcher
        status = watcher.status(self.job_id)
        if status is NOT_POLLED:
            status = await watcher.query(self.job_id)
        return (status.exit_code or 0) if status.answer == "ended" else None

    async def get_url(self) -> str:
        """Return the server's URL; after a hub restart during a start, wait for the server first."""
        # The port is saved before the hub saves the address: after a restart in between, the address must be
        # queried again.
        if self.follower.port_received and self.server.port == self.port:
            await self.service_host.route(self.server.host)
            url: str = self.server.url
            return url
        found: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        # With these two attributes the hub's pages show a start in progress, with its events and stop button.
        self._spawn_future = asyncio.ensure_future(self._resume(found))
        self._spawn_pending = True
        try:
            address, port = await found
        except Exception as error:  # noqa: BLE001 - the hub would keep the job running and never poll it again
            self.log.warning("%s's server was not started: %s", self._log_name, error)
            # The hub gets no answer from this address and then cleans up. No other return value reports a
            # failure from here.
            self.http_timeout = 1
            return "http://127.0.0.1:1/"
        return f"{_url(address, port)}{self.server.base_url}"

    async def _resume(self, future: "asyncio.Future[tuple[str, int]]") -> None:
        """Continue a start of an earlier hub process until the hub has reached the server."""
        self.follower.begin()
        try:
            await self.submission.wait_until_found()
            future.set_result(await self.follower.wait())
            while self._check_pending:  # noqa: ASYNC110 - the hub clears it without any event
                await asyncio.sleep(POLL_SECONDS)
        except asyncio.CancelledError:
            # The user cancelled the start. The caller of `get_url` keeps waiting, which is harmless.
            self._check_pending, self._spawn_future = False, None
            raise
        except Exception as error:
            if not future.done():
                future.set_exception(error)
            raise
        finally:
            self.follower.progress.close()
            self._spawn_pending = False
        self._spawn_future = None
        if self.ready:
            # The hub checked its routes before the server was ready; the next check is five minutes later.
            await self.user.settings["proxy"].add_user(self.user, self.name)
            await self.service_host.route(self.server.host)

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
            # The hub forgets a server that it stops even if stopping fails.
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
            await asyncio.sleep(POLL_SECONDS)

    async def run_post_stop_hook(self) -> None:
        """Record the end of the job for the user's page and the audit log, then run the site's hook."""
        order = self.lifetime.stop_order
        if order and self.job_id and order.by != self.user.name:
            event = f"Job {self.job_id} was stopped: {order.reason or 'an administrator ended it'}."
            self.follower.last_end = Failure(event=event, fix="Start the server again when you need it.")
        self.lifetime.on_stopped()
        hooked = super().run_post_stop_hook()
        if hooked is not None:
            await hooked

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the job that an earlier hub process started."""
        super().load_state(state)
        self.placement.cluster_name = str(state.get("cluster") or "")
        self.lifetime.extended = int(state.get("extended") or 0)
        self.port = int(state.get("port") or 0)
        self.follower.port_received = self.port > 0
        self.follower.keep_up = bool(state.get("keep_up"))
        self.follower.has_pages = bool(state.get("has_pages", True))
        self.successor.load_state(state)
        self.service_host.origin = str(state.get("host") or "")
        self._token_digest = str(state.get("token_digest", ""))
        self.submission.mark = str(state.get("mark", ""))

    def get_state(self) -> dict[str, Any]:
        """Return the job's ID and cluster, its port once known, and a digest of the server's token."""
        state: dict[str, Any] = super().get_state()
        if self.placement.cluster_name:
            state["cluster"] = self.placement.cluster_name
        if self.job_id:
            if self.lifetime.extended:
                state["extended"] = self.lifetime.extended
            if self.follower.keep_up:
                state["keep_up"] = True
            state |= self.successor.get_state()
            if self.service_host.origin:
                state["host"] = self.service_host.origin
            if not self.follower.has_pages:
                state["has_pages"] = False
            state["token_digest"] = self._token_digest
            if self.follower.port_received:
                state["port"] = self.port
        elif self.submission.mark:
            state |= {"mark": self.submission.mark, "token_digest": self._token_digest}
        return state

    def clear_state(self) -> None:
        """Forget the job and its cluster."""
        self.successor.end()
        self.service_host.end()
        if self.job_id:
            self.placement.watcher.forget(self.job_id)
        self.follower.port_received, self._token_digest, self.submission.mark = False, "", ""
        super().clear_state()
        self.placement.cluster_name = ""

    def save_state(self) -> None:
        """Commit the state to the hub's database."""
        self.orm_spawner.state = self.get_state()
        session = object_session(self.orm_spawner)
        if session is not None:
            session.commit()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _url(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
