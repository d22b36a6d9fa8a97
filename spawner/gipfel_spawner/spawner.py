"""`EDFSpawner`: a notebook server in a job, inside the container of an environment definition file."""

import asyncio
import hashlib
import hmac
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from sqlalchemy.orm import object_session
from traitlets import default

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime import Runtime
from gipfel_cluster.scheduler.protocol import JobRequest, JobStatus

from .account import Account, account_environment, account_of
from .choice import ChoosingSpawner
from .cluster import Cluster, shared_cluster
from .errands import Errands, Tail
from .form import fill_form, render_form
from .options import UserOptions, choose_partition, time_within
from .problem import SpawnProblem
from .progress import Progress, describe, describe_end
from .request import server_request, server_spec
from .watcher import JobWatcher

_LOOK_SECONDS = 0.25


class EDFSpawner(ChoosingSpawner):
    """Starts single-user servers as jobs of a scheduler, inside EDF containers."""

    _port_taken = False
    _token_digest = ""
    _starting = False
    _deadline = 0.0
    _account: Account | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._progress = Progress()

    @default("options_form")
    def _default_options_form(self) -> Callable[..., Any]:
        return type(self).render_options_form

    async def render_options_form(self) -> str:
        """The form, with a line for whatever could not be asked."""

        async def environments() -> tuple[str, ...]:
            return await self._errands(self._find_account()).environments()

        content = await fill_form(
            self._cluster.scheduler,
            environments,
            self.take_preselected(),
            cluster=self.cluster,
            default_edf=self.default_edf,
            default_gpus=self.default_gpus,
            default_time=self.default_time,
        )
        return render_form(content)

    @property
    def _cluster(self) -> Cluster:
        return shared_cluster(
            self.user.settings,
            self.scheduler,
            environment=dict(os.environ),
            state_folder=Path(self.state_folder),
            exec_prefix=self.exec_prefix,
            answer_limit=self.answer_limit,
            interval=self.watch_interval,
            calm_interval=self.calm_interval,
            log=self.log,
        )

    @property
    def _watcher(self) -> JobWatcher:
        return self._cluster.watcher

    def _find_account(self) -> Account:
        if self._account is None:
            self._account = account_of(
                self.user.name,
                state_folder=Path(self.state_folder),
                needs_unix_user=self.scheduler == "slurm",
            )
        return self._account

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Set what depends on the unix account: home folder, user name, shell, run folders."""
        return account_environment(self._find_account(), self.user.name, env)

    def _python(self) -> str:
        if self.python:
            return str(self.python)
        return Runtime.load(self.runtime).python if self.runtime else sys.executable

    def _errands(self, account: Account) -> Errands:
        environment = {name: os.environ[name] for name in self.env_keep if name in os.environ}
        environment |= {name: value for name, value in self.environment.items() if isinstance(value, str)}
        return Errands(
            account,
            environment=account_environment(account, self.user.name, environment),
            python=self._python(),
            exec_prefix=self.exec_prefix,
        )

    async def start(self) -> tuple[str, int]:
        """Submit the job and wait until its server has given its port; returns where the hub reaches it.

        Raises
        ------
        SpawnProblem
            The job can't be submitted, or ended before its server answered.
        """
        self._progress = Progress()
        self._port_taken, self.port = False, 0
        # Nobody outside this machine has to reach a server that runs on it.
        self.ip = "127.0.0.1" if self.scheduler == "local" else "0.0.0.0"  # noqa: S104
        self._token_digest = _digest(self.api_token)
        self._starting = True
        # A little before JupyterHub's own limit, whose message says nothing of the queue.
        self._deadline = time.monotonic() + max(self.start_timeout - 2, 1)
        try:
            await self._submit(self.chosen_options())
            return await self._await_server()
        except GipfelError as error:
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
            await errands.check(edf)
        request = await self._request(options, edf, account)
        await errands.make_log_folder()
        self.job_id = await self._cluster.scheduler.submit(request)
        # Saved now, not when the server answers: a hub that restarts meanwhile finds its job again.
        self._save_state()
        self._progress.say(10, f"Job {self.job_id} is submitted.")

    async def _request(self, options: UserOptions, edf: str, account: Account) -> JobRequest:
        wanted = options.model_copy(
            update={
                "partition": options.partition or self.req_partition,
                "gpus": self.default_gpus if options.gpus is None else options.gpus,
            }
        )
        partition = choose_partition(wanted, await self._cluster.scheduler.partitions())
        site = self.site_options(time_within(self.default_time, partition))
        spec = server_spec(
            wanted,
            cluster=self.cluster,
            edf=edf,
            engine=self.engine,
            runtime=self.runtime,
            arguments=tuple(self.get_args()),
        )
        return server_request(
            wanted, site, spec, account=account, python=self._python(), environment=self.get_env()
        )

    async def _await_server(self) -> tuple[str, int]:
        """Wait for the job, then for its server's port, then for the node's address."""
        job_id = self.job_id
        self._watcher.watch(job_id, closely=True)
        try:
            return await self._await_port(job_id)
        finally:
            if self.job_id == job_id:
                self._watcher.watch(job_id)

    async def _await_port(self, job_id: str) -> tuple[str, int]:
        running: float | None = None
        address = ""
        while True:
            if self.job_id != job_id:
                raise GipfelError("The start was cancelled.")
            status = self._watcher.status(job_id)
            if status.answer == "ended":
                raise await self._end_of_job(status, running)
            self._progress.say(*describe(job_id, status))
            if running is None and (status.state == "RUNNING" or self._port_taken):
                running = time.monotonic()
            if self._port_taken and status.nodes and not address:
                address = await self._address(status.nodes[0])
            if address:
                self._progress.say(80, f"The server answers on {status.nodes[0]}.")
                return address, self.port
            if running is not None and time.monotonic() - running > self.server_timeout:
                raise await self._silent_server(status)
            if time.monotonic() > self._deadline:
                raise GipfelError(
                    f"Job {job_id} took more than {self.start_timeout} s. {describe(job_id, status)[1]}",
                    "It is cancelled; ask for less, or try again later.",
                )
            if self._port_taken and not status.nodes:
                await self._watcher.ask(job_id)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _address(self, node: str) -> str:
        try:
            return await self._cluster.scheduler.address(node)
        except GipfelError as error:
            self.log.warning("The address of %s: %s", node, error)
            return ""

    async def _log_tail(self) -> Tail:
        account = self._find_account()
        text = await self._errands(account).last_lines(f"{account.log_folder}/server-{self.job_id}.log")
        return Tail(text=text.replace(self.api_token, "…") if self.api_token else text)

    async def _end_of_job(self, status: JobStatus, running: float | None) -> SpawnProblem:
        tail = await self._log_tail()
        seconds = None if running is None else time.monotonic() - running
        error = GipfelError(
            f"{describe_end(self.job_id, status, seconds)}: {tail.verdict or 'it left no log.'}"
        )
        return SpawnProblem(error, reason="job", log=tail.text, status_code=500)

    async def _silent_server(self, status: JobStatus) -> SpawnProblem:
        tail = await self._log_tail()
        node = status.nodes[0] if status.nodes else "its node"
        error = GipfelError(
            f"Job {self.job_id} runs on {node}, but its server gave no port in {self.server_timeout:g} s.",
            f"Can the nodes reach the hub at {self.hub.api_url}? {tail.verdict}",
        )
        return SpawnProblem(error, reason="server", log=tail.text, status_code=500)

    def owns(self, token: str) -> bool:
        """Whether this is the token of the server that was started last."""
        return bool(token and self._token_digest) and hmac.compare_digest(self._token_digest, _digest(token))

    def take_port(self, port: int) -> bool:
        """Take the server's port, once for each start; False where none is awaited."""
        if self._port_taken or not (self._starting or (self.job_id and self._check_pending)):
            return False
        self.port, self._port_taken = port, True
        # A server may be faster than the answer of the command that submits it.
        if self.job_id:
            self._save_state()
        return True

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Tell what happens to the job until its server answers."""
        async for event in self._progress.follow():
            yield event

    async def poll(self) -> int | None:
        """None while the job runs, waits or is not known; else its exit status, 0 where that is not known."""
        if not self.job_id:
            return None if self._starting else 0
        status = self._watcher.status(self.job_id)
        if status.answer == "unknown":
            status = await self._watcher.ask(self.job_id)
        return (status.exit_code or 0) if status.answer == "ended" else None

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
        self._progress = Progress()
        self._deadline = time.monotonic() + self.start_timeout
        try:
            found.set_result(await self._await_server())
            while self._check_pending:  # noqa: ASYNC110 - the hub clears it, and tells nobody
                await asyncio.sleep(_LOOK_SECONDS)
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
        if not job_id:
            return
        user = self._find_account().user
        try:
            await self._cluster.scheduler.cancel(job_id, user=user)
        except GipfelError as error:
            # The hub forgets a server that it stops, whatever comes of it.
            self._watcher.end_later(job_id, user)
            later = GipfelError(f"{error.problem} Job {job_id} will be cancelled when it answers.", error.fix)
            raise SpawnProblem(later, reason="stop", status_code=503) from None
        deadline = time.monotonic() + self.stop_timeout
        while not now and (await self._watcher.ask(job_id)).answer != "ended":
            if time.monotonic() > deadline:
                self.log.warning("Job %s did not end within %g s.", job_id, self.stop_timeout)
                self._watcher.end_later(job_id, user)
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up the job that another hub process started."""
        super().load_state(state)
        self.port = int(state.get("port") or 0)
        self._port_taken = self.port > 0
        self._token_digest = str(state.get("token_digest", ""))

    def get_state(self) -> dict[str, Any]:
        """The job's number, the port once it is known, and a digest of the server's token."""
        state: dict[str, Any] = super().get_state()
        if self.job_id:
            state["token_digest"] = self._token_digest
            if self._port_taken:
                state["port"] = self.port
        return state

    def clear_state(self) -> None:
        """Forget the job."""
        if self.job_id:
            self._watcher.forget(self.job_id)
        self._port_taken, self._token_digest = False, ""
        super().clear_state()

    def _save_state(self) -> None:
        self.orm_spawner.state = self.get_state()
        session = object_session(self.orm_spawner)
        if session is not None:
            session.commit()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
