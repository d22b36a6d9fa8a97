"""The hub's broker itself: it checks who is acted as, and asks the scheduler."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ...model import Frozen, GipfelError
from ...scheduler.protocol import JobRequest, LostJobError, MarkedJob, Scheduler
from ...scheduler.site import SiteFacts
from ...scheduler.slurm_presence import SLURM_VARIABLES
from ..connection import Connection
from ..messages import (
    AddressAnswer,
    AddressRequest,
    Done,
    PartitionsAnswer,
    PartitionsRequest,
    QueryAnswer,
    QueryRequest,
    SubmitRequest,
    read_line,
)
from ..serving import Server
from .accounts import ActableUsers
from .messages import (
    HUB_REQUESTS,
    CancelAsRequest,
    ChoicesAnswer,
    ChoicesRequest,
    ExpectedStartAnswer,
    ExpectedStartRequest,
    ExtendRequest,
    FindAnswer,
    FindRequest,
    HubRequest,
    MarkedAnswer,
    MarkedRequest,
    SubmittedAnswer,
)

_AT_ONCE = 16  # questions to the scheduler
#: Seconds for one answer: longer than the scheduler's own limit for a submission.
ANSWER_S = 90.0
# What is the host's to say, since the hub's may be those of its container.
_HOSTS_OWN = ("PATH", "LD_LIBRARY_PATH", *SLURM_VARIABLES)


class HubScheduler(Scheduler, SiteFacts, Protocol):
    """A scheduler that can do all that a hub wants of it."""

    async def find(self, mark: str, user: str) -> str | None:
        """The number of the user's job with this mark."""

    async def marked(self, prefix: str) -> tuple[MarkedJob, ...]:
        """The jobs whose mark begins so."""

    async def own_users(self) -> frozenset[str]:
        """The unix users that the scheduler itself runs as."""

    async def extend(self, job_id: str, minutes: int) -> None:
        """Give a running job more time."""


class HubBroker(Server):
    """Answers one hub.

    Parameters
    ----------
    path
        The socket.
    peer
        The hub's unix user, who alone is answered.
    environment
        The host's, for the scheduler's commands.
    arguments
        The site's own, for the command that submits.
    actable
        The users that are acted as.
    """

    def __init__(
        self,
        path: Path,
        scheduler: HubScheduler,
        *,
        peer: int,
        environment: Mapping[str, str],
        arguments: Sequence[str] = (),
        actable: ActableUsers = ActableUsers(),
    ) -> None:
        super().__init__(path, peer=peer)
        self._scheduler = scheduler
        self._hosts = {name: environment[name] for name in _HOSTS_OWN if name in environment}
        self._arguments = tuple(arguments)
        self._actable = actable
        self._schedulers: frozenset[str] | None = None
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def answered(self, line: bytes, client: Connection) -> None:
        """Answer the hub."""
        request = read_line(line, HUB_REQUESTS)
        client.close_files()
        answer: Frozen
        try:
            async with asyncio.timeout(ANSWER_S), self._turns:
                answer = await self._answer(request)
        except TimeoutError:
            if not isinstance(request, SubmitRequest):
                raise
            # It was broken off, and the scheduler may have taken the job.
            answer = SubmittedAnswer(lost=f"The scheduler did not answer within {ANSWER_S:g} s.")
        await client.send(answer)

    async def _answer(self, request: HubRequest) -> Frozen:
        scheduler = self._scheduler
        match request:
            case SubmitRequest(job=job):
                return await self._submit(await self._checked(job))
            case CancelAsRequest(job_id=job_id, user=user):
                await scheduler.cancel(job_id, user=await self._user(user))
                _note(f"job {job_id} of {user or 'the own user'} is cancelled")
                return Done()
            case ExtendRequest(job_id=job_id, minutes=minutes):
                await scheduler.extend(job_id, minutes)
                _note(f"job {job_id} gets {minutes} more minutes")
                return Done()
            case _:
                return await self._ask(request)

    async def _ask(self, request: HubRequest) -> Frozen:
        """What changes nothing."""
        scheduler = self._scheduler
        answer: Frozen
        match request:
            case QueryRequest(job_ids=job_ids):
                answer = QueryAnswer(jobs=await scheduler.query(job_ids))
            case FindRequest(mark=mark, user=user):
                answer = FindAnswer(job_id=await scheduler.find(mark, user))
            case MarkedRequest(prefix=prefix):
                answer = MarkedAnswer(jobs=await scheduler.marked(prefix))
            case AddressRequest(node=node):
                answer = AddressAnswer(address=await scheduler.address(node))
            case PartitionsRequest():
                answer = PartitionsAnswer(partitions=await scheduler.partitions())
            case ChoicesRequest(user=user):
                answer = ChoicesAnswer(choices=await scheduler.choices(user))
            case ExpectedStartRequest(job=job):
                answer = ExpectedStartAnswer(start=await scheduler.expected_start(await self._checked(job)))
            case _:
                raise GipfelError("The hub's broker has no answer to this request.")
        return answer

    async def _submit(self, job: JobRequest) -> SubmittedAnswer:
        try:
            job_id = await self._scheduler.submit(job)
        except LostJobError as lost:
            return SubmittedAnswer(lost=lost.problem, advice=lost.fix)
        _note(f"job {job_id} of {job.user or 'the own user'} is submitted")
        return SubmittedAnswer(job_id=job_id)

    async def _checked(self, job: JobRequest) -> JobRequest:
        """The job as it is submitted: by a user who may, with the site's arguments and the host's paths."""
        if job.site_arguments:
            raise GipfelError(
                "The hub's broker takes no arguments for the command that submits.",
                "Leave req_options and req_gres empty, and give the broker `--submit-argument`.",
            )
        others = {name: value for name, value in job.environment.items() if name not in _HOSTS_OWN}
        return job.model_copy(
            update={
                "user": await self._user(job.user),
                "environment": others | self._hosts,
                "site_arguments": self._arguments,
            }
        )

    async def _user(self, name: str) -> str:
        if self._schedulers is None:
            self._schedulers = await self._scheduler.own_users()
        return await asyncio.to_thread(self._actable.checked, name, schedulers=self._schedulers)


def _note(what: str) -> None:
    sys.stderr.write(f"gipfel: {what}\n")
