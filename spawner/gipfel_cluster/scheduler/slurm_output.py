"""Parse the output of Slurm's commands: jobs, states, reasons, queue positions and errors."""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Literal

from pydantic import ValidationError

from ..model import GipfelError, one_line
from .notation import expand_hostlist, parse_gpus
from .protocol import JobStatus, MarkedJob

Answer = Literal["running", "ended", "unknown"]

#: States of jobs that are pending or running, or will be again: they have not ended.
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
#: States of jobs that have ended and will not run again.
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
#: States of jobs that have no node yet.
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
_PENDING_REASONS = {
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
    "SchedDefer": "Slurm will consider it later",
}
_BLOCKING_REASONS = {
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no jobs",
    "PartitionConfig": "it requests more than its partition has",
    "PartitionNodeLimit": "it requests more nodes than its partition allows",
    "PartitionTimeLimit": "it requests more time than its partition allows",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held",
    "BadConstraints": "no node meets its constraints",
    "DependencyNeverSatisfied": "the job that it waits for did not end as it had to",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QoS is not valid",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its QoS may not be used here",
    "QOSUsageThreshold": "its QoS has used up its share",
    "JobLaunchFailure": "it could not be launched",
    "JobHoldMaxRequeue": "it was started too often and is held",
    "launch failed requeued held": "its start failed on the node, and Slurm holds it",
    "MaxMemPerLimit": "it requests more memory than a job may have",
    "AccountingPolicy": "a limit of its account or QoS",
}
_END_REASONS = {
    "NonZeroExitCode": "it ended with an error",
    "TimeLimit": "it reached its time limit",
    "OutOfMemory": "it used more memory than it requested",
    "RaisedSignal": "it was ended by a signal",
    "SystemFailure": "Slurm or a node failed",
    "WaitingForScheduling": "",
}
_RESOURCES = {
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
    r"(?P<owner>QOS|Assoc)(?P<scope>Grp|Max)"
    r"(?P<resource>Jobs?|Submit|GRES|TRES|Cpu|CPU|Node|Mem(?:ory)?|Billing|BB|License|Wall(?:Duration)?|Unknown)\w*"
)
#: squeue's fields for `parse_jobs`; the suffix ``:|`` separates them and keeps squeue from cutting long
#: values.
JOB_FIELDS = ",".join(
    f"{field}:|"
    for field in (
        *("JobID", "State", "NodeList", "StartTime", "exit_code", "Reason"),
        *("Partition", "NumNodes", "tres-per-node"),
    )
)
#: The same for tasks of job arrays; used with ``--array``, which prints a line for each task.
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
#: squeue's fields for `parse_queue_positions`; used with ``--sort=-p,i``, the order in which Slurm considers
#: jobs.
QUEUE_FIELDS = ",".join(f"{field}:|" for field in ("JobID", "Partition", "Reason"))
_NOT_IN_QUEUE = frozenset({"Dependency", "BeginTime", "Reservation"})


def answer_for_state(state: str) -> Answer:
    """Return the answer of `JobStatus` for a job state; ``unknown`` for an unknown state.

    Source: the manual page of squeue, "JOB STATE CODES".
    """
    if state in ENDED:
        return "ended"
    return "running" if state in ALIVE else "unknown"


def explain_reason(reason: str) -> str:
    """Return an explanation of squeue's ``Reason``; empty for ``None``, unchanged if it is unknown."""
    plain = reason.strip().strip("()")
    first = plain.split(",")[0].strip()
    for explanations in (_PENDING_REASONS, _BLOCKING_REASONS, _END_REASONS):
        if first in explanations:
            return explanations[first]
    if match := _LIMIT.fullmatch(first):
        name = match["resource"]
        resource = _RESOURCES.get(name, _RESOURCES.get(name + "s", "resources"))
        owner = "QoS" if match["owner"] == "QOS" else "account"
        if match["scope"] == "Grp":
            return f"everybody with this {owner} together has as many {resource} as it allows"
        return f"you have as many {resource} as your {owner} allows"
    return plain


def can_never_start(reason: str) -> bool:
    """Return whether a pending job with this ``Reason`` can't start until a person acts."""
    return reason.strip().strip("()").split(",")[0].strip() in _BLOCKING_REASONS


