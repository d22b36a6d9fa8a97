"""Requests of a hub to its broker, with typed fields, and the scheduler that sends them."""

from datetime import date
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from ..model import Frozen, GipfelError, OneLine
from ..scheduler.protocol import Choices, GpuUsage, JobRequest, LostJobError, MarkedJob, User
from .client import AnyAnswer, BrokerScheduler, NoAnswerError, send_request
from .messages import (
    AddressRequest,
    Answer,
    CancelRequest,
    PartitionsRequest,
    QueryRequest,
    Request,
    SubmitRequest,
)

# Longer than the broker's own time limit for an answer.
_LIMIT_S = 100.0


class CancelAsRequest(CancelRequest):
    """Cancel a job as its user."""

    user: User = ""


class FindRequest(Request):
    """Return the id of the job that a user (empty: the broker's) submitted with a mark, None without one."""

    kind: Literal["find"] = "find"
    mark: Annotated[OneLine, Field(pattern=r"^[A-Za-z0-9-]{8,64}$")]
    user: User = ""


class MarkedRequest(Request):
    """List the pending and running jobs whose mark has this prefix."""

    kind: Literal["marked"] = "marked"
    prefix: Annotated[OneLine, Field(pattern=r"^[A-Za-z0-9-]{6,64}$")]


class ExtendRequest(Request):
    """Extend the time limit of a running job."""

    kind: Literal["extend"] = "extend"
    job_id: Annotated[OneLine, Field(pattern=r"^[0-9]{1,12}$")]
    minutes: Annotated[int, Field(ge=1, le=525_600)]


class ChoicesRequest(Request):
    """List the accounts, QoS and reservations of a user."""

    kind: Literal["choices"] = "choices"
    user: Annotated[User, Field(min_length=1)]


class GpuUsageRequest(Request):
    """Return the GPU hours of a user since the beginning of a day."""

    kind: Literal["gpu_usage"] = "gpu_usage"
    user: Annotated[User, Field(min_length=1)]
    since: date


class ExpectedStartRequest(Request):
    """Return when a job would start, as an ISO time, empty for immediately; it is not submitted."""

    kind: Literal["expected_start"] = "expected_start"
    job: JobRequest


HubRequest = (
    SubmitRequest
    | QueryRequest
    | CancelAsRequest
    | FindRequest
    | MarkedRequest
    | ExtendRequest
    | AddressRequest
    | PartitionsRequest
    | ChoicesRequest
    | GpuUsageRequest
    | ExpectedStartRequest
)
HUB_REQUESTS: TypeAdapter[HubRequest] = TypeAdapter(Annotated[HubRequest, Field(discriminator="kind")])


class SubmittedAnswer(Frozen):
    """The job's id. It is empty if the scheduler's answer was lost: ``lost`` is then the error message."""

    job_id: str = ""
    lost: str = ""
    advice: str = ""


class HubBrokerScheduler(BrokerScheduler):
    """A scheduler that uses the broker of a hub, which acts as the hub's users."""

    async def submit(self, request: JobRequest) -> str:
        """Submit through the broker, which validates the request and its user again."""
        try:
            answer = await self._ask(SubmitRequest(job=request), SubmittedAnswer)
        except NoAnswerError as error:
            if error.sent:
                raise LostJobError(request.mark, request.user, error) from None
            raise
        if not answer.job_id:
            raise LostJobError(request.mark, request.user, GipfelError(answer.lost, answer.advice))
        return answer.job_id

    async def find(self, mark: str, user: str) -> str | None:
        """Return the id of the job that this user (empty: the broker's) submitted with a mark."""
        return (await self._ask(FindRequest(mark=mark, user=user), Answer[str | None])).value

    async def marked(self, prefix: str) -> tuple[MarkedJob, ...]:
        """Return the pending and running jobs whose mark has this prefix."""
        return (await self._ask(MarkedRequest(prefix=prefix), Answer[tuple[MarkedJob, ...]])).value

    async def cancel(self, job_id: str, *, user: str = "") -> None:
        """Cancel through the broker, acting as the job's user."""
        await self._ask(CancelAsRequest(job_id=job_id, user=user), Answer[None])

    async def extend(self, job_id: str, minutes: int) -> None:
        """Extend a job's time limit as the broker's user, who must be an operator."""
        await self._ask(ExtendRequest(job_id=job_id, minutes=minutes), Answer[None])

    async def choices(self, user: str) -> Choices:
        """Return a user's accounts, QoS and reservations."""
        return (await self._ask(_user_request(ChoicesRequest, user), Answer[Choices])).value

    async def gpu_usage(self, user: str, since: date) -> GpuUsage:
        """Return a user's GPU hours since the beginning of a day."""
        return (await self._ask(_user_request(GpuUsageRequest, user, since=since), Answer[GpuUsage])).value

    async def expected_start(self, request: JobRequest) -> str:
        """Return when a job would start, without submitting it."""
        return (await self._ask(ExpectedStartRequest(job=request), Answer[str])).value

    async def _ask(self, request: Request, answer: type[AnyAnswer]) -> AnyAnswer:
        try:
            return await send_request(self._socket, request, answer, limit=_LIMIT_S)
        except NoAnswerError as error:
            raise NoAnswerError(
                f"The hub's broker at {self._socket} does not answer.",
                "Ask the hub's administrators to start it with `python -m gipfel_cluster.broker.hub`.",
                sent=error.sent,
            ) from error


def _user_request(kind: type[Request], user: str, **fields: object) -> Request:
    try:
        return kind.model_validate({"user": user, **fields})
    except ValidationError:
        raise GipfelError(
            f"{user!r} can't be the name of a unix user.", "Log in with another name."
        ) from None
