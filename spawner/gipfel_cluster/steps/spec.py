"""Models of a step: a command that runs on nodes of a job, in a container of an EDF on each node."""

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ..edf.gate import Gate
from ..edf.model import Mount
from ..model import PYTHON, Frozen, NodeName, OneLine, check_command, check_variables
from ..process.tree import Process
from ..runtime.model import Runtime

__all__ = ["IMAGE_PYTHON", "PYTHON", "StepJob", "StepPlan", "StepSpec", "StepState", "TaskLocation"]

#: Placeholder for the first word of a command: the image's Python; without an image ``python`` of the
#: `StepSpec`, else the job's.
IMAGE_PYTHON = "{image-python}"
#: The environment variable that carries a `StepPlan` as JSON to each node.
STEP_VARIABLE = "GIPFEL_STEP"
#: In the environment of a `StepSpec`: number of ranks that each of its tasks starts.
RANKS_VARIABLE = "GIPFEL_RANKS_PER_TASK"
#: In the environment of a `StepSpec`: number of nodes that the tasks of several steps connect.
NODES_VARIABLE = "GIPFEL_CONNECTED_NODES"

_MAX_COMMAND = 64 << 10

Folder = Annotated[OneLine, Field(pattern=r"^/", max_length=4096)]
StepName = Annotated[OneLine, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class StepSpec(Frozen):
    """A step as its caller requests it, with paths as the caller sees them.

    ``command`` is an argv, whose first word may be `PYTHON` or `IMAGE_PYTHON`. ``nodes`` are names of nodes
    of the job; empty for all. ``gpus_per_node`` limits how many of the job's GPUs the tasks on a node see
    together; None for all. ``gpus`` selects GPUs by node name and their index among the job's GPUs on that
    node. ``cpus_per_task`` None divides the job's CPUs of a node among the tasks.
    """

    command: Annotated[tuple[str, ...], AfterValidator(partial(check_command, max_bytes=_MAX_COMMAND))] = (
        Field(min_length=1, max_length=4096)
    )
    edf: OneLine = Field("", max_length=4096)
    """Name or path of the EDF; empty for the job's own."""
    python: OneLine = Field("", pattern=r"^(/|$)", max_length=4096)
    """Path that replaces `IMAGE_PYTHON` if the EDF has neither an image nor set-up steps; empty for the job's
    interpreter."""
    nodes: tuple[NodeName, ...] = Field((), max_length=65536)
    tasks_per_node: int = Field(1, ge=1, le=1024)
    gpus_per_node: int | None = Field(None, ge=0, le=1024)
    gpus: dict[NodeName, tuple[Annotated[int, Field(ge=0, le=1023)], ...]] = Field(default_factory=dict)
    cpus_per_task: int | None = Field(None, ge=1, le=65536)
    environment: Annotated[
        dict[str, str], AfterValidator(partial(check_variables, reserved_prefix=STEP_VARIABLE))
    ] = Field(default_factory=dict, max_length=64)
    directory: OneLine = Field("", max_length=4096)
    """Working directory of the command; empty for that of the EDF, else the home directory."""
    folder: Folder
    """Directory of output and state, on a file system that all nodes share: ``<name>.json``, and
    ``node-<n>.log`` for the n-th node, or, with several tasks per node, ``rank-<r>.log`` for each task."""
    name: StepName = "step"
    time_limit_s: float | None = Field(None, gt=0)
    """Time after which the step is stopped with exit status 124."""
    network: Gate | None = None
    """Gate with the hosts that the command may reach; None if only gates of EDF and site apply."""
    kill_on_bad_exit: bool = False
    """True if the failure of one task ends the others, as srun's ``--kill-on-bad-exit`` does."""
    epilog: OneLine = Field("", pattern=r"^(/|$)", max_length=4096)
    """Program that Slurm runs on each node when a task has ended, also when it was killed; not used without
    Slurm."""
    grace_s: float = Field(10.0, ge=0, le=3600)
    """Seconds between SIGTERM and SIGKILL when the step is stopped."""
    fork: bool = False
    """True if a Python module of this package may run in a fork of the program that starts it on each node,
    which saves the start of an interpreter; used without a container and a gate."""


class StepJob(Frozen):
    """The job of a step, with paths of the host.

    ``edf`` is the path of the job's EDF, or empty; ``engine`` is the engine for images, empty for the
    default; ``requested_runtime`` is the path of the runtime that the user named, or empty; ``nodes`` are the
    job's nodes in Slurm's order without excluded ones; ``slurm_job`` is Slurm's job id, empty outside of
    Slurm; ``job_id`` is Gipfel's id of the job, or empty; ``cpus`` is the lowest number of CPUs that the job
    has on a node; ``run`` is its run folder, or empty; ``folders`` are mounted into every container at the
    same path.
    """

    home: OneLine
    cluster: OneLine = "local"
    engine: OneLine = ""
    edf: OneLine = ""
    runtime: Runtime
    requested_runtime: OneLine = ""
    slurm_job: OneLine = ""
    job_id: OneLine = ""
    nodes: tuple[NodeName, ...] = ()
    cpus: int = 0
    run: OneLine = ""
    folders: tuple[OneLine, ...] = ()


class StepPlan(Frozen):
    """A step with everything that its nodes need.

    ``folder`` is the host's path of the spec's ``folder``; ``mounts`` show the caller's directories at the
    paths that the caller uses.
    """

    spec: StepSpec
    job: StepJob
    folder: Folder
    mounts: tuple[Mount, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes that the step runs on."""
        return self.spec.nodes or self.job.nodes


class TaskLocation(Frozen):
    """The node, process and GPUs of a task.

    ``rank`` counts tasks in the step, ``local_rank`` those on the node, ``node_rank`` the step's nodes, each
    from 0. ``pid`` is the process that runs the task on its node. ``gpus`` are its CUDA_VISIBLE_DEVICES, None
    if it sees all GPUs. ``step_id`` is Slurm's ``job.step``, empty without Slurm.
    """

    rank: int
    local_rank: int
    node: str
    node_rank: int
    pid: int
    gpus: tuple[str, ...] | None = ()
    step_id: str = ""


class StepState(Frozen, extra="ignore"):
    """The state of a step, which its supervisor writes to ``<name>.json`` in the step's directory.

    ``step_id`` is Slurm's ``job.step``, or ``local-<pid>`` without Slurm; empty until a task has started.
    ``status`` is the exit status of the step, 124 after its time limit, None before the end; ``problem`` says
    why it could not run. ``stopped`` is True if it was stopped or reached its time limit. Times are UTC in
    nanoseconds.
    """

    phase: Literal["starting", "running", "ended"]
    step_id: str = ""
    supervisor: Process | None = None
    status: int | None = None
    problem: str = ""
    nodes: tuple[str, ...] = ()
    started_ns: int = 0
    ended_ns: int | None = None
    stopped: bool = False