class SlurmUnavailableError(GipfelError):
    """Slurm does not answer; the state of its jobs is unknown."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, "Its controller may be down. Try again in a few minutes.")


def parse_jobs(output: str) -> dict[str, JobStatus]:
    """Parse the output of ``squeue`` with `JOB_FIELDS` or `TASK_FIELDS`; return the status by job id."""
    jobs: dict[str, JobStatus] = {}
    for line in output.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) < 6 or not fields[0][:1].isdecimal():
            continue
        job_id, state, nodes, start, status, reason = fields[:6]
        partition, count, gpus = (*fields[6:9], "", "", "")[:3]
        answer = answer_for_state(state)
        is_waiting = state in WAITING
        jobs[job_id] = JobStatus(
            answer=answer,
            state=state,
            nodes=_nodes(nodes),
            reason=explain_reason(reason) if is_waiting or answer == "ended" else "",
            expected_start=_time(start) if is_waiting else "",
            exit_code=_exit_code(status) if answer == "ended" else None,
            partition=partition,
            requested=_describe_request(count, gpus) if is_waiting else "",
            blocked=is_waiting and can_never_start(reason),
        )
    return jobs


def mark_format(secret: str) -> str:
    """Return the format of squeue for `parse_marks`, which ends every field with ``secret``."""
    return ",".join(f"{field}:|{secret}" for field in _MARK_FIELDS)


def parse_marks(output: str, prefix: str, secret: str) -> tuple[MarkedJob, ...]:
    """Return the jobs whose comment begins with ``prefix``, from squeue's output in `mark_format`.

    Users can write a newline and a forged job into the comment of a job, so the fields end with a secret.
    """
    jobs = []
    fields = [field.strip() for field in output.split(f"|{secret}")]
    for first in range(0, len(fields) - len(_MARK_FIELDS), len(_MARK_FIELDS)):
        job_id, mark, user, state = fields[first : first + len(_MARK_FIELDS)]
        if mark.startswith(prefix):
            with suppress(ValidationError):
                jobs.append(MarkedJob(job_id=job_id, mark=mark, user=user, state=state))
    return tuple(jobs)


def parse_daemon_users(output: str) -> frozenset[str]:
    """Return ``SlurmUser`` and ``SlurmdUser`` in the output of ``scontrol show config``.

    Raises
    ------
    GipfelError
        The output contains neither.
    """
    users = re.findall(r"^Slurmd?User\s*=\s*([^\s(]+)", output, re.MULTILINE)
    if not users:
        raise GipfelError(
            "Slurm does not report the user it runs as (scontrol show config).",
            "Run the broker where scontrol shows the configuration.",
        )
    return frozenset(users)


def parse_address(output: str) -> str | None:
    """Return ``NodeAddr`` in the output of ``scontrol --oneliner show node``; None without one."""
    words = (word for word in output.split() if word.startswith("NodeAddr="))
    return next(words, "").removeprefix("NodeAddr=") or None


def command_error(program: str, errors: str) -> GipfelError:
    """Return an error with the last message that a failed command printed, and advice.

    It is a `SlurmUnavailableError` if the controller did not answer.
    """
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


def _describe_request(count: str, resources: str) -> str:
    """Return a job's requested resources as text: ``4 GPUs``, ``2 nodes with 4 GPUs each``, ``a node``."""
    nodes = int(count) if count.isdecimal() else 1
    # "gres:gpu:4" before Slurm 23.11, "gres/gpu:4" since then.
    plain = resources.replace("gres/", "").replace("gres:", "")
    gpus = sum(each.count for each in parse_gpus(plain))
    gpu_text = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    if nodes == 1:
        return gpu_text if gpus else "a node"
    return f"{nodes} nodes with {gpu_text} each" if gpus else f"{nodes} nodes"


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


def parse_queue_positions(output: str) -> Mapping[str, int]:
    """Return the position of each pending job in its partition's queue, from 1, in the order of priority.

    Jobs that are held or wait for something other than nodes have no position. With backfill, a job may start
    before jobs with a lower position if it does not delay them.
    """
    positions: dict[str, int] = {}
    lengths: dict[str, int] = {}
    for row in output.splitlines():
        fields = [field.strip() for field in row.split("|")]
        if len(fields) < 3:
            continue
        job_id, partitions, reason = fields[:3]
        if reason in _NOT_IN_QUEUE or can_never_start(reason):
            continue
        # A job that names several partitions is in all of their queues; its position is the lowest one.
        names = partitions.split(",")
        positions[job_id] = min(lengths.get(name, 0) for name in names) + 1
        for name in names:
            lengths[name] = lengths.get(name, 0) + 1
    return positions
