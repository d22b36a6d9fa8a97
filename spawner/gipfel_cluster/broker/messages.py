"""Messages of the broker's socket: one JSON line each, typed and limited."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field, JsonValue, TypeAdapter, ValidationError, field_validator, model_validator

from ..edf import Diagnostic
from ..model import Frozen, GipfelError, Line, check_command, check_variables
from ..scheduler.protocol import JobRequest, JobStatus, Partition

VERSION: Final = 1
#: Bytes of one message.
MOST_BYTES = 1 << 19
#: The socket's name in the folder of a job's sockets.
SOCKET = "broker"

_MOST_COMMAND = 96 << 10

Kind = TypeVar("Kind")
EdfName = Annotated[Line, Field(min_length=1, max_length=4096)]
JobId = Annotated[Line, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z_.-]{0,63}$")]


class PathRef(Frozen):
    """A file or folder as the asking process sees it: the same one only where device and inode agree."""

    path: Annotated[Line, Field(pattern=r"^/", max_length=4096)]
    device: Annotated[int, Field(ge=0)]
    inode: Annotated[int, Field(ge=0)]

    @classmethod
    def of(cls, path: Path) -> "PathRef":
        """Return the reference of a path here; raises OSError where it does not exist."""
        about = path.stat()
        return cls(path=str(path), device=about.st_dev, inode=about.st_ino)


class Request(Frozen):
    """The fields of every request."""

    version: Literal[1] = VERSION


class _InContainer(Request):
    edf: EdfName
    #: Where the command starts; the home of the environment's own place where the host does not see it.
    directory: PathRef | None = None
    environment: Annotated[dict[str, str], Field(max_length=64)] = Field(default_factory=dict)

    @field_validator("environment")
    @classmethod
    def _is_limited(cls, value: dict[str, str]) -> dict[str, str]:
        check_variables(value, "GIPFEL_")
        return value


class RunRequest(_InContainer):
    """Run a command in the container of an EDF; input, output and errors come along as descriptors."""

    kind: Literal["run"] = "run"
    command: Annotated[tuple[str, ...], Field(min_length=1, max_length=4096)]

    @model_validator(mode="after")
    def _can_be_executed(self) -> "RunRequest":
        check_command(self.command, _MOST_COMMAND)
        return self


class KernelRequest(_InContainer):
    """Run a Python kernel in the container of an EDF, as `RunRequest` does.

    ``python`` is ``image`` for the image's own interpreter, ``runtime`` for the runtime's, else its path.
    """

    kind: Literal["kernel"] = "kernel"
    python: Annotated[Line, Field(pattern=r"^(?:image|runtime|/.*)$", max_length=4096)] = "image"
    connection_file: PathRef


class EdfRequest(Request):
    """Look an EDF up and check it as the host would run it."""

    kind: Literal["edf"] = "edf"
    edf: EdfName
    #: By default the job's.
    engine: Annotated[Line, Field(max_length=32)] = ""


class LintRequest(Request):
    """Check an EDF as `gipfel edf check` does on the host."""

    kind: Literal["lint"] = "lint"
    edf: EdfName


class LocateRequest(Request):
    """Find the host's path of what a process in the container sees."""

    kind: Literal["locate"] = "locate"
    ref: PathRef


class FactsRequest(Request):
    """Ask for what a further job of this user needs to know of this one."""

    kind: Literal["facts"] = "facts"


class SubmitRequest(Request):
    """Submit a job to the scheduler of this one."""

    kind: Literal["submit"] = "submit"
    job: JobRequest


class QueryRequest(Request):
    """Ask for the states of jobs."""

    kind: Literal["query"] = "query"
    job_ids: Annotated[tuple[JobId, ...], Field(max_length=1000)]


class CancelRequest(Request):
    """End a job."""

    kind: Literal["cancel"] = "cancel"
    job_id: JobId


class AddressRequest(Request):
    """Ask for the address of a node."""

    kind: Literal["address"] = "address"
    node: Annotated[Line, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,252}$")]


class StepRequest(Request):
    """Start a step on nodes of the job; ``spec`` is a `gipfel_cluster.steps.StepSpec`.

    It runs for as long as the connection; signals may be sent on it meanwhile.
    """

    kind: Literal["step"] = "step"
    spec: dict[str, JsonValue]
    folder: PathRef
    directory: PathRef | None = None


