"""Messages between a broker and its clients: one line of JSON each, with typed fields of limited size."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Generic, Literal, TypeVar

from pydantic import AfterValidator, Field, JsonValue, TypeAdapter, ValidationError

from ..model import DEFER_BUILD, Frozen, GipfelError, OneLine, check_command, check_variables, first_problem
from ..scheduler.protocol import JobRequest

VERSION: Final = 1
#: Maximum size of a message in bytes.
MAX_BYTES = 1 << 19
#: The socket's name in the directory of a job's sockets.
SOCKET = "broker"

#: Maximum size in bytes of a command line.
_MAX_COMMAND = 96 << 10

Kind = TypeVar("Kind")
EdfName = Annotated[OneLine, Field(min_length=1, max_length=4096)]
JobId = Annotated[OneLine, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z_.-]{0,63}$")]


class PathRef(Frozen):
    """A file or directory of the client; the host's file is the same if device and inode are equal."""

    path: Annotated[OneLine, Field(pattern=r"^/", max_length=4096)]
    device: Annotated[int, Field(ge=0)]
    inode: Annotated[int, Field(ge=0)]

    @classmethod
    def of(cls, path: Path) -> "PathRef":
        """Return the reference of a path of this process; raise OSError if it does not exist."""
        about = path.stat()
        return cls(path=str(path), device=about.st_dev, inode=about.st_ino)


class Request(Frozen):
    """Base class of requests."""

    version: Literal[1] = VERSION


class _InContainer(Request):
    edf: EdfName
    #: Working directory of the command; without one, or if the host does not have it, that of a notebook
    #: server with this EDF (`Workspace`).
    directory: PathRef | None = None
    #: Variables of the command in addition to the job's.
    environment: Annotated[
        dict[str, str],
        Field(max_length=64),
        AfterValidator(partial(check_variables, reserved_prefix="GIPFEL_")),
    ] = Field(default_factory=dict)


class RunRequest(_InContainer):
    """Run a command in the container of an EDF; the client sends descriptors for its streams."""

    kind: Literal["run"] = "run"
    command: Annotated[
        tuple[str, ...],
        Field(min_length=1, max_length=4096),
        AfterValidator(partial(check_command, max_bytes=_MAX_COMMAND)),
    ]


class KernelRequest(_InContainer):
    """Run a Python kernel in the container of an EDF, as `RunRequest` does.

    ``python`` is ``image`` for the image's interpreter, ``runtime`` for the runtime's, else a path.
    ``connection_file`` is Jupyter's file with the kernel's sockets or ports.
    """

    kind: Literal["kernel"] = "kernel"
    python: Annotated[OneLine, Field(pattern=r"^(?:image|runtime|/.*)$", max_length=4096)] = "image"
    connection_file: PathRef


class EdfRequest(Request):
    """Look up an EDF on the host, and check that it can be run there."""

    kind: Literal["edf"] = "edf"
    edf: EdfName
    #: Empty for the job's engine.
    engine: Annotated[OneLine, Field(max_length=32)] = ""


class LintRequest(Request):
    """Check an EDF as `gipfel edf check` does on the host; return a limited number of diagnostics."""

    kind: Literal["lint"] = "lint"
    edf: EdfName


class VerdictRequest(Request):
    """Return the scanner's verdict on an image of the host; None if neither site nor user configured one."""

    kind: Literal["verdict"] = "verdict"
    image: Annotated[OneLine, Field(max_length=4096)]


class LocateRequest(Request):
    """Return the host's path of a file of the client; None if the host does not have it."""

    kind: Literal["locate"] = "locate"
    ref: PathRef


class FactsRequest(Request):
    """Return the facts about this job that submitting another job needs; see `FactsAnswer`."""

    kind: Literal["facts"] = "facts"


class SubmitRequest(Request):
    """Submit a job to the scheduler of this job, and return its id."""

    kind: Literal["submit"] = "submit"
    job: JobRequest


class QueryRequest(Request):
    """Return the status of each job by its id."""

    kind: Literal["query"] = "query"
    job_ids: Annotated[tuple[JobId, ...], Field(max_length=1000)]


class CancelRequest(Request):
    """Cancel a job."""

    kind: Literal["cancel"] = "cancel"
    job_id: JobId


class AddressRequest(Request):
    """Return the scheduler's network address of a node, an IP address or a host name."""

    kind: Literal["address"] = "address"
    node: Annotated[OneLine, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,252}$")]


