"""Why a job waits or ended, in words instead of Slurm's own."""

import re

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


def explain_reason(word: str) -> str:
    """The words for squeue's ``Reason``; one that is not known stays as it is, none is empty."""
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
    """Whether a waiting job stays where it is until a person acts."""
    return word.strip().strip("()").split(",")[0].strip() in _NEVER