class SuperviseRequest(Request):
    """Start the supervisor of the launch in this folder; it keeps the job until the launch has ended."""

    kind: Literal["supervise"] = "supervise"
    folder: PathRef


class PartitionsRequest(Request):
    """List every partition."""

    kind: Literal["partitions"] = "partitions"


AnyRequest = (
    RunRequest
    | KernelRequest
    | EdfRequest
    | LintRequest
    | LocateRequest
    | FactsRequest
    | SubmitRequest
    | QueryRequest
    | CancelRequest
    | AddressRequest
    | PartitionsRequest
    | StepRequest
    | SuperviseRequest
)
_REQUESTS: TypeAdapter[AnyRequest] = TypeAdapter(Annotated[AnyRequest, Field(discriminator="kind")])


class Signal(Frozen):
    """A signal for the running command, sent after the request on the same connection."""

    signal: Annotated[int, Field(ge=1, le=64)]


class Refusal(Frozen):
    """The problem of a request that failed, and its fix."""

    problem: str
    fix: str = ""


class Started(Frozen):
    """The command runs; ``notes`` list what the engine can't honour."""

    notes: tuple[str, ...] = ()


class Ended(Frozen):
    """The command has ended; 128 + n where signal n ended it."""

    status: int


class EdfAnswer(Frozen):
    """An EDF that can be run: its file on the host, and whether it has an image."""

    name: str
    file: str
    image: str


class LintAnswer(Frozen):
    """The diagnostics, errors first; of very many the first ones."""

    diagnostics: tuple[Diagnostic, ...]


class LocateAnswer(Frozen):
    """The path on the host; None where the host does not see it."""

    path: str | None


class FactsAnswer(Frozen):
    """The job, as a further one needs to know it.

    ``environment`` holds the host's variables that a further job gets, ``python`` is the host's interpreter
    that runs jobs, ``runtime`` the runtime's path on the host, empty for none.
    """

    scheduler: str
    cluster: str
    engine: str
    python: str
    runtime: str
    home: str
    environment: dict[str, str]


class SubmitAnswer(Frozen):
    """The number of the job."""

    job_id: str


class QueryAnswer(Frozen):
    """The status of each job."""

    jobs: dict[str, JobStatus]


class Done(Frozen):
    """A request without a result was carried out."""


class AddressAnswer(Frozen):
    """The address of the node."""

    address: str


class PartitionsAnswer(Frozen):
    """Every partition."""

    partitions: tuple[Partition, ...]


class _Versioned(Frozen, extra="ignore"):
    version: int = 0


def read_request(line: bytes) -> AnyRequest:
    """Parse one line as a request to a job's broker; raises as `read_line`."""
    return read_line(line, _REQUESTS)


def read_line(line: bytes, requests: TypeAdapter[Kind]) -> Kind:
    """Parse one line as one of some requests.

    Raises
    ------
    GipfelError
        It is not a valid request, or has another version; the content, which may hold a whole environment,
        is not quoted.
    """
    try:
        return requests.validate_json(line)
    except ValidationError as error:
        if _version(line) not in {0, VERSION}:
            raise GipfelError(
                f"This broker uses version {VERSION} of its protocol.",
                "Use the same gipfel on both sides: in a job, that of its runtime.",
            ) from None
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:80] or "request"
        raise GipfelError(f"The broker can't use the request's {where}: {first['msg'][:200]}.") from None


def _version(line: bytes) -> int:
    try:
        return _Versioned.model_validate_json(line).version
    except ValidationError:
        return 0


def to_line(message: Frozen) -> bytes:
    """Encode a message as its line.

    Raises
    ------
    GipfelError
        It is longer than `MOST_BYTES`.
    """
    line = message.model_dump_json().encode() + b"\n"
    if len(line) > MOST_BYTES:
        raise GipfelError(
            f"The request is longer than {MOST_BYTES >> 10} KiB.", "Put long values into a file."
        )
    return line


def broker_socket(environment: Mapping[str, str]) -> Path | None:
    """Return the socket of the broker of the job that this process is in; None outside of jobs."""
    folder = environment.get("GIPFEL_SOCKETS", "")
    path = Path(folder, SOCKET)
    return path if folder.startswith("/") and path.is_socket() else None
