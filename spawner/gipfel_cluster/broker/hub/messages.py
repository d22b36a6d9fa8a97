"""What a hub may ask of its broker: jobs and questions by typed fields, never a command line."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from ...model import Frozen, Line
from ...scheduler.protocol import JobRequest, MarkedJob, User
from ...scheduler.site import Choices
from ..messages import (
    AddressRequest,
    CancelRequest,
    PartitionsRequest,
    QueryRequest,
    Request,
    SubmitRequest,
)


class CancelAsRequest(CancelRequest):
    """End a job as its user."""

    user: User = ""


class FindRequest(Request):
    """The job that a user (empty: the broker's own) submitted with a mark."""

    kind: Literal["find"] = "find"
    mark: Annotated[Line, Field(pattern=r"^[A-Za-z0-9-]{8,64}$")]
    user: User = ""


class MarkedRequest(Request):
    """The jobs that wait or run and whose mark begins so."""

    kind: Literal["marked"] = "marked"
    prefix: Annotated[Line, Field(pattern=r"^[A-Za-z0-9-]{6,64}$")]


class ExtendRequest(Request):
    """Give a running job more time."""

    kind: Literal["extend"] = "extend"
    job_id: Annotated[Line, Field(pattern=r"^[0-9]{1,12}$")]
    minutes: Annotated[int, Field(ge=1, le=525_600)]


class ChoicesRequest(Request):
    """What a user may choose."""

    kind: Literal["choices"] = "choices"
    user: Annotated[User, Field(min_length=1)]


class ExpectedStartRequest(Request):
    """When a job would start; none is made."""

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
    | ExpectedStartRequest
)
HUB_REQUESTS: TypeAdapter[HubRequest] = TypeAdapter(Annotated[HubRequest, Field(discriminator="kind")])


class SubmittedAnswer(Frozen):
    """The job's number; empty where the scheduler may have taken it without saying so: ``lost`` says why."""

    job_id: str = ""
    lost: str = ""
    advice: str = ""


class FindAnswer(Frozen):
    """The job's number, None where there is no such job."""

    job_id: str | None


class MarkedAnswer(Frozen):
    """The jobs."""

    jobs: tuple[MarkedJob, ...]


class ChoicesAnswer(Frozen):
    """What the user may choose."""

    choices: Choices


class ExpectedStartAnswer(Frozen):
    """An ISO time; empty for at once."""

    start: str
