"""What the scheduler does to a job, and what it refuses."""

from .cause import Cause

JOBS = (
    Cause(
        name="out-of-memory",
        reason="The job used more memory than it had, and the node's kernel ended it.",
        fix="Ask for more memory, or for a whole node.",
        patterns=(
            r"oom[-_]kill event",
            r"exceeded (?:job|step) memory limit",
            r"it used more memory than it asked for",
            r"memory cgroup out of memory",
        ),
    ),
    Cause(
        name="out-of-memory",
        reason="The job used more memory than it had, and the node's kernel ended it.",
        fix="Ask for more memory, or for a whole node.",
        states=frozenset({"OUT_OF_MEMORY"}),
    ),
    Cause(
        name="time-limit",
        reason="The job reached its time limit.",
        fix="Ask for more time; files that were saved are where they were.",
        states=frozenset({"TIMEOUT", "DEADLINE"}),
    ),
    Cause(
        name="node-failure",
        reason="The node failed, or lost its connection to Slurm.",
        fix="Start again: Slurm takes another node. If it comes back, tell the cluster's administrators.",
        states=frozenset({"NODE_FAIL", "BOOT_FAIL"}),
    ),
    Cause(
        name="launch-failed",
        reason="Slurm could not start the job on its node.",
        fix="Start again. If it comes back, tell the cluster's administrators the node's name.",
        states=frozenset({"LAUNCH_FAILED", "RECONFIG_FAIL"}),
    ),
    Cause(
        name="preempted",
        reason="A job with a higher priority took the nodes.",
        fix="Start again, or pick a partition or a QoS whose jobs are not preempted.",
        states=frozenset({"PREEMPTED", "REVOKED"}),
    ),
    Cause(
        name="no-such-node",
        reason="No node is what the job asked for.",
        fix="Ask for fewer GPUs, CPUs or less memory per node, or pick another partition.",
        patterns=(r"^no node is what it asks for$",),
        states=frozenset({"FAILED"}),
    ),
    Cause(
        name="log-unwritable",
        reason="Slurm could not start the job on its node, most often since its log can't be opened there.",
        fix="Check that your home folder is there on the nodes, writable and within its quota.",
        patterns=(r"^it could not be launched$",),
        states=frozenset({"FAILED"}),
    ),
    Cause(
        name="time-limit",
        reason="The job reached its time limit.",
        fix="Ask for more time; files that were saved are where they were.",
        patterns=(r"CANCELLED AT \S+ DUE TO TIME LIMIT",),
    ),
    Cause(
        name="node-failure",
        reason="The node failed, or lost its connection to Slurm.",
        fix="Start again: Slurm takes another node. If it comes back, tell the cluster's administrators.",
        patterns=(r"CANCELLED AT \S+ DUE TO NODE FAILURE",),
    ),
    Cause(
        name="preempted",
        reason="A job with a higher priority took the nodes.",
        fix="Start again, or pick a partition or a QoS whose jobs are not preempted.",
        patterns=(r"CANCELLED AT \S+ DUE TO PREEMPTION",),
    ),
)

REFUSALS = (
    Cause(
        name="account-refused",
        reason="Slurm does not let you use this account, or not with this partition.",
        fix="Pick another account, or ask for access to this one.",
        patterns=(r"invalid account", r"account.{0,40}not permitted to use this partition"),
    ),
    Cause(
        name="qos-refused",
        reason="Slurm does not let you use this QoS.",
        fix="Pick another QoS, or ask for access to this one.",
        patterns=(r"invalid qos", r"qos.{0,40}not permitted"),
    ),
    Cause(
        name="limit-reached",
        reason="A limit of your account or QoS is reached: so many jobs, GPUs or hours and no more.",
        fix="End one of your jobs, ask for less, or pick another account.",
        patterns=(r"job violates accounting/qos policy", r"submission limit"),
    ),
    Cause(
        name="partition-down",
        reason="The partition takes no jobs now.",
        fix="Pick another partition, or wait until the administrators have put it back.",
        patterns=(r"required partition not available", r"partition is (?:down|inactive)"),
    ),
    Cause(
        name="reservation-refused",
        reason="This reservation is not yours, is over, or does not exist.",
        fix="Leave the reservation empty, or ask who made it.",
        patterns=(r"requested reservation is invalid", r"access denied to requested reservation"),
    ),
)
