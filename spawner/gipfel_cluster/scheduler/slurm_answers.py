"""What Slurm's commands print, read into values; pure."""

import re
from datetime import datetime

from pydantic import ValidationError

from ..model import GipfelError, one_line
from .gres import parse_gpus
from .hostlist import expand_hostlist
from .protocol import JobStatus, MarkedJob
from .slurm_reasons import can_never_start, explain_reason
from .slurm_states import WAITING, answer_of

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
_SILENT = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "could not establish a configuration source",
    "protocol authentication error",
    "zero bytes were transmitted",
)


class SilentSlurmError(GipfelError):
    """Slurm does not answer, which says nothing about any job."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, "Its controller may be down; try again in a few minutes.")


def read_jobs(output: str) -> dict[str, JobStatus]:
    """Jobs of ``squeue --Format=JOB_FIELDS``; a state that is not known is ``unknown``."""
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
    """The jobs of squeue's answer in `mark_format` whose comment begins with ``prefix``.

    A comment is its user's, who may have put a newline and what looks like another job into it: only what
    nobody but the asking process knows tells where a field ends.
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
        raise GipfelError("Slurm does not say as which user it runs (scontrol show config).")
    return frozenset(found)


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
        return SilentSlurmError(f"Slurm did not answer ({program}: {said[:200]}).")
    advice = next((advice for phrase, advice in _ADVICE if phrase in lower), "")
    return GipfelError(f"Slurm refused ({program}): {said[:300].rstrip('.')}.", advice)


def _nodes(hostlist: str) -> tuple[str, ...]:
    try:
        return expand_hostlist(hostlist)
    except ValueError:
        return ()


def _wants(count: str, resources: str) -> str:
    """What a job waits for: ``4 GPUs``, ``2 nodes with 4 GPUs each``, ``a node``."""
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
