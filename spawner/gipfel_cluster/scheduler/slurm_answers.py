"""Parse the output of Slurm's commands: jobs, states, reasons, places in line, errors; pure."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import ValidationError

from ..model import GipfelError, one_line
from .notation import expand_hostlist, parse_gpus
from .protocol import JobStatus, MarkedJob

Answer = Literal["running", "ended", "unknown"]

#: The job waits, runs, or will again: it must not be taken for gone.
ALIVE = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "RUNNING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESIZING",
        "RESV_DEL_HOLD",
        "SIGNALING",
        "SPECIAL_EXIT",
        "STAGE_OUT",
        "POWER_UP_NODE",
        "UPDATE_DB",
        "EXPEDITING",
    }
)
#: The job is over and will not run again.
ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "TIMEOUT",
    }
)
#: The job has no node yet.
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
_BUSY = {
    "None": "",
    "Resources": "no fitting nodes are free",
    "Priority": "other jobs are before it",
    "BeginTime": "waiting for its begin time",
    "Dependency": "waiting for another job",
    "Reservation": "waiting for its reservation to begin",
    "Licenses": "waiting for a license",
    "Prolog": "its nodes are prepared",
    "Cleaning": "its earlier run is cleaned up",
    "NodeDown": "a node that it needs is down",
    "ReqNodeNotAvail": "its nodes are down, drained or reserved",
    "ReservationDeleted": "its reservation was deleted",
    "BurstBufferResources": "waiting for the burst buffer",
    "BurstBufferStageIn": "its files are copied in",
    "FrontEndDown": "a front-end node is down",
    "SchedDefer": "Slurm looks at it later",
}
_NEVER = {
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no jobs",
    "PartitionConfig": "it asks for more than its partition has",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held",
    "BadConstraints": "no node is what it asks for",
    "DependencyNeverSatisfied": "the job that it waits for did not end as it had to",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QoS is not valid",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its QoS may not be used here",
    "QOSUsageThreshold": "its QoS has used up its share",
    "JobLaunchFailure": "it could not be launched",
    "JobHoldMaxRequeue": "it was started too often and is held",
    "launch failed requeued held": "its start failed on the node, and Slurm holds it",
    "MaxMemPerLimit": "it asks for more memory than a job may have",
    "AccountingPolicy": "a limit of its account or QoS",
}
_OVER = {
    "NonZeroExitCode": "it ended with an error",
    "TimeLimit": "it reached its time limit",
    "OutOfMemory": "it used more memory than it asked for",
    "RaisedSignal": "it was ended by a signal",
    "SystemFailure": "Slurm or a node failed",
    "WaitingForScheduling": "",
}
_THINGS = {
    "Jobs": "jobs",
    "Submit": "jobs in the queue",
    "GRES": "GPUs",
    "TRES": "GPUs, CPUs or memory",
    "Cpu": "CPUs",
    "CPU": "CPUs",
    "Node": "nodes",
    "Mem": "memory",
    "Memory": "memory",
    "Billing": "billing units",
    "BB": "burst buffer",
    "License": "licenses",
    "Wall": "time",
    "WallDuration": "time",
    "Unknown": "resources",
}
_LIMIT = re.compile(
    r"(?P<who>QOS|Assoc)(?P<whole>Grp|Max)"
    r"(?P<what>Jobs?|Submit|GRES|TRES|Cpu|CPU|Node|Mem(?:ory)?|Billing|BB|License|Wall(?:Duration)?|Unknown)\w*"
)
#: squeue's fields for `read_jobs`; the suffix keeps it from cutting long values off.
JOB_FIELDS = ",".join(
    f"{field}:|"
    for field in (
        *("JobID", "State", "NodeList", "StartTime", "exit_code", "Reason"),
        *("Partition", "NumNodes", "tres-per-node"),
    )
)
#: The same for tasks of job arrays; asked with ``--array``, which gives each task a line.
TASK_FIELDS = JOB_FIELDS.replace("JobID:|", "JobArrayID:|", 1)
_MARK_FIELDS = ("JobID", "Comment", "UserName", "State")
_ADVICE = (
    ("invalid partition", "Pick another partition."),
    ("partition not available", "This partition takes no jobs now: pick another one."),
    ("not permitted to use this partition", "Pick another partition, or ask for access to this one."),
    ("node count specification invalid", "Ask for fewer nodes, or pick another partition."),
    ("reservation is invalid", "Leave the reservation empty, or pick one that has begun."),
    ("feature specification", "Leave the constraint empty: no node has this feature."),
    ("job violates accounting/qos policy", "Ask for less, end one of your jobs, or pick another account."),
    ("invalid account", "Pick another account, or ask for access to this one."),
    ("invalid qos", "Pick another QoS, or ask for access to this one."),
    ("time limit", "Ask for less time, or pick another partition."),
    ("configuration is not available", "Ask for fewer nodes or GPUs per node, or pick another partition."),
    ("more processors requested", "Ask for fewer CPUs."),
    ("memory specification", "Ask for less memory."),
    ("submission limit", "End or wait for one of your jobs."),
    ("user id", "The user is unknown to the cluster: ask its administrators."),
)
_UNAVAILABLE = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "could not establish a configuration source",
    "protocol authentication error",
    "zero bytes were transmitted",
)
#: squeue's fields for `read_line`; asked with ``--sort=-p,i``, as Slurm looks at jobs.
LINE_FIELDS = ",".join(f"{field}:|" for field in ("JobID", "Partition", "Reason"))
_NOT_IN_LINE = frozenset({"Dependency", "BeginTime", "Reservation"})


def answer_of(state: str) -> Answer:
    """Return the answer that a state means; an unknown state is ``unknown``.

    Source: the manual page of squeue, "JOB STATE CODES".
    """
    if state in ENDED:
        return "ended"
    return "running" if state in ALIVE else "unknown"


def explain_reason(word: str) -> str:
    """Return squeue's ``Reason`` in words; an unknown one stays as it is, ``None`` is empty."""
    plain = word.strip().strip("()")
    first = plain.split(",")[0].strip()
    for known in (_BUSY, _NEVER, _OVER):
        if first in known:
            return known[first]
    if match := _LIMIT.fullmatch(first):
        what = _THINGS.get(match["what"], _THINGS.get(match["what"] + "s", "resources"))
        owner = "QoS" if match["who"] == "QOS" else "account"
        if match["whole"] == "Grp":
            return f"everybody with this {owner} together has as many {what} as it allows"
        return f"you have as many {what} as your {owner} allows"
    return plain


