"""Limits of associations and QoS that keep a job waiting for ever, read from Slurm's controller.

Slurm accepts a job that exceeds such a limit, and ``sbatch --test-only`` prints a start time for it; the job
then stays pending with a reason such as ``AssocGrpGRES``. `parse_limits` reads the limits and what is used of
them, `exceeded` returns the limits that a job can never meet.

A job counts against its user's association, the account, every account above it, and its QoS. Where the site
hides other users' accounting (``PrivateData``), only the user's own limits are known.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ..model import Frozen
from .notation import parse_duration

if TYPE_CHECKING:
    from .protocol import Choices, Partition, Placement

Resource = Literal["gpus", "cpus", "nodes", "gpu_minutes", "minutes", "jobs", "submitted"]

_TRES: Mapping[str, Resource] = {"gres/gpu": "gpus", "cpu": "cpus", "node": "nodes"}
_LIMITED = re.compile(r"([A-Za-z/]+(?::[^=,(]+)?)=([0-9]+)(?:\(([0-9]+)\))?")
_GPU_MINUTES = re.compile(r"gres/gpu(?::[^=]+)?=([0-9]+)\(([0-9]+)\)")
_COUNT = re.compile(r"([0-9]+)\(([0-9]+)\)")
_NAME = re.compile(r"([^(]*)(?:\([0-9]+\))?")
_BRACES = re.compile(r"([^\s{}=]+)=\{([^{}]*)\}")
_MAX_DEPTH = 50
#: Counted limits: Slurm's field and what it limits.
_COUNTED: Mapping[str, Resource] = {
    "GrpJobs": "jobs",
    "MaxJobs": "jobs",
    "MaxJobsPU": "jobs",
    "MaxJobsPA": "jobs",
    "GrpSubmitJobs": "submitted",
    "MaxSubmitJobs": "submitted",
    "MaxSubmitJobsPU": "submitted",
    "MaxSubmitJobsPA": "submitted",
}
#: Slurm's fields with limits of all running jobs together, and of a single job.
_TOGETHER = ("GrpTRES", "MaxTRESPU", "MaxTRESPA")
_PER_JOB = ("MaxTRESPJ",)


class Limit(Frozen):
    """A limit that applies to jobs of a user.

    Parameters
    ----------
    holder
        What has the limit, such as ``account lab`` or ``QoS short``.
    account, qos
        The limit applies to jobs of the user that charge this account, or have this QoS; only one of them is
        set.
    name
        The limit as Slurm writes it, such as ``GrpTRES=gres/gpu=3``.
    limit, used
        Minutes for the resources ``minutes`` and ``gpu_minutes``, else counts. ``used`` is None for a limit
        of each single job.
    """

    holder: str
    account: str = ""
    qos: str = ""
    resource: Resource
    name: str
    limit: int
    used: int | None = None

    @property
    def remaining(self) -> int:
        """Return what may still be used, in the unit of ``limit``."""
        return max(self.limit - (self.used or 0), 0)


class Share(Frozen):
    """A user's fair share of the cluster through an account.

    ``share`` (promised) and ``used`` (recently) are fractions of the cluster. ``factor`` is Slurm's
    fair-share factor, computed from both, from 0 to 1: jobs with a higher one start earlier.
    """

    account: str
    share: float
    used: float
    factor: float


class Spent(Frozen):
    """GPU hours of a user's jobs that charged an account; ``service`` is empty for other jobs."""

    account: str
    service: str
    gpu_hours: float


class RequestedJob(Frozen):
    """Resources that a job requests in total, as far as limits count them.

    ``minutes`` is the time limit; None if it is unknown.
    """

    account: str = ""
    qos: str = ""
    nodes: int = 1
    gpus: int = 0
    cpus: int = 0
    minutes: int | None = None

    def amount(self, resource: Resource) -> int:
        """Return the amount of a resource that the job needs to start, in the unit of `Limit.limit`."""
        if resource == "gpu_minutes":
            # A job may end before its time limit, so it needs some minutes only.
            return 1 if self.gpus else 0
        if resource in {"jobs", "submitted"}:
            return 1
        value = getattr(self, resource)
        return 0 if value is None else int(value)


