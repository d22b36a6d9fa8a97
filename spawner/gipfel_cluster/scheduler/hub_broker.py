"""The scheduler of a hub that has none beside it, asked through the hub's broker: no Slurm is needed here."""

from pydantic import ValidationError

from ..broker.client import Answer, NoAnswerError, ask
from ..broker.hub.messages import (
    CancelAsRequest,
    ChoicesAnswer,
    ChoicesRequest,
    ExpectedStartAnswer,
    ExpectedStartRequest,
    ExtendRequest,
    FindAnswer,
    FindRequest,
    MarkedAnswer,
    MarkedRequest,
    SubmittedAnswer,
)
from ..broker.messages import Done, Request, SubmitRequest
from ..model import GipfelError
from .broker import BrokerScheduler
from .protocol import JobRequest, LostJobError, MarkedJob
from .site import Choices

# Longer than the broker's own for an answer.
_LIMIT_S = 100.0


class HubBrokerScheduler(BrokerScheduler):
    """A scheduler behind the socket of a hub's broker, which acts as the hub's users."""

    async def submit(self, request: JobRequest) -> str:
        """Submit through the broker, which checks the request and its user again."""
        try:
            answer = await self._ask(SubmitRequest(job=request), SubmittedAnswer)
        except NoAnswerError as error:
            if error.asked:
                raise LostJobError(request.mark, request.user, error) from None
            raise
        if not answer.job_id:
            raise LostJobError(request.mark, request.user, GipfelError(answer.lost, answer.advice))
        return answer.job_id

    async def find(self, mark: str, user: str) -> str | None:
        """Return the number of the job that this user (empty: the broker's) submitted with a mark."""
        return (await self._ask(FindRequest(mark=mark, user=user), FindAnswer)).job_id

    async def marked(self, prefix: str) -> tuple[MarkedJob, ...]:
        """The jobs that wait or run and whose mark begins so."""
        return (await self._ask(MarkedRequest(prefix=prefix), MarkedAnswer)).jobs

    async def cancel(self, job_id: str, *, user: str = "") -> None:
        """Cancel through the broker, as the job's user."""
        await self._ask(CancelAsRequest(job_id=job_id, user=user), Done)

    async def extend(self, job_id: str, minutes: int) -> None:
        """Give a job more time, as the broker's own user, who must be an operator."""
        await self._ask(ExtendRequest(job_id=job_id, minutes=minutes), Done)

    async def choices(self, user: str) -> Choices:
        """What a user may choose."""
        try:
            request = ChoicesRequest(user=user)
        except ValidationError:
            raise GipfelError(
                f"{user!r} can't be the name of a unix user.", "Log in with another name."
            ) from None
        return (await self._ask(request, ChoicesAnswer)).choices

    async def expected_start(self, request: JobRequest) -> str:
        """When a job would start; no job is made."""
        return (await self._ask(ExpectedStartRequest(job=request), ExpectedStartAnswer)).start

    async def _ask(self, request: Request, answer: type[Answer]) -> Answer:
        try:
            return await ask(self._socket, request, answer, limit=_LIMIT_S)
        except NoAnswerError as error:
            raise NoAnswerError(
                f"The hub's broker at {self._socket} does not answer.",
                "The hub's administrators start it with `python -m gipfel_cluster.broker.hub`.",
                asked=error.asked,
            ) from error
