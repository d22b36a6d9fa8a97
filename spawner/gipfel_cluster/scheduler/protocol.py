"""The interface of a scheduler: its requests, its answers, and the batch script of a job.

Every scheduler has `Scheduler`'s methods; some are `SiteFacts` too and know accounts, reservations and
expected starts.
"""

import re
import shlex
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import AfterValidator, Field, field_validator

from ..model import Frozen, GipfelError, Line
from .notation import GpuCount, parse_duration, slurm_time

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that the scheduler's own commands would read as options.
_OPTIONS = ("SBATCH_", "SLURM_", "SQUEUE_", "SCANCEL_", "SINFO_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER")
#: What the node's interpreter runs.
RUNNER = ("-I", "-m", "gipfel_cluster.job")


def _duration(value: str) -> str:
    limit = slurm_time(value) if value.strip() else ""
    if limit and parse_duration(limit) == 0:
        raise ValueError("a job needs more than no time")
    return limit


def _word(pattern: str, most: int) -> Any:
    return Field(default="", pattern=rf"^(?:{pattern})?$", max_length=most)


#: A name that Slurm gives to a partition, an account, a QoS or a reservation.
Name = Annotated[Line, _word(r"[A-Za-z0-9_][A-Za-z0-9_.@+,-]*", 128)]
#: Node features with Slurm's operators.
Constraint = Annotated[Line, _word(r"[A-Za-z0-9_.,&|*()\[\]:+-]+", 256)]
#: An amount of memory per node, such as ``64G``.
Memory = Annotated[Line, _word(r"[0-9]{1,9}[KMGT]?", 10)]
#: A unix user; empty for the one that asks.
User = Annotated[Line, _word(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*\$?", 128)]
#: A hostlist, such as ``nid[001-004]``.
Hostlist = Annotated[Line, _word(r"[A-Za-z0-9][A-Za-z0-9_.,\[\]-]*", 4096)]
#: A time limit: given in Slurm's syntax or in words such as ``2h``, kept in Slurm's syntax.
TimeLimit = Annotated[Line, Field(default="", max_length=40), AfterValidator(_duration)]


class Placement(Frozen):
    """The partition, account and time limit of a job; empty is the cluster's default."""

    partition: Name = ""
    account: Name = ""
    qos: Name = ""
    reservation: Name = ""
    time: TimeLimit = ""


class JobRequest(Placement):
    """A job as the scheduler is asked for it.

    ``environment`` is all that the job gets; its values travel in the environment of the command that
    submits, never in an argument. ``output`` is the job's log, where ``%j`` stands for the job's number and
    ``%a`` for a task's in an array. ``array`` is how many tasks a job array has, 0 for a plain job, of which
    ``array_limit`` run at once (0: as many as there is room for); each finds its number, from 0, in
    ``SLURM_ARRAY_TASK_ID`` or ``GIPFEL_ARRAY_TASK_ID``, and is known as ``<job's number>_<task's>``.
    ``user`` is the unix user to act as, empty for the one that asks. ``mark`` is a word by which the job is
    found again when the scheduler took it without saying so; ``requeue`` whether the scheduler may run the
    job a second time after a node has failed; ``warn_s`` how many seconds before its end the script gets
    SIGUSR1, 0 for never; ``append`` keeps what an earlier run of the job wrote to its log. ``site_arguments``
    are the site's own, never a user's, for the command that submits.
    """

    name: Annotated[Line, Field(min_length=1, max_length=128)]
    script: str
    directory: Annotated[Line, Field(pattern=r"^/")]
    output: Line = ""
    constraint: Constraint = ""
    memory: Memory = ""
    exclude: Hostlist = ""
    nodes: Annotated[int, Field(ge=1, le=65536)] = 1
    gpus_per_node: Annotated[int, Field(ge=0, le=1024)] = 0
    cpus_per_task: Annotated[int, Field(ge=0, le=65536)] = 0
    mark: Annotated[Line, _word(r"[A-Za-z0-9-]+", 64)] = ""
    requeue: bool = True
    warn_s: Annotated[int, Field(ge=0, le=65535)] = 0
    append: bool = False
    array: Annotated[int, Field(ge=0, le=10_000)] = 0
    array_limit: Annotated[int, Field(ge=0, le=10_000)] = 0
    site_arguments: tuple[Annotated[Line, Field(pattern=r"^-", max_length=1000)], ...] = ()
    environment: dict[str, str] = Field(default={})
    user: User = ""

    @field_validator("script")
    @classmethod
    def _starts_like_a_script(cls, value: str) -> str:
        if not value.startswith("#!") or "\0" in value:
            raise ValueError("must start with '#!' and hold no NUL")
        return value

    @field_validator("environment")
    @classmethod
    def _holds_plain_variables(cls, value: dict[str, str]) -> dict[str, str]:
        for name, content in value.items():
            if not _VARIABLE.fullmatch(name) or "\0" in content:
                raise ValueError(f"{name!r} can't be an environment variable")
            if name.startswith(_OPTIONS) and name not in _KEPT:
                raise ValueError(f"{name} would be read as an option of the scheduler")
        return value


class JobStatus(Frozen):
    """The state of a job; ``unknown`` means that the scheduler did not report it, which is not ``ended``.

    ``state`` is Slurm's word in upper case (a job that waits is ``running`` with the state ``PENDING``);
    ``reason`` is why it waits or ended, in words for people; ``expected_start`` is the scheduler's guess as
    an ISO time; ``wants`` is what a waiting job asks for, ``place`` its position in its partition's line
    (1 is next), and ``stuck`` that it stays there until a person acts.
    """

    answer: Literal["running", "ended", "unknown"]
    state: str = ""
    nodes: tuple[str, ...] = ()
    reason: str = ""
    expected_start: str = ""
    exit_code: int | None = None
    partition: str = ""
    wants: str = ""
    place: int | None = None
    stuck: bool = False


class MarkedJob(Frozen):
    """A job that waits or runs; ``mark`` is that of its request, ``user`` its unix user."""

    job_id: Annotated[str, Field(pattern=r"^[0-9]{1,12}$")]
    mark: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
    user: str
    state: str


class LostJobError(GipfelError):
    """A job that the scheduler may or may not have taken: its answer was not received.

    Parameters
    ----------
    mark, user
        By which the job is found, and whose it is.
    error
        The scheduler's error, if any.
    """

    def __init__(self, mark: str, user: str, error: GipfelError | None = None) -> None:
        super().__init__(
            error.problem if error else "The submission was broken off.", error.fix if error else ""
        )
        self.mark = mark
        self.user = user


class Partition(Frozen):
    """A partition as the form shows it.

    ``seconds`` is its time limit, None where it has none; ``default_seconds`` is that of a job that names
    none, None where that is not known. ``gpus``, ``cpus`` and ``memory`` (MiB) are those of its largest node,
    ``all_gpus`` and ``idle_gpus`` those of all its nodes together; 0 where they are not known. ``gpus_known``
    says that no GPUs means none, not that nothing is known of them.
    """

    name: str
    default: bool = False
    seconds: int | None = None
    default_seconds: int | None = None
    gpus: tuple[GpuCount, ...] = ()
    gpus_known: bool = False
    all_gpus: tuple[GpuCount, ...] = ()
    idle_gpus: tuple[GpuCount, ...] = ()
    nodes: int = 0
    idle: int = 0
    cpus: int = 0
    memory: int = 0


class Scheduler(Protocol):
    """Starts jobs and knows how they are."""

    name: str

    async def submit(self, request: JobRequest) -> str:
        """Start a job and return its number.

        Raises
        ------
        GipfelError
            The scheduler refused, in its own words and with advice, or did not answer in time.
        """

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each job, by one question; never raises, every doubt is ``unknown``."""

    async def cancel(self, job_id: str, *, user: str = "") -> None:
        """End a job; one that has ended already is not an error.

        Raises
        ------
        GipfelError
            The scheduler refused or did not answer in time.
        """

    async def address(self, node: str) -> str:
        """Return the address at which this machine reaches a node.

        Raises
        ------
        GipfelError
            The scheduler does not know the node or did not answer in time.
        """

    async def partitions(self) -> tuple[Partition, ...]:
        """Return every partition, at most 30 seconds old.

        Raises
        ------
        GipfelError
            The scheduler did not answer in time.
        """


class Association(Frozen):
    """An account that a user may charge, with its limits; an empty partition means all of them."""

    account: str
    partition: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""


class Reservation(Frozen):
    """Nodes reserved for some users; ``start`` and ``end`` are ISO times."""

    name: str
    partition: str = ""
    start: str = ""
    end: str = ""
    active: bool = False
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class Choices(Frozen):
    """A user's accounts, QoS and reservations; None where the scheduler keeps no such list."""

    associations: tuple[Association, ...] | None = None
    default_account: str = ""
    reservations: tuple[Reservation, ...] | None = None

    @property
    def accounts(self) -> tuple[str, ...]:
        """Return the names of the accounts, each once, the default one first."""
        names = sorted({each.account for each in self.associations or ()})
        return tuple(sorted(names, key=lambda name: name != self.default_account))

    def qos(self, account: str = "", partition: str = "") -> tuple[str, ...]:
        """Return the QoS of an account and a partition; of any where one is empty."""
        found = {
            qos
            for each in self.associations or ()
            for qos in each.qos
            if account in {"", each.account} and (not partition or each.partition in {"", partition})
        }
        return tuple(sorted(found))


@runtime_checkable
class SiteFacts(Protocol):
    """A scheduler that also knows accounts, reservations and expected starts."""

    async def choices(self, user: str) -> Choices:
        """Return what a user may choose.

        Raises
        ------
        GipfelError
            The scheduler did not answer in time.
        """

    async def expected_start(self, request: JobRequest) -> str:
        """Return a job's expected start if it were submitted now, as an ISO time; empty for now.

        Raises
        ------
        GipfelError
            The scheduler would refuse the job, in its own words, or did not answer in time.
        """


def batch_script(python: str) -> str:
    """Return the script that Slurm copies to the node; it replaces itself by the job's runner.

    Parameters
    ----------
    python
        The interpreter on the node, usually that of the runtime folder.
    """
    return f"#!/bin/sh\nexec {shlex.join((python, *RUNNER))}\n"
