"""The broker of a job: answers requests of the job's processes, and runs containers for them."""

import asyncio
import sys
import tempfile
from asyncio.subprocess import Process
from pathlib import Path
from typing import Protocol

from ..edf.gate import network_annotations
from ..environment import without_tokens
from ..image_verdict import is_configured, judge_image
from ..model import Frozen, GipfelError, ReportOSError
from ..scheduler.machine import current_user_name
from ..scheduler.protocol import Quota, QuotaFacts, Scheduler
from . import messages
from .container import PreparedCommand, edf_diagnostics, host_edf, prepare_run
from .context import JobContext, variables_for_new_job
from .serving import STREAMS, Connection, Server, end_process, relay_until_end

#: Commands that run at the same time; further ones are refused.
_MAX_CONTAINERS = 48
#: Seconds for composing a command, and between SIGTERM and SIGKILL at its end.
_PREPARE_S = 30.0
_GRACE_S = 3.0
# Engines whose whole container ends if the started process is killed.
_KILLABLE_ENGINES = frozenset(("bubblewrap", "host"))
_MAX_REQUESTS = 4  # concurrent requests to the scheduler and to file systems
#: Time limit of other requests in seconds, including their wait for one of these.
_ANSWER_S = 60.0
#: Makes an error of the host a refusal; an OSError would look like a client that disconnected.
_PREPARING = ReportOSError(
    "The container can't be prepared", "Free disk space on the node, or end a kernel, and try again."
)


class Containers:
    """Runs containers for clients; a container ends with its client or with the broker."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._count = 0

    async def run(self, request: messages.RunRequest | messages.KernelRequest, client: Connection) -> None:
        """Run a command until it or its client ends, and report its exit status.

        Raises
        ------
        GipfelError
            The command can't be run, or too many are running.
        """
        if len(client.files) != STREAMS:
            raise GipfelError("The request has no descriptors for standard input, output and error.")
        if self._count >= _MAX_CONTAINERS:
            raise GipfelError(
                f"The broker already runs {_MAX_CONTAINERS} commands.", "End a kernel and try again."
            )
        self._count += 1
        try:
            with _PREPARING:
                scratch = tempfile.TemporaryDirectory(
                    prefix="b", dir=self._context.scratch, ignore_cleanup_errors=True
                )
            with scratch as folder:
                async with asyncio.timeout(_PREPARE_S):
                    with _PREPARING:
                        prepared = await asyncio.to_thread(
                            prepare_run, request, self._context, Path(folder), python=sys.executable
                        )
                await self._run(prepared, client)
        finally:
            self._count -= 1

    async def _run(self, prepared: PreparedCommand, client: Connection) -> None:
        process = await _start(prepared, client.files)
        try:
            client.close_files()
            await client.send(messages.Started(notes=prepared.invocation.notes))
            await relay_until_end(process, client)
        except asyncio.CancelledError:
            await end_process(process, _GRACE_S)
            raise
        finally:
            # End it before the client can restart a kernel, which binds the same sockets.
            await end_process(process, 0 if prepared.engine in _KILLABLE_ENGINES else _GRACE_S)


async def _start(prepared: PreparedCommand, files: tuple[int, ...]) -> Process:
    invocation = prepared.invocation
    stdin, stdout, stderr = files
    with ReportOSError("The command can't be started", "Check the command and the EDF."):
        return await asyncio.create_subprocess_exec(
            *invocation.argv,
            env=invocation.environment,
            cwd=prepared.directory,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )


class StepServer(Protocol):
    """Starts steps and launches on the job's nodes; see `gipfel_cluster.steps.broker`."""

    async def run(self, request: messages.StepRequest, client: Connection) -> None:
        """Run a step until it or its client ends, and report its exit status."""

    def supervise(self, request: messages.SuperviseRequest) -> None:
        """Start the supervisor of a launch, which outlives its client."""


