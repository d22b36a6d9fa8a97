"""The Protocol of a scheduler, its requests and answers, and the batch script of a job.

Every scheduler implements `Scheduler`. Some also implement `SiteFacts` (accounts, reservations, expected
starts), `GpuAccounting` (GPU hours) or `QuotaFacts` (limits and waits).
"""

import re
import shlex
from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import AfterValidator, Field, field_validator

from ..model import Frozen, GipfelError, OneLine
from .notation import GpuCount, parse_duration, slurm_time
from .slurm_limits import Limit, Share, Spent

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that the scheduler's own commands would read as options.
_OPTIONS = ("SBATCH_", "SLURM_", "SQUEUE_", "SCANCEL_", "SINFO_")
_ALLOWED = ("SLURM_CONF", "SLURM_CONF_SERVER")
#: Arguments with which the node's interpreter runs a job.
RUNNER = ("-I", "-m", "gipfel_cluster.job")


def _duration(value: str) -> str:
    limit = slurm_time(value) if value.strip() else ""
    if limit and parse_duration(limit) == 0:
        raise ValueError("the time limit must be longer than 0")
    return limit


def _optional(pattern: str, max_length: int) -> Any:
    return Field(default="", pattern=rf"^(?:{pattern})?$", max_length=max_length)


#: The name of a partition, an account, a QoS or a reservation.
Name = Annotated[OneLine, _optional(r"[A-Za-z0-9_][A-Za-z0-9_.@+,-]*", 128)]
#: Node features with Slurm's operators.
Constraint = Annotated[OneLine, _optional(r"[A-Za-z0-9_.,&|*()\[\]:+-]+", 256)]
#: An amount of memory per node, such as ``64G``.
Memory = Annotated[OneLine, _optional(r"[0-9]{1,9}[KMGT]?", 10)]
#: A unix user; empty for the user of the calling process.
User = Annotated[OneLine, _optional(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*\$?", 128)]
#: A hostlist, such as ``nid[001-004]``.
Hostlist = Annotated[OneLine, _optional(r"[A-Za-z0-9][A-Za-z0-9_.,\[\]-]*", 4096)]
#: A time limit: accepted in Slurm's syntax or with units such as ``2h``, stored in Slurm's syntax.
TimeLimit = Annotated[OneLine, Field(default="", max_length=40), AfterValidator(_duration)]


class Placement(Frozen):
    """The partition, account and time limit of a job; empty for the cluster's default."""

    partition: Name = ""
    account: Name = ""
    qos: Name = ""
    reservation: Name = ""
    time: TimeLimit = ""


class JobRequest(Placement):
    """A request to submit a job; an empty text or 0 is the scheduler's default unless stated otherwise.

    ``environment``
        All variables of the job. The command that submits gets them in its own environment, never as
        arguments.
    ``output``
        The job's log; ``%j`` stands for the job id, and ``%a`` for the index of an array task.
    ``array``, ``array_limit``
        Number of tasks of a job array, 0 for a plain job, and the limit of concurrent tasks, 0 for no limit.
        A task's index, from 0, is in ``SLURM_ARRAY_TASK_ID`` or ``GIPFEL_ARRAY_TASK_ID``; its id is
        ``<job>_<index>``.
    ``user``
        The unix user to act as; empty for the user of the calling process.
    ``mark``
        A comment of the job by which it is found if the scheduler accepted it but its answer was lost.
    ``warn_s``
        Seconds before the time limit at which the script gets SIGUSR1; 0 for never.
    ``append``
        Append to the log of an earlier run of the job instead of replacing it.
    ``site_arguments``
        Arguments for the command that submits, from the site's configuration, never from a user.
    """

    name: Annotated[OneLine, Field(min_length=1, max_length=128)]
    script: str  # the content of the batch script
    directory: Annotated[OneLine, Field(pattern=r"^/")]  # the working directory
    output: OneLine = ""
    constraint: Constraint = ""
    memory: Memory = ""
    exclude: Hostlist = ""  # nodes on which the job must not run
    nodes: Annotated[int, Field(ge=1, le=65536)] = 1
    gpus_per_node: Annotated[int, Field(ge=0, le=1024)] = 0
    cpus_per_task: Annotated[int, Field(ge=0, le=65536)] = 0
    mark: Annotated[OneLine, _optional(r"[A-Za-z0-9-]+", 64)] = ""
    requeue: bool = True  # whether the job may run again after a node failure
    warn_s: Annotated[int, Field(ge=0, le=65535)] = 0
    append: bool = False
    array: Annotated[int, Field(ge=0, le=10_000)] = 0
    array_limit: Annotated[int, Field(ge=0, le=10_000)] = 0
    site_arguments: tuple[Annotated[OneLine, Field(pattern=r"^-", max_length=1000)], ...] = ()
    environment: dict[str, str] = Field(default={})
    user: User = ""

    @field_validator("script")
    @classmethod
    def _check_script(cls, value: str) -> str:
        if not value.startswith("#!") or "\0" in value:
            raise ValueError("must start with '#!' and must not contain a NUL")
        return value

    @field_validator("environment")
    @classmethod
    def _check_environment(cls, value: dict[str, str]) -> dict[str, str]:
        for name, content in value.items():
            if not _VARIABLE.fullmatch(name) or "\0" in content:
                raise ValueError(f"{name!r} is not a valid environment variable")
            if name.startswith(_OPTIONS) and name not in _ALLOWED:
                raise ValueError(f"the scheduler would read {name} as an option")
        return value


class JobStatus(Frozen):
    """The status of a job.

    ``answer`` is ``unknown`` if the scheduler did not report the job's status, which does not mean that it
    has ended. ``state`` is Slurm's job state in upper case; a pending job has the answer ``running`` and the
    state ``PENDING``. ``reason`` explains to users why it is pending or has ended. ``exit_code`` is None
    before the end, 128 + n after signal n. ``expected_start`` is the scheduler's estimate as an ISO time. For
    a pending job, ``requested`` describes its resources, ``queue_position`` is its position in its
    partition's queue (1 is next), and ``blocked`` means that it can't start until a person acts.
    """

    answer: Literal["running", "ended", "unknown"]
    state: str = ""
    nodes: tuple[str, ...] = ()
    reason: str = ""
    expected_start: str = ""
    exit_code: int | None = None
    partition: str = ""
    requested: str = ""
    queue_position: int | None = None
    blocked: bool = False


class MarkedJob(Frozen):
    """A pending or running job; ``mark`` is from its `JobRequest`, ``user`` is its unix user."""

    job_id: Annotated[str, Field(pattern=r"^[0-9]{1,12}$")]
    mark: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
    user: str
    state: str


class LostJobError(GipfelError):
    """The scheduler's answer to a submission was lost, so it may or may not have accepted the job.

    Parameters
    ----------
    mark, user
        The mark by which the job can be found, and its unix user.
    error
        The scheduler's error, if any.
    """

    def __init__(self, mark: str, user: str, error: GipfelError | None = None) -> None:
        super().__init__(
            error.problem if error else "The submission was interrupted.", error.fix if error else ""
        )
        self.mark = mark
        self.user = user


class Partition(Frozen):
    """A partition as shown in the spawn form.

    ``time_limit_s`` is None without a limit; ``default_time_limit_s`` applies to jobs that name no limit,
    None if it is not known. ``gpus``, ``cpus`` and ``memory`` (MiB) are those of its largest node;
    ``total_gpus`` and ``idle_gpus`` are those of all nodes together; 0 or empty if they are not known. With
    ``gpus_known``, empty ``gpus`` mean that the partition has no GPUs.
    """

    name: str
    default: bool = False
    time_limit_s: int | None = None
    default_time_limit_s: int | None = None
    gpus: tuple[GpuCount, ...] = ()
    gpus_known: bool = False
    total_gpus: tuple[GpuCount, ...] = ()
    idle_gpus: tuple[GpuCount, ...] = ()
    nodes: int = 0
    idle_nodes: int = 0
    cpus: int = 0
    memory: int = 0


class Scheduler(Protocol):
    """Submits, queries and cancels jobs."""

    name: str

    async def submit(self, request: JobRequest) -> str:
        """Submit a job and return its id.

        Raises
        ------
        GipfelError
            The scheduler refused, with its message and advice, or did not answer in time.
        """

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each job with one query; never raise, but answer ``unknown``."""

    async def cancel(self, job_id: str, *, user: str = "") -> None:
        """Cancel a job; it is not an error if it has ended already.

        Raises
        ------
        GipfelError
            The scheduler refused or did not answer in time.
        """

    async def address(self, node: str) -> str:
        """Return the address of a node as seen from this machine.

        Raises
        ------
        GipfelError
            The scheduler does not know the node, or did not answer in time.
        """

    async def partitions(self) -> tuple[Partition, ...]:
        """Return all partitions, from a cache of at most 30 seconds.

        Raises
        ------
        GipfelError
            The scheduler did not answer in time.
        """


class Association(Frozen):
    """An account that a user may charge, and its QoS; an empty partition means all partitions."""

    account: str
    partition: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""


class Reservation(Frozen):
    """Nodes reserved for some users; ``start`` and ``end`` are ISO times, ``active`` means that it has begun.

    ``users``, ``accounts`` and ``groups`` may use it; names with a minus before them may not.
    """

    name: str
    partition: str = ""
    start: str = ""
    end: str = ""
    active: bool = False
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class Choices(Frozen):
    """The accounts, QoS and reservations that a user may choose; None if the scheduler has no such list."""

    associations: tuple[Association, ...] | None = None
    default_account: str = ""
    reservations: tuple[Reservation, ...] | None = None
    limits: tuple[Limit, ...] = ()
    """Limits of the user's accounts and QoS; empty if the scheduler does not report them."""

    @property
    def accounts(self) -> tuple[str, ...]:
        """Return the names of the accounts without duplicates, the default account first."""
        names = sorted({each.account for each in self.associations or ()})
        return tuple(sorted(names, key=lambda name: name != self.default_account))

    def qos(self, account: str = "", partition: str = "") -> tuple[str, ...]:
        """Return the QoS of an account and a partition; an empty argument matches all."""
        names = {
            qos
            for each in self.associations or ()
            for qos in each.qos
            if account in {"", each.account} and (not partition or each.partition in {"", partition})
        }
        return tuple(sorted(names))


@runtime_checkable
class SiteFacts(Protocol):
    """A scheduler that also knows accounts, reservations and expected starts."""

    async def choices(self, user: str) -> Choices:
        """Return a user's accounts, QoS and reservations.

        Raises
        ------
        GipfelError
            The scheduler did not answer in time.
        """

    async def expected_start(self, request: JobRequest) -> str:
        """Return the expected start of a job if it were submitted now, as an ISO time; empty for immediately.

        Raises
        ------
        GipfelError
            The scheduler would refuse the job, with its message, or did not answer in time.
        """


class GpuBudget(Frozen):
    """GPU hours that the scheduler allows an account in total (``limit``), and what is left of them."""

    account: str
    limit: float
    remaining: float


class GpuUsage(Frozen):
    """GPU hours of a user's jobs, and energy of those that ended; None if the scheduler does not know them.

    ``budgets`` has the user's accounts whose GPU hours are limited, ``shares`` the shares of the cluster.
    """

    used: float | None = None
    energy_kwh: float | None = None
    budgets: tuple[GpuBudget, ...] = ()
    shares: tuple[Share, ...] = ()


@runtime_checkable
class GpuAccounting(Protocol):
    """A scheduler that accounts for GPU hours."""

    async def gpu_usage(self, user: str, since: date) -> GpuUsage:
        """Return GPU hours and energy of a user's jobs since the beginning of a day, and what is left.

        Raises
        ------
        GipfelError
            The scheduler did not answer in time.
        """


class Waits(Frozen):
    """Times in seconds that a user's jobs of one size waited in the queue of a partition.

    ``gpus`` is the size of the jobs: "0", "1", "2-7", "8-31" or "32+"; ``jobs`` is their number. Half of them
    started within ``half_s``. With a confidence of 95 %, at least 95 % of such jobs start within ``most_s``;
    None for fewer than 59 jobs, which can't show that.
    """

    partition: str
    gpus: str
    jobs: int
    half_s: float
    most_s: float | None = None


class Quota(Frozen):
    """Limits of a user's jobs (in ``choices``), GPU hours of this month, waits, and shares (in ``usage``).

    ``usage`` has the GPU hours in total, ``spent`` those by account and service.
    """

    choices: Choices = Choices()
    usage: GpuUsage = GpuUsage()
    waits: tuple[Waits, ...] = ()
    spent: tuple[Spent, ...] = ()


@runtime_checkable
class QuotaFacts(Protocol):
    """A scheduler that knows the limits of its users."""

    async def quota(self, user: str) -> Quota:
        """Return a user's limits, GPU hours since the beginning of the month, and waits of 90 days.

        Raises
        ------
        GipfelError
            The scheduler did not answer in time.
        """


def batch_script(python: str) -> str:
    """Return the batch script of a job, which executes the job's runner.

    Parameters
    ----------
    python
        The interpreter on the node, usually that of the runtime.
    """
    return f"#!/bin/sh\nexec {shlex.join((python, *RUNNER))}\n"
