"""The hub's broker: checks which user is acted as, and asks the scheduler."""

import asyncio
import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import Field

from ..model import Frozen, GipfelError
from ..scheduler.machine import SLURM_VARIABLES
from ..scheduler.protocol import JobRequest, LostJobError, MarkedJob, Scheduler, SiteFacts
from .hub_client import (
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
from .messages import (
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
from .serving import Connection, Server

_Uid = Annotated[int, Field(ge=0, lt=2**32 - 1)]
# The owner of files that no user owns, by the kernel's default: `nobody`.
_OVERFLOW_UID = 65534
_MOST_QUESTIONS = 16  # questions to the scheduler
#: Seconds for one answer: longer than the scheduler's own limit for a submission.
ANSWER_S = 90.0
# Taken from the host, since the hub's may be those of its container.
_HOSTS_OWN = ("PATH", "LD_LIBRARY_PATH", *SLURM_VARIABLES)


class ActableUsers(Frozen):
    """The range of unix users that the broker acts as: those of people.

    The defaults are UID_MIN and UID_MAX as login.defs has them: below are the system's users, above are
    those that packages and systemd make, such as Debian's ``slurm`` (64030). A directory service may give
    people larger numbers.
    """

    least: _Uid = 1000
    most: _Uid = 60000

    def checked(self, name: str, *, schedulers: AbstractSet[str] = frozenset()) -> str:
        """Return the name of the user to act as; empty for the broker's own.

        Parameters
        ----------
        schedulers
            The users that the scheduler itself runs as: a job of theirs could read its keys.

        Raises
        ------
        GipfelError
            There is no such user, or it is root, or one of the system's or the scheduler's own.
        """
        own = os.getuid()
        if not name:
            if own == 0:
                raise GipfelError("The hub's broker never acts as root.", "Name the user to act as.")
            return ""
        try:
            uid = pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError):
            raise GipfelError(
                f"There is no unix user {name!r} on the broker's machine.",
                "Ask the cluster's administrators for an account.",
            ) from None
        if uid in {0, _OVERFLOW_UID} or uid in {_uid(each) for each in schedulers}:
            raise GipfelError(f"The hub's broker does not act as {name}, a user of the system.")
        if not self.least <= uid <= self.most and uid != own:
            raise GipfelError(
                f"The hub's broker does not act as {name}, user {uid}.",
                f"It does so for users from {self.least} to {self.most}: `--least-uid` and `--most-uid`.",
            )
        return name


def _uid(name: str) -> int:
    """Return a user's number; -1 where this machine does not know it."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return -1


class HubScheduler(Scheduler, SiteFacts, Protocol):
    """A scheduler with everything that a hub needs."""

    async def find(self, mark: str, user: str) -> str | None:
        """Return the number of the user's job with this mark."""

    async def marked(self, prefix: str) -> tuple[MarkedJob, ...]:
        """Return the jobs whose mark has this prefix."""

    async def own_users(self) -> frozenset[str]:
        """Return the unix users that the scheduler itself runs as."""

    async def extend(self, job_id: str, minutes: int) -> None:
        """Give a running job more time."""


class HubBroker(Server):
    """Answers one hub.

    Parameters
    ----------
    path
        Path of the socket.
    peer
        The hub's unix user, the only one that is answered.
    environment
        The host's variables, for the scheduler's commands.
    arguments
        The site's own arguments for the command that submits.
    actable
        The users that the broker may act as.
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
        self._turns = asyncio.Semaphore(_MOST_QUESTIONS)

    async def answer(self, line: bytes, client: Connection) -> None:
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
        """Answer a question, which changes nothing."""
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
        """Return the job as submitted: an allowed user, the site's arguments, the host's paths."""
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