class Broker(Server):
    """The server for the processes of one job; all its containers have ended when `serve` returns.

    Parameters
    ----------
    context
        The job.
    scheduler
        The job's scheduler.
    steps
        Starts steps and launches; a parameter, because this package must not import `gipfel_cluster.steps`.
    """

    def __init__(self, context: JobContext, scheduler: Scheduler, steps: StepServer) -> None:
        super().__init__(context.socket)
        self._context = context
        self._scheduler = scheduler
        self._containers = Containers(context)
        self._steps = steps
        self._semaphore = asyncio.Semaphore(_MAX_REQUESTS)

    async def answer(self, line: bytes, client: Connection) -> None:
        """Answer a request of a process of the job."""
        request = messages.parse_request_line(line, messages.REQUESTS)
        if isinstance(request, messages.RunRequest | messages.KernelRequest):
            await self._containers.run(request, client)
            return
        client.close_files()
        if isinstance(request, messages.StepRequest):
            await self._steps.run(request, client)
            return
        async with asyncio.timeout(_ANSWER_S), self._semaphore:
            answer = await self._answer(request)
        await client.send(answer)

    async def _answer(self, request: messages.AnyRequest) -> Frozen:
        match request:
            case messages.EdfRequest() | messages.LintRequest() | messages.VerdictRequest():
                return await asyncio.to_thread(self._inspect, request)
            case messages.LocateRequest():
                path = await asyncio.to_thread(self._context.host_path, request.ref)
                return messages.Answer(value=str(path) if path else None)
            case messages.SuperviseRequest():
                await asyncio.to_thread(self._steps.supervise, request)
                return messages.Answer(value=None)
            case messages.FactsRequest():
                return await asyncio.to_thread(facts, self._context)
            case _:
                return await self._ask_scheduler(request)

    def _inspect(
        self, request: messages.EdfRequest | messages.LintRequest | messages.VerdictRequest
    ) -> Frozen:
        """Inspect an EDF or an image on the host, which takes as long as its file system needs to answer."""
        match request:
            case messages.EdfRequest():
                edf = host_edf(request.edf, self._context, request.engine)
                network = network_annotations(edf.annotations)
                return messages.EdfAnswer(
                    name=edf.name, file=edf.path or "", image=edf.image, network=network
                )
            case messages.LintRequest():
                return messages.Answer(value=edf_diagnostics(request.edf, self._context))
            case messages.VerdictRequest():
                environment = without_tokens(self._context.host_environment)
                wanted = is_configured(environment)
                verdict = judge_image(sys.executable, request.image, environment) if wanted else None
                return messages.Answer(value=verdict)

    async def _quota(self) -> Quota | None:
        scheduler = self._scheduler
        return await scheduler.quota(current_user_name()) if isinstance(scheduler, QuotaFacts) else None

    async def _ask_scheduler(self, request: messages.AnyRequest) -> Frozen:
        match request:
            case messages.SubmitRequest():
                if request.job.user not in {"", current_user_name()}:
                    raise GipfelError("The broker submits jobs of its own user only.", "Omit the user.")
                return messages.Answer(value=await self._scheduler.submit(request.job))
            case messages.QueryRequest():
                return messages.Answer(value=await self._scheduler.query(request.job_ids))
            case messages.CancelRequest():
                await self._scheduler.cancel(request.job_id)
                return messages.Answer(value=None)
            case messages.AddressRequest():
                return messages.Answer(value=await self._scheduler.address(request.node))
            case messages.PartitionsRequest():
                return messages.Answer(value=await self._scheduler.partitions())
            case messages.QuotaRequest():
                return messages.Answer(value=await self._quota())
            case _:
                raise GipfelError("The broker does not support this request.")


def facts(context: JobContext) -> messages.FactsAnswer:
    """Return the facts about a job that submitting another job needs."""
    try:
        runtime = context.runtime_for_images().root
    except GipfelError:
        runtime = ""
    return messages.FactsAnswer(
        scheduler=context.scheduler,
        cluster=context.cluster,
        engine=context.engine,
        python=sys.executable,
        runtime=runtime,
        home=context.home,
        environment=variables_for_new_job(context.host_environment),
    )