def can_never_start(word: str) -> bool:
    """Return whether a waiting job stays where it is until a person acts."""
    return word.strip().strip("()").split(",")[0].strip() in _NEVER


class SlurmUnavailableError(GipfelError):
    """Slurm does not answer, which says nothing about any job."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, "Its controller may be down; try again in a few minutes.")


def read_jobs(output: str) -> dict[str, JobStatus]:
    """Parse the jobs of ``squeue --Format=JOB_FIELDS``; a state that is not known is ``unknown``."""
    jobs: dict[str, JobStatus] = {}
    for line in output.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) < 6 or not fields[0][:1].isdecimal():
            continue
        job_id, state, nodes, start, status, reason = fields[:6]
        partition, count, gpus = (*fields[6:9], "", "", "")[:3]
        answer = answer_of(state)
        waits = state in WAITING
        jobs[job_id] = JobStatus(
            answer=answer,
            state=state,
            nodes=_nodes(nodes),
            reason=explain_reason(reason) if waits or answer == "ended" else "",
            expected_start=_time(start) if waits else "",
            exit_code=_exit_code(status) if answer == "ended" else None,
            partition=partition,
            wants=_wants(count, gpus) if waits else "",
            stuck=waits and can_never_start(reason),
        )
    return jobs


def mark_format(secret: str) -> str:
    """Return squeue's format for `read_marks`, which ends every field with ``secret``."""
    return ",".join(f"{field}:|{secret}" for field in _MARK_FIELDS)


