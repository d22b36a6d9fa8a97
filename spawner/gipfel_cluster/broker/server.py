"""The broker of a job: what it answers, and who is asked for it."""

import asyncio
import sys

from ..model import Frozen, GipfelError
from ..scheduler.account import own_name
from ..scheduler.protocol import Scheduler
from .connection import Connection
from .container import linted_edf, usable_edf
from .containers import Containers
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
    StepRequest,
    SubmitAnswer,
    SubmitRequest,
    SuperviseRequest,
    read_request,
)
from .serving import Server
from .steps import Steps
from .supervision import supervise
from .surroundings import Surroundings, passed_on

_AT_ONCE = 4  # questions to the scheduler and to file systems
_ANSWER_S = 60.0


class Broker(Server):
    """Answers the processes of one job; when it has served, none of its containers is left.

    Parameters
    ----------
    surroundings
        The job.
    scheduler
        The one that runs the job.
    """

    def __init__(self, surroundings: Surroundings, scheduler: Scheduler) -> None:
        super().__init__(surroundings.socket)
        self._surroundings = surroundings
        self._scheduler = scheduler
        self._containers = Containers(surroundings)
        self._steps = Steps(surroundings)
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def answered(self, line: bytes, client: Connection) -> None:
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
                edf = await asyncio.to_thread(usable_edf, request.edf, self._surroundings, request.engine)
                return EdfAnswer(name=edf.name, file=edf.path or "", image=edf.image)
            case LintRequest():
                said = await asyncio.to_thread(linted_edf, request.edf, self._surroundings)
                return LintAnswer(diagnostics=said)
            case LocateRequest():
                found = await asyncio.to_thread(self._surroundings.located, request.spot)
                return LocateAnswer(path=str(found) if found else None)
            case SuperviseRequest():
                await asyncio.to_thread(supervise, request, self._surroundings)
                return Done()
            case FactsRequest():
                return await asyncio.to_thread(facts, self._surroundings)
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


def facts(surroundings: Surroundings) -> FactsAnswer:
    """Say what a further job needs to know."""
    try:
        runtime = surroundings.runtime_for_images().root
    except GipfelError:
        runtime = ""
    return FactsAnswer(
        scheduler=surroundings.scheduler,
        cluster=surroundings.cluster,
        engine=surroundings.engine,
        python=sys.executable,
        runtime=runtime,
        home=surroundings.home,
        environment=passed_on(surroundings.host),
    )
