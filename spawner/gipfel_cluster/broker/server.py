"""The broker of a job: answers its processes, and runs containers for them."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from pathlib import Path
from typing import Protocol

from ..model import Frozen, GipfelError
from ..process.tree import kill_tree
from ..scheduler.command import own_name
from ..scheduler.protocol import Scheduler
from .container import Prepared, linted_edf, prepare_run, usable_edf
from .context import JobContext, passed_on
from .messages import (
    AddressAnswer,
    AddressRequest,
    AnyRequest,
    CancelRequest,
    Done,
    EdfAnswer,
    EdfRequest,
    FactsAnswer,
    FactsRequest,
    KernelRequest,
    LintAnswer,
    LintRequest,
    LocateAnswer,
    LocateRequest,
    PartitionsAnswer,
    PartitionsRequest,
    QueryAnswer,
    QueryRequest,
    RunRequest,
    Started,
    StepRequest,
    SubmitAnswer,
    SubmitRequest,
    SuperviseRequest,
    read_request,
)
from .serving import STREAMS, Connection, Server, follow

_MOST_CONTAINERS = 48
_PREPARE_S = 30.0
_GRACE_S = 3.0
# SIGKILL of the process that was started ends the whole container.
_END_WITH_THEIR_PROCESS = frozenset(("bubblewrap", "host"))
_MOST_QUESTIONS = 4  # questions to the scheduler and to file systems
_ANSWER_S = 60.0


class Containers:
    """Runs containers for clients: each as long as its client, none longer than the broker."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._count = 0

    async def run(self, request: RunRequest | KernelRequest, client: Connection) -> None:
        """Run a command until it or its client ends, and report its exit status.

        Raises
        ------
        GipfelError
            It can't be run, or there are too many.
        """
        if len(client.files) != STREAMS:
            raise GipfelError("The broker needs input, output and errors of a command.")
        if self._count >= _MOST_CONTAINERS:
            raise GipfelError(
                f"The broker already runs {_MOST_CONTAINERS} commands.", "End a kernel and try again."
            )
        self._count += 1
        try:
            scratch = _own_folder(self._context.scratch)
            try:
                prepared = await self._prepared(request, scratch)
                await self._run(prepared, client)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        finally:
            self._count -= 1

    async def _prepared(self, request: RunRequest | KernelRequest, scratch: Path) -> Prepared:
        try:
            async with asyncio.timeout(_PREPARE_S):
                return await asyncio.to_thread(
                    prepare_run, request, self._context, scratch, python=sys.executable
                )
        except TimeoutError:
            raise
        except OSError as error:
            raise _unprepared(error) from error

    async def _run(self, prepared: Prepared, client: Connection) -> None:
        process = await _started(prepared, client.files)
        try:
            client.close_files()
            await client.send(Started(notes=prepared.invocation.notes))
            await follow(process, client)
        except asyncio.CancelledError:
            await _end(process, gently=True)
            raise
        finally:
            # A restarted kernel must not meet the one before on its sockets.
            await _end(process, gently=prepared.engine not in _END_WITH_THEIR_PROCESS)


def _own_folder(scratch: str) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="b", dir=scratch))
    except OSError as error:
        raise _unprepared(error) from error


def _unprepared(error: OSError) -> GipfelError:
    """Turn an error of the host into a refusal: raised as it is, it would pass for a client that is gone."""
    where = f" ({error.filename})" if error.filename else ""
    return GipfelError(
        f"The container can't be prepared: {error.strerror or error}{where}.",
        "Make room on the node, or end a kernel, and try again.",
    )


async def _started(prepared: Prepared, files: tuple[int, ...]) -> Process:
    invocation = prepared.invocation
    given, output, errors = files
    try:
        return await asyncio.create_subprocess_exec(
            *invocation.argv,
            env=invocation.environment,
            cwd=prepared.directory,
            stdin=given,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise GipfelError(
            f"The command can't be started: {error.strerror} ({error.filename or invocation.argv[0]}).",
            "Check the command and the EDF.",
        ) from error


async def _end(process: Process, *, gently: bool) -> None:
    if process.returncode is not None:
        return
    if gently:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await process.wait()
                return
    kill_tree(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    await process.wait()


class StepServer(Protocol):
    """Starts what runs on several nodes of the job; see `gipfel_cluster.steps.served`."""

    async def run(self, request: StepRequest, client: Connection) -> None:
        """Run a step until it or its client ends, and report its exit status."""

    def supervise(self, request: SuperviseRequest) -> None:
        """Start the supervisor of a launch, which outlives its client."""


class Broker(Server):
    """Answers the processes of one job; when it has served, none of its containers is left.

    Parameters
    ----------
    context
        The job that it serves.
    scheduler
        The scheduler that runs the job.
    steps
        Starts steps and launches; `gipfel_cluster.steps` is above this package.
    """

    def __init__(self, context: JobContext, scheduler: Scheduler, steps: StepServer) -> None:
        super().__init__(context.socket)
        self._context = context
        self._scheduler = scheduler
        self._containers = Containers(context)
        self._steps = steps
        self._turns = asyncio.Semaphore(_MOST_QUESTIONS)

    async def answer(self, line: bytes, client: Connection) -> None:
        """Answer a process of the job."""
        request = read_request(line)
        if isinstance(request, RunRequest | KernelRequest):
            await self._containers.run(request, client)
            return
        client.close_files()
        if isinstance(request, StepRequest):
            await self._steps.run(request, client)
            return
        async with asyncio.timeout(_ANSWER_S), self._turns:
            answer = await self._answer(request)
        await client.send(answer)

    async def _answer(self, request: AnyRequest) -> Frozen:
        match request:
            case EdfRequest():
                edf = await asyncio.to_thread(usable_edf, request.edf, self._context, request.engine)
                return EdfAnswer(name=edf.name, file=edf.path or "", image=edf.image)
            case LintRequest():
                diagnostics = await asyncio.to_thread(linted_edf, request.edf, self._context)
                return LintAnswer(diagnostics=diagnostics)
            case LocateRequest():
                found = await asyncio.to_thread(self._context.located, request.ref)
                return LocateAnswer(path=str(found) if found else None)
            case SuperviseRequest():
                await asyncio.to_thread(self._steps.supervise, request)
                return Done()
            case FactsRequest():
                return await asyncio.to_thread(facts, self._context)
            case _:
                return await self._ask_scheduler(request)

    async def _ask_scheduler(self, request: AnyRequest) -> Frozen:
        match request:
            case SubmitRequest():
                if request.job.user not in {"", own_name()}:
                    raise GipfelError("The broker submits jobs of its own user only.", "Leave the user out.")
                return SubmitAnswer(job_id=await self._scheduler.submit(request.job))
            case QueryRequest():
                return QueryAnswer(jobs=await self._scheduler.query(request.job_ids))
            case CancelRequest():
                await self._scheduler.cancel(request.job_id)
                return Done()
            case AddressRequest():
                return AddressAnswer(address=await self._scheduler.address(request.node))
            case PartitionsRequest():
                return PartitionsAnswer(partitions=await self._scheduler.partitions())
            case _:
                raise GipfelError("The broker has no answer to this request.")


def facts(context: JobContext) -> FactsAnswer:
    """Return what a further job needs to know."""
    try:
        runtime = context.runtime_for_images().root
    except GipfelError:
        runtime = ""
    return FactsAnswer(
        scheduler=context.scheduler,
        cluster=context.cluster,
        engine=context.engine,
        python=sys.executable,
        runtime=runtime,
        home=context.home,
        environment=passed_on(context.host),
    )