def read_marks(output: str, prefix: str, secret: str) -> tuple[MarkedJob, ...]:
    """Return the jobs of squeue's answer in `mark_format` whose comment begins with ``prefix``.

    A comment is its user's, who may have put a newline and what looks like another job into it: fields
    end with a secret of the asking process.
    """
    found = []
    fields = [field.strip() for field in output.split(f"|{secret}")]
    for first in range(0, len(fields) - len(_MARK_FIELDS), len(_MARK_FIELDS)):
        job_id, mark, user, state = fields[first : first + len(_MARK_FIELDS)]
        if mark.startswith(prefix):
            try:
                found.append(MarkedJob(job_id=job_id, mark=mark, user=user, state=state))
            except ValidationError:
                continue
    return tuple(found)


def read_own_users(output: str) -> frozenset[str]:
    """Return ``SlurmUser`` and ``SlurmdUser`` of ``scontrol show config``.

    Raises
    ------
    GipfelError
        Neither is there.
    """
    found = re.findall(r"^Slurmd?User\s*=\s*([^\s(]+)", output, re.MULTILINE)
    if not found:
        raise GipfelError("Slurm does not report the user it runs as (scontrol show config).")
    return frozenset(found)


def read_address(output: str) -> str | None:
    """Return ``NodeAddr`` of ``scontrol --oneliner show node``."""
    for word in output.split():
        if word.startswith("NodeAddr="):
            return word.removeprefix("NodeAddr=") or None
    return None


def refusal(program: str, errors: str) -> GipfelError:
    """Turn a command's last message into an error with advice."""
    lines = [one_line(line) for line in errors.splitlines() if line.strip()]
    message = lines[-1].removeprefix(f"{program}: ").removeprefix("error: ") if lines else "it gave no reason"
    lower = " ".join(lines).lower()
    if any(phrase in lower for phrase in _UNAVAILABLE):
        return SlurmUnavailableError(f"Slurm did not answer ({program}: {message[:200]}).")
    advice = next((advice for phrase, advice in _ADVICE if phrase in lower), "")
    return GipfelError(f"Slurm refused ({program}): {message[:300].rstrip('.')}.", advice)


def _nodes(hostlist: str) -> tuple[str, ...]:
    try:
        return expand_hostlist(hostlist)
    except ValueError:
        return ()


def _wants(count: str, resources: str) -> str:
    """Describe what a job waits for: ``4 GPUs``, ``2 nodes with 4 GPUs each``, ``a node``."""
    nodes = int(count) if count.isdecimal() else 1
    # Older: "gres:gpu:4"; since 23.11: "gres/gpu:4".
    plain = resources.replace("gres/", "").replace("gres:", "")
    gpus = sum(each.count for each in parse_gpus(plain))
    some = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    if nodes == 1:
        return some if gpus else "a node"
    return f"{nodes} nodes with {some} each" if gpus else f"{nodes} nodes"


def _time(text: str) -> str:
    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except ValueError:
        return ""


def _exit_code(status: str) -> int | None:
    if not status.isdecimal():
        return None
    number = int(status)
    return 128 + (number & 127) if number & 127 else number >> 8


def read_line(output: str) -> Mapping[str, int]:
    """Return each waiting job's place in its partition's line, from 1, by Slurm's order of priority.

    A job that is held or waits for something else than nodes is in no line. A small job may start before
    one that is before it, where it delays no other job (backfill).
    """
    places: dict[str, int] = {}
    before: dict[str, int] = {}
    for row in output.splitlines():
        fields = [field.strip() for field in row.split("|")]
        if len(fields) < 3:
            continue
        job_id, partitions, reason = fields[:3]
        if reason in _NOT_IN_LINE or can_never_start(reason):
            continue
        # A job that names several partitions waits in each of their lines; its place is its best one.
        names = partitions.split(",")
        places[job_id] = min(before.get(name, 0) for name in names) + 1
        for name in names:
            before[name] = before.get(name, 0) + 1
    return places