def requested_job(
    placement: "Placement",
    choices: "Choices",
    partition: "Partition | None",
    *,
    nodes: int,
    gpus: int,
    cpus: int,
) -> RequestedJob:
    """Return what a job requests as Slurm counts it, with the defaults of the user's association.

    Parameters
    ----------
    partition
        The partition that the job is submitted to; None if it is not known.
    gpus, cpus
        Numbers per node.
    """
    account = placement.account or choices.default_account
    name = placement.partition or (partition.name if partition else "")
    qos = placement.qos or next(
        (
            each.default_qos
            for each in choices.associations or ()
            if each.account == account and each.partition in {"", name}
        ),
        "",
    )
    default = partition.default_time_limit_s if partition else None
    seconds = parse_duration(placement.time) if placement.time else default
    return RequestedJob(
        account=account,
        qos=qos,
        nodes=nodes,
        gpus=nodes * gpus,
        cpus=nodes * cpus,
        minutes=None if seconds is None else -(-seconds // 60),
    )


def exceeded(job: RequestedJob, limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return the limits that keep a job waiting even when no other job runs: the account's, then the QoS's.

    They include used-up GPU minutes, although some become available again as Slurm lets old usage decay.
    """
    applying = (each for each in limits if _applies(each, job))
    found = []
    for each in applying:
        used_up = each.resource == "gpu_minutes" and each.remaining == 0
        if job.amount(each.resource) > (each.limit if not used_up else 0):
            found.append(each)
    return tuple(found)


def _applies(limit: Limit, job: RequestedJob) -> bool:
    return limit.account == job.account if limit.account else limit.qos == job.qos


class AssociationRecord(Frozen):
    """An association: its account, the account above it, its user (empty for the account's own association).

    ``gpu_minutes`` has its limits of GPU minutes, also of single types, as pairs of limit and use.
    """

    account: str = ""
    user: str = ""
    parent: str = ""
    partition: str = ""
    limits: tuple[Limit, ...] = ()
    gpu_minutes: tuple[tuple[int, int], ...] = ()


def parse_limits(output: str, user: str) -> tuple[Limit, ...]:
    """Parse ``scontrol --oneliner show assoc_mgr flags=assoc,qos``; return the limits of the user's jobs."""
    found = [
        limit.model_copy(update={"account": path[0].account})
        for path in association_paths(output, user)
        # An association of a single partition does not limit jobs in others, and the partition is unknown
        # here.
        if not path[0].partition
        for each in path
        for limit in each.limits
    ]
    for line in output.splitlines():
        if line.startswith("QOS="):
            found += _qos_limits(line, user)
    return tuple(found)


def association_paths(output: str, user: str) -> Iterator[list[AssociationRecord]]:
    """Yield each of the user's associations in such an output, followed by its account and all above it."""
    lines = (line for line in output.splitlines() if line.startswith("ClusterName="))
    records = [_association(line) for line in lines]
    accounts = {each.account: each for each in records if not each.user}
    for own in records:
        if own.user == user:
            path, name = [own], own.account
            while name in accounts and len(path) <= _MAX_DEPTH:
                path.append(accounts[name])
                name = accounts[name].parent
            yield path


def _association(line: str) -> AssociationRecord:
    fields = _fields(line.split())
    account, user = fields.get("Account", ""), _name(fields.get("UserName", ""))
    holder = f"{user} in account {account}" if user else f"account {account}"
    template = Limit(holder=holder, account=account, resource="jobs", name="", limit=0)
    return AssociationRecord(
        account=account,
        user=user,
        parent=_name(fields.get("ParentAccount", "")),
        partition=fields.get("Partition", ""),
        limits=tuple(_limits(fields, template)),
        gpu_minutes=tuple(
            (int(limit), int(used)) for limit, used in _GPU_MINUTES.findall(fields.get("GrpTRESMins", ""))
        ),
    )


def _qos_limits(line: str, user: str) -> Iterator[Limit]:
    text, _, of_users = line.partition(" User Limits=")
    text = text.partition(" Account Limits=")[0]
    fields = _fields(text.split())
    qos = _name(fields.get("QOS", ""))
    template = Limit(holder=f"QoS {qos}", qos=qos, resource="jobs", name="", limit=0)
    yield from _limits(fields, template)
    for number_or_name, content in _BRACES.findall(of_users):
        # The controller writes user ids, newer versions also names; the query was for one user, so an id is
        # theirs.
        if number_or_name.isdecimal() or _name(number_or_name) == user:
            holder = f"QoS {qos} for each user"
            yield from _limits(_fields(content.split()), template.model_copy(update={"holder": holder}))


def _limits(fields: Mapping[str, str], template: Limit) -> Iterator[Limit]:
    """Yield the limits in the fields of an association or QoS, as copies of a template."""

    def limit(resource: Resource, name: str, value: int, used: int | None) -> Limit:
        changes = {"resource": resource, "name": name, "limit": value, "used": used}
        return template.model_copy(update=changes)

    for field in (*_TOGETHER, *_PER_JOB):
        for tres, value, used in _LIMITED.findall(fields.get(field, "")):
            if tres in _TRES:
                count = int(used or 0) if field in _TOGETHER else None
                yield limit(_TRES[tres], f"{field}={tres}={value}", int(value), count)
    for tres, value, used in _LIMITED.findall(fields.get("GrpTRESMins", "")):
        if tres == "gres/gpu":
            yield limit("gpu_minutes", f"GrpTRESMins={tres}={value}", int(value), int(used or 0))
    for field, resource in _COUNTED.items():
        counted = _COUNT.fullmatch(fields.get(field, ""))
        if counted:
            yield limit(resource, f"{field}={counted[1]}", int(counted[1]), int(counted[2]))
    if fields.get("MaxWallPJ", "").isdecimal():
        minutes = int(fields["MaxWallPJ"])
        yield limit("minutes", f"MaxWall={minutes}", minutes, None)


def _fields(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _name(text: str) -> str:
    match = _NAME.match(text)
    return match[1] if match else ""


_UNITS: Mapping[Resource, tuple[str, str]] = {
    "gpus": ("GPU", "GPUs"),
    "cpus": ("CPU", "CPUs"),
    "nodes": ("node", "nodes"),
    "jobs": ("running job", "running jobs"),
    "submitted": ("job in the queue", "jobs in the queue"),
}


def limit_text(limit: Limit) -> str:
    """Return the limit as people read it, such as ``account lab: 3 GPUs at once, 1 in use``."""
    if limit.resource == "minutes":
        return f"{limit.holder}: {_duration(limit.limit)} per job"
    if limit.resource == "gpu_minutes":
        return f"{limit.holder}: {limit.limit / 60:g} GPU hours, {limit.remaining / 60:g} left"
    noun = _UNITS[limit.resource][limit.limit != 1]
    if limit.used is None:
        return f"{limit.holder}: {limit.limit} {noun} per job"
    together = " at once" if limit.resource in {"gpus", "cpus", "nodes"} else ""
    return f"{limit.holder}: {limit.limit} {noun}{together}, {limit.used} in use"


def problem_text(job: RequestedJob, limit: Limit) -> str:
    """Return a sentence on why a job that exceeds the limit never starts, with Slurm's name of the limit."""
    if limit.resource == "gpu_minutes":
        hours = f"{limit.limit / 60:g}"
        return f"The {hours} GPU hours of {limit.holder} are used up ({limit.name})."
    if limit.resource == "minutes":
        allowed, requested = _duration(limit.limit), _duration(job.minutes or 0)
        return f"{limit.holder} allows {allowed} per job ({limit.name}), {requested} requested."
    amount = job.amount(limit.resource)
    noun = _UNITS[limit.resource][limit.limit != 1]
    return f"{limit.holder} allows {limit.limit} {noun} ({limit.name}), {amount} requested."


def _duration(minutes: int) -> str:
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{rest} min"
    return f"{hours} h {rest:02} min" if rest else f"{hours} h"
