"""Spec and plan of a launch: `LaunchSpec` is what the user asked for, `LaunchPlan` where the host has it."""

import json
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from gipfel_cluster.broker.context import hides_an_image
from gipfel_cluster.edf import Mount
from gipfel_cluster.model import Frozen, GipfelError, Line
from gipfel_cluster.scheduler import JobRequest
from gipfel_cluster.scheduler.protocol import Hostlist, Placement
from gipfel_cluster.workloads.submission import SubmissionContext

from ...telemetry.files import read_regular
from ...telemetry.redaction import shown_command_line
from .state import MOST_BYTES, PLAN

LaunchKind = Literal["script", "module", "notebook", "cell"]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY", re.IGNORECASE)
_MOST_CODE = 1 << 20
_RANGE = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?")
#: A path as the user of the launch sees it.
_Path = Annotated[Line, Field(max_length=4096)]


class LaunchSpec(Placement):
    """A training launch.

    ``target`` is a script or a notebook by its path, or a module by its name; ``code`` is what a cell holds.
    ``arguments`` go to a script or module unchanged, ``parameters`` to a notebook or cell. ``nodes_min``
    below ``nodes`` makes the launch elastic. Without GPUs ``gpus_per_node`` is the number of ranks a node.
    """

    kind: LaunchKind = "script"
    target: _Path = ""
    code: str = Field("", max_length=_MOST_CODE)
    arguments: tuple[str, ...] = Field((), max_length=4096)
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    name: Annotated[Line, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")] = "launch"
    where: Literal["auto", "here", "job"] = "auto"
    """``here``: free GPUs of the job around; ``job``: a job of its own; ``auto``: here in a job."""
    edf: _Path = ""
    """Empty: in a job that of the job; else the nodes' own file system."""
    launcher: Literal["torchrun", "srun", "accelerate"] = "torchrun"
    nodes: int = Field(1, ge=1, le=65536)
    nodes_min: int | None = Field(None, ge=1, le=65536)
    gpus_per_node: int = Field(1, ge=1, le=1024)
    restarts: int = Field(0, ge=0, le=1000)
    """Number of restarts of failed ranks before the launch has failed."""
    kernel: Line = Field("", max_length=256)
    """Kernel of a notebook; empty for its own, or python3 where that is not installed."""
    environment: dict[str, str] = Field(default_factory=dict, max_length=256)
    directory: _Path = ""
    """Directory in which ranks start; empty for the current one."""
    exclude: Hostlist = ""
    scheduler: Line = Field("", max_length=32)
    engine: Line = Field("", max_length=32)
    runtime: _Path = ""
    cluster: Line = Field("", max_length=32)
    vetting: _Path = ""
    """A vetting protocol, by name or path, that the nodes must pass; empty for none."""
    checkpoint: _Path = ""
    """Directory of the program's checkpoints: checked to be writable before anything is queued."""
    min_free_gib: float = Field(0.0, ge=0)
    """Free space in GiB that this directory must have."""
    on_preempt: Literal["requeue", "end"] = "requeue"
    """After a warning and a checkpoint: requeue the job, or end."""
    grace_s: float = Field(60.0, ge=1, le=3600)
    """Seconds before the end of time at which ranks get SIGUSR1; also their time to end."""
    join_timeout_s: float = Field(30.0, ge=0, le=3600)
    """Elastic: seconds to wait for more nodes once the fewest are there."""
    profile: bool = False
    """Write a trace of torch's profiler for every rank."""
    preflight: bool = True
    python: Line = Field("", pattern=r"^(/|$)", max_length=4096)
    """Interpreter of ranks without a container; empty for the caller's."""
    resume: bool = False
    """Set ``GIPFEL_RESUME=1``: ranks resume from their checkpoint, as restarted ones do."""

    @field_validator("environment")
    @classmethod
    def _holds_variables_and_no_secret(cls, value: dict[str, str]) -> dict[str, str]:
        for name, content in value.items():
            if not _VARIABLE.fullmatch(name) or "\0" in content:
                raise ValueError(f"{name[:40]!r} can't be an environment variable")
            if _SECRET.search(name):
                raise ValueError(
                    f"{name[:40]} looks like a secret, which a launch must not hold: keep it in a file "
                    "that the program reads"
                )
        return value

    @field_validator("arguments")
    @classmethod
    def _can_be_arguments(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any("\0" in word for word in value):
            raise ValueError("an argument holds a NUL character")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> "LaunchSpec":
        if self.kind == "cell":
            if not self.code.strip():
                raise ValueError("the cell holds no code")
        elif not self.target or self.target.startswith("-"):
            raise ValueError(f"the {self.kind} to run is missing")
        if self.kind == "module" and not all(part.isidentifier() for part in self.target.split(".")):
            raise ValueError(f"{self.target!r} is not a valid module name")
        if self.kind in {"script", "module"} and self.parameters:
            raise ValueError("a script takes arguments behind its name, not parameters")
        if self.kind in {"notebook", "cell"} and self.arguments:
            raise ValueError("a notebook takes parameters, not arguments")
        if self.kernel and self.kind != "notebook":
            raise ValueError("only a notebook has a kernel")
        if self.nodes_min is not None and self.nodes_min > self.nodes:
            raise ValueError("the fewest nodes are more than the most")
        if self.elastic and self.launcher != "torchrun":
            raise ValueError(f"the launcher {self.launcher} can't do with fewer nodes; torchrun can")
        return self

    @property
    def elastic(self) -> bool:
        """Return whether it may run on fewer nodes than it asks for."""
        return self.nodes_min is not None and self.nodes_min < self.nodes

    @property
    def ranks(self) -> int:
        """Return ranks on all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def title(self) -> str:
        """Return a title for lists: the program and its arguments."""
        if self.kind == "cell":
            return self.name
        # A launch that is repeated names its program by the whole path, which would leave room for nothing.
        program = self.target.rpartition("/")[2] if self.target.startswith("/") else self.target
        return shown_command_line((program, *self.arguments))[:120]


class LaunchPlan(Frozen):
    """``plan.json``: paths of the spec are as the user sees them, ``host_folder`` and mounts the host's.

    ``target``, ``directory`` and ``checkpoint`` are absolute; ``python`` is the interpreter of ranks in no
    container, empty for Gipfel's own; ``edf`` is the EDF's file on the host, empty for the job's own or none.
    ``request`` is the launch's own job, None where it runs in the one around.
    """

    spec: LaunchSpec
    folder: str
    host_folder: str
    target: str
    directory: str
    checkpoint: str = ""
    python: str = ""
    edf: str = ""
    engine: str = ""
    runtime: str = ""
    scheduler: str = ""
    cluster: str = "local"
    vetting: str = ""
    """Name of a shipped protocol, else the host's path of a copy in the directory."""
    mounts: tuple[Mount, ...] = ()
    by_srun: bool = True
    """True if Slurm starts the ranks; else they are processes of this machine."""
    request: JobRequest | None = None

    @classmethod
    def load(cls, folder: Path) -> "LaunchPlan":
        """Read the plan of a launch's directory.

        Raises
        ------
        GipfelError
            There is none that this version understands.
        """
        try:
            return cls.model_validate_json(read_regular(folder / PLAN, MOST_BYTES))
        except (OSError, ValueError) as error:
            raise GipfelError(
                f"The launch in {folder} has no plan that this version of Gipfel understands.",
                "Launch it again.",
            ) from error


def nodes_range(text: str) -> tuple[int, int | None]:
    """Return ``2`` or ``1:2`` as most and fewest nodes; None for equal fewest.

    Raises
    ------
    ValueError
        It is neither.
    """
    found = _RANGE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a valid number of nodes; give N or MIN:MAX")
    if found[2] is None:
        return int(found[1]), None
    return int(found[2]), int(found[1])


def parameter_value(text: str) -> JsonValue:
    """Return the value of a text: JSON, Python's constants, else the text; nothing is evaluated."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)
    return value


def mounts_of(paths: tuple[Path, ...], here: SubmissionContext) -> tuple[Mount, ...]:
    """Return mounts that show directories of the user's place at the same paths in the ranks' containers.

    Raises
    ------
    GipfelError
        The host does not see one of them.
    """
    found: dict[Path, Mount] = {}
    for path in paths:
        if hides_an_image(path) or any(path.is_relative_to(each) for each in found):
            continue
        found[path] = Mount(source=str(here.on_host(path)), destination=str(path))
    return tuple(found.values())
