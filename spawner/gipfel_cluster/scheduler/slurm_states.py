"""Slurm's job states, each with the one of three answers that it means."""

from typing import Literal

Answer = Literal["running", "ended", "unknown"]

#: The job waits, runs, or will again: nobody may take it for gone.
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


def answer_of(state: str) -> Answer:
    """What a state means; one that nobody knows is ``unknown``.

    Source: the manual page of squeue, "JOB STATE CODES".
    """
    if state in ENDED:
        return "ended"
    return "running" if state in ALIVE else "unknown"