class StepRequest(Request):
    """Start a step on nodes of the job; ``spec`` is a `gipfel_cluster.steps.StepSpec`.

    ``folder`` is the directory of the step's files, ``directory`` its working directory. The step ends when
    the connection is closed; meanwhile the client may send signals.
    """

    kind: Literal["step"] = "step"
    spec: dict[str, JsonValue]
    folder: PathRef
    directory: PathRef | None = None


class SuperviseRequest(Request):
    """Start the supervisor of the workload in this directory.

    The supervisor of a launch keeps the job alive until the launch ends; the supervisor of a transfer ends
    with the job.
    """

    kind: Literal["supervise"] = "supervise"
    folder: PathRef
    program: Literal["launch", "transfer"] = "launch"


class PartitionsRequest(Request):
    """List all partitions."""

    kind: Literal["partitions"] = "partitions"


class QuotaRequest(Request):
    """Return limits, used GPU hours and waiting times of the job's user; None if the scheduler has none."""

    kind: Literal["quota"] = "quota"


AnyRequest = (
    RunRequest
    | KernelRequest
    | EdfRequest
    | LintRequest
    | VerdictRequest
    | LocateRequest
    | FactsRequest
    | SubmitRequest
    | QueryRequest
    | CancelRequest
    | AddressRequest
    | PartitionsRequest
    | QuotaRequest
    | StepRequest
    | SuperviseRequest
)
REQUESTS: TypeAdapter[AnyRequest] = TypeAdapter(
    Annotated[AnyRequest, Field(discriminator="kind")], config=DEFER_BUILD
)


class Signal(Frozen):
    """Send a signal to the running command; follows a request on the same connection."""

    signal: Annotated[int, Field(ge=1, le=64)]


class Refusal(Frozen):
    """The problem of a refused request, and its fix."""

    problem: str
    fix: str = ""


class Started(Frozen):
    """The command runs; ``notes`` are the engine's notes, such as about options that it does not support."""

    notes: tuple[str, ...] = ()


class Ended(Frozen):
    """The command has ended with this exit status; 128 + n after signal n."""

    status: int


class Answer(Frozen, Generic[Kind]):
    """The result of a request; None if the request has no result."""

    value: Kind


class EdfAnswer(Frozen):
    """A usable EDF: its name, its file on the host, its image, and the annotations that declare its gate."""

    name: str
    file: str
    image: str
    network: dict[str, str] = Field(default_factory=dict)


class FactsAnswer(Frozen):
    """Facts about a job that submitting another job needs.

    ``scheduler``, ``cluster`` and ``engine`` are the names of this job's. ``environment`` has the
    host's variables for the new job, ``python`` is the host's interpreter that runs jobs, ``runtime`` the
    path of the runtime on the host, empty for none, and ``home`` the user's home directory.
    """

    scheduler: str
    cluster: str
    engine: str
    python: str
    runtime: str
    home: str
    environment: dict[str, str]


class _Versioned(Frozen, extra="ignore"):
    version: int = 0


def parse_request_line(line: bytes, requests: TypeAdapter[Kind]) -> Kind:
    """Parse a line as one of the given requests.

    Raises
    ------
    GipfelError
        The line is not a valid request, or has another version. The message does not quote its content, which
        may include environment variables.
    """
    try:
        return requests.validate_json(line)
    except ValidationError as error:
        if _version(line) not in {0, VERSION}:
            raise GipfelError(
                f"This broker uses version {VERSION} of its protocol.",
                "Use the same version of gipfel on both sides; inside a job, use the gipfel of its runtime.",
            ) from None
        where, problem = first_problem(error)
        part = f"request's {where[:80]}" if where else "request"
        raise GipfelError(f"The broker can't use the {part}: {problem[:200]}.") from None


def _version(line: bytes) -> int:
    try:
        return _Versioned.model_validate_json(line).version
    except ValidationError:
        return 0


def to_line(message: Frozen) -> bytes:
    """Encode a message as a line.

    Raises
    ------
    GipfelError
        The line is longer than `MAX_BYTES`.
    """
    line = message.model_dump_json().encode() + b"\n"
    if len(line) > MAX_BYTES:
        raise GipfelError(
            f"The request is longer than {MAX_BYTES >> 10} KiB.", "Put long values into a file."
        )
    return line


def broker_socket(environment: Mapping[str, str]) -> Path | None:
    """Return the socket of the broker of this process's job; None outside of jobs."""
    folder = environment.get("GIPFEL_SOCKETS", "")
    path = Path(folder, SOCKET)
    return path if folder.startswith("/") and path.is_socket() else None
