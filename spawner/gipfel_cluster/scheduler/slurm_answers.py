"""What Slurm's commands print, read into values; pure."""

from datetime import datetime

from ..model import GipfelError, one_line
from .durations import parse_duration
from .gres import parse_gpus
from .hostlist import expand_hostlist
from .protocol import JobStatus, Partition

#: squeue's fields for `read_jobs`; the suffix keeps it from cutting long values off.
JOB_FIELDS = ",".join(
    f"{field}:|" for field in ("JobID", "State", "NodeList", "StartTime", "exit_code", "Reason")
)
#: sinfo's fields for `read_partitions`.
PARTITION_FIELDS = "%R|%P|%a|%l|%D|%T|%G"

_ALIVE = frozenset(
    (
        *(
            "PENDING",
            "CONFIGURING",
            "RUNNING",
            "COMPLETING",
            "SUSPENDED",
            "STOPPED",
            "REQUEUED",
            "REQUEUE_HOLD",
        ),
        *("REQUEUE_FED", "RESIZING", "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT"),
    )
)
_ENDED = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
    )
)
_REASONS = {
    "Resources": "waiting for free nodes",
    "Priority": "other jobs are before it",
    "Dependency": "waiting for another job",
    "Reservation": "waiting for its reservation to begin",
    "ReqNodeNotAvail": "its nodes are down or reserved",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held",
    "QOSMaxJobsPerUserLimit": "you have as many jobs as your QoS allows",
    "QOSMaxGRESPerUser": "you have as many GPUs as your QoS allows",
    "AssocMaxJobsLimit": "your account has as many jobs as it may",
    "BeginTime": "waiting for its begin time",
    "NonZeroExitCode": "it ended with an error",
    "TimeLimit": "it reached its time limit",
    "OutOfMemory": "it used more memory than it asked for",
}
_ADVICE = (
    ("invalid partition", "Pick another partition."),
    ("invalid account", "Pick another account, or ask for access to this one."),
    ("invalid qos", "Pick another QoS, or ask for access to this one."),
    ("time limit", "Ask for less time, or pick another partition."),
    ("configuration is not available", "Ask for fewer nodes or GPUs per node, or pick another partition."),
    ("more processors requested", "Ask for fewer CPUs."),
    ("memory specification", "Ask for less memory."),
    ("submission limit", "End or wait for one of your jobs."),
    ("user id", "The user is unknown to the cluster: ask its administrators."),
)
_SILENT = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "could not establish a configuration source",
    "protocol authentication error",
    "zero bytes were transmitted",
)


def read_jobs(output: str) -> dict[str, JobStatus]:
    """Jobs of ``squeue --Format=JOB_FIELDS``; a state that is not known is ``unknown``."""
    jobs: dict[str, JobStatus] = {}
    for line in output.splitlines():
        fields = line.split("|")
        if len(fields) < 6:
            continue
        job_id, state, nodes, start, status, reason = (field.strip() for field in fields[:6])
        waits = state in {"PENDING", "CONFIGURING"}
        ended = state in _ENDED
        jobs[job_id] = JobStatus(
            answer="ended" if ended else "running" if state in _ALIVE else "unknown",
            state=state,
            nodes=_nodes(nodes),
            reason=_reason(reason) if waits or ended else "",
            expected_start=_time(start) if waits else "",
            exit_code=_exit_code(status) if ended else None,
        )
    return jobs


def read_partitions(output: str) -> tuple[Partition, ...]:
    """Partitions of ``sinfo --exact --format=PARTITION_FIELDS`` that are up, in its order."""
    found: dict[str, Partition] = {}
    for line in output.splitlines():
        fields = [field.strip() for field in line.split("|", 6)]
        if len(fields) < 7 or fields[2] != "up":
            continue
        name, marked, _, limit, nodes, state, gres = fields
        count = int(nodes) if nodes.isdecimal() else 0
        before = found.get(name) or Partition(name=name, default=marked.endswith("*"), seconds=_limit(limit))
        most = {each.type: each for each in before.gpus}
        for each in parse_gpus(gres):
            if each.type not in most or each.count > most[each.type].count:
                most[each.type] = each
        found[name] = before.model_copy(
            update={
                "gpus": tuple(most.values()),
                "nodes": before.nodes + count,
                "idle": before.idle + (count if state in {"idle", "idle~", "idle#"} else 0),
            }
        )
    return tuple(found.values())


def read_address(output: str) -> str | None:
    """``NodeAddr`` of ``scontrol --oneliner show node``."""
    for word in output.split():
        if word.startswith("NodeAddr="):
            return word.removeprefix("NodeAddr=") or None
    return None


def refusal(program: str, errors: str) -> GipfelError:
    """The error that a command's last words mean, with what to do about it."""
    lines = [one_line(line) for line in errors.splitlines() if line.strip()]
    said = lines[-1].removeprefix(f"{program}: ").removeprefix("error: ") if lines else "it gave no reason"
    lower = " ".join(lines).lower()
    if any(phrase in lower for phrase in _SILENT):
        return no_answer(f"Slurm did not answer ({program}: {said[:200]}).")
    advice = next((advice for phrase, advice in _ADVICE if phrase in lower), "")
    return GipfelError(f"Slurm refused ({program}): {said[:300].rstrip('.')}.", advice)


def no_answer(problem: str) -> GipfelError:
    """The error for a Slurm that is silent."""
    return GipfelError(problem, "Its controller may be down; try again in a few minutes.")


def _nodes(hostlist: str) -> tuple[str, ...]:
    try:
        return expand_hostlist(hostlist)
    except ValueError:
        return ()


def _reason(word: str) -> str:
    plain = word.strip("()")
    return "" if plain == "None" else _REASONS.get(plain.split(",")[0], plain)


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


def _limit(text: str) -> int | None:
    try:
        return parse_duration(text)
    except ValueError:
        return None
