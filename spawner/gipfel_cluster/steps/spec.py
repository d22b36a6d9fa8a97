"""Models of a step: a command that runs on nodes of a job, in the container of an EDF on each of them."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from ..edf.model import Mount
from ..model import PYTHON, Frozen, Line, check_command, check_variables
from ..process.tree import Process
from ..runtime.model import Runtime

__all__ = ["IMAGE_PYTHON", "PYTHON", "StepPlan", "StepSetting", "StepSpec", "StepState", "TaskLocation"]

#: As the first word of a command, the image's own Python; without an image, the step's, else the job's.
IMAGE_PYTHON = "{image-python}"
#: The environment variable that carries a `StepPlan` as JSON to each node.
STEP_VARIABLE = "GIPFEL_STEP"

_MOST_COMMAND = 64 << 10

Folder = Annotated[Line, Field(pattern=r"^/", max_length=4096)]
NodeName = Annotated[Line, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,252}$")]
StepName = Annotated[Line, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class StepSpec(Frozen):
    """A step as its caller asks for it; paths are those that the caller sees.

    ``command`` is an argv, whose first word may be `PYTHON` or `IMAGE_PYTHON`. ``nodes`` are names of nodes
    of the job, none for all of them. ``gpus_per_node`` is how many of the job's GPUs on a node the tasks see
    together, None for all; ``gpus`` says which, as positions among the job's GPUs on a node.
    """

    command: tuple[str, ...] = Field(min_length=1, max_length=4096)
    edf: Line = Field("", max_length=4096)
    """Name or path of the EDF; empty for the job's own."""
    python: Line = Field("", pattern=r"^(/|$)", max_length=4096)
    """What `IMAGE_PYTHON` is where the EDF has neither an image nor set-up steps; empty for the job's."""
    nodes: tuple[NodeName, ...] = Field((), max_length=65536)
    tasks_per_node: int = Field(1, ge=1, le=1024)
    gpus_per_node: int | None = Field(None, ge=0, le=1024)
    gpus: dict[NodeName, tuple[Annotated[int, Field(ge=0, le=1023)], ...]] = Field(default_factory=dict)
    cpus_per_task: int | None = Field(None, ge=1, le=65536)
    environment: dict[str, str] = Field(default_factory=dict, max_length=64)
    directory: Line = Field("", max_length=4096)
    """Where the command starts; empty for the working folder of the EDF, else the home folder."""
    folder: Folder
    """Where output and state go, on a file system that all nodes see: ``<name>.json``, and ``node-<n>.log``
    for the n-th node, or with several tasks a node ``rank-<r>.log`` for each task."""
    name: StepName = "step"
    time_limit_s: float | None = Field(None, gt=0)
    """After this the step is stopped, and its status is 124."""
    end_together: bool = False
    """Whether the failure of one task ends the others."""
    grace_s: float = Field(10.0, ge=0, le=3600)
    """Seconds between SIGTERM and SIGKILL when the step is stopped."""

    @field_validator("environment")
    @classmethod
    def _is_limited(cls, value: dict[str, str]) -> dict[str, str]:
        check_variables(value, STEP_VARIABLE)
        return value

    @model_validator(mode="after")
    def _can_be_executed(self) -> "StepSpec":
        check_command(self.command, _MOST_COMMAND)
        return self


class StepSetting(Frozen):
    """The job that a step belongs to, as the host knows it.

    ``edf`` is the job's own, a path or empty; ``engine`` that for images; ``nodes`` are the job's, in Slurm's
    order; ``slurm_job`` is its number, empty outside of Slurm; ``cpus`` the fewest CPUs of the job on a node;
    ``run`` its run folder, empty for none; ``folders`` are shown in every container at the same path.
    """

    home: Line
    cluster: Line = "local"
    engine: Line = ""
    edf: Line = ""
    runtime: Runtime
    wanted_runtime: Line = ""
    slurm_job: Line = ""
    job_id: Line = ""
    nodes: tuple[NodeName, ...] = ()
    cpus: int = 0
    run: Line = ""
    folders: tuple[Line, ...] = ()


class StepPlan(Frozen):
    """A step with everything that its nodes need; ``mounts`` show the caller's folders at the same paths.

    ``folder`` is the host's path of the spec's.
    """

    spec: StepSpec
    setting: StepSetting
    folder: Folder
    mounts: tuple[Mount, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes that it runs on."""
        return self.spec.nodes or self.setting.nodes


class TaskLocation(Frozen):
    """The node and GPUs of a task; ``gpus`` are its CUDA_VISIBLE_DEVICES, None where all GPUs are seen."""

    rank: int
    local_rank: int
    node: str
    node_rank: int
    pid: int
    gpus: tuple[str, ...] | None = ()
    step_id: str = ""


class StepState(Frozen, extra="ignore"):
    """``<name>.json`` in a step's folder, written by its supervisor.

    ``step_id`` is Slurm's ``job.step``, ``local-<pid>`` without Slurm, empty until a task has started.
    ``status`` is the exit status of the step, 124 after its time limit; ``problem`` why it could not run.
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
