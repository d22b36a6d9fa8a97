"""What a user asks a launch for: what runs, where, by which launcher, and what happens when it breaks."""

import re
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from gipfel_cluster.model import Line
from gipfel_cluster.scheduler.protocol import Hostlist, Placement

from ..redaction import shown_command_line

__all__ = ["LaunchKind", "LaunchSpec", "nodes_range"]

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
    """How often failed ranks are started again before the launch has failed."""
    kernel: Line = Field("", max_length=256)
    """The kernel of a notebook; empty for its own, or python3 where that is not installed."""
    environment: dict[str, str] = Field(default_factory=dict, max_length=256)
    directory: _Path = ""
    """Where ranks start; empty for the folder that one is in."""
    exclude: Hostlist = ""
    scheduler: Line = Field("", max_length=32)
    engine: Line = Field("", max_length=32)
    runtime: _Path = ""
    cluster: Line = Field("", max_length=32)
    vetting: _Path = ""
    """A vetting protocol, by name or path, that the nodes must pass; empty for none."""
    checkpoint: _Path = ""
    """Where the program keeps its checkpoints: seen to be writable before anything is queued."""
    checkpoint_gib: float = Field(0.0, ge=0)
    """How much room that folder must have."""
    on_preempt: Literal["requeue", "end"] = "requeue"
    """After a warning and a checkpoint: go on in the queue, or end."""
    grace_s: float = Field(60.0, ge=1, le=3600)
    """Seconds before the end of time at which ranks get SIGUSR1; also what they have to end."""
    gather_s: float = Field(30.0, ge=0, le=3600)
    """Elastic: seconds to wait for more nodes once the fewest are there."""
    profile: bool = False
    """Write a trace of torch's profiler for every rank."""
    preflight: bool = True
    python: Line = Field("", pattern=r"^(/|$)", max_length=4096)
    """The interpreter of ranks in no container; empty for the caller's."""
    resume: bool = False
    """Tell the ranks by ``GIPFEL_RESUME=1`` to go on from their checkpoint, as restarted ones are told."""

    @field_validator("environment")
    @classmethod
    def _holds_variables_and_no_secret(cls, value: dict[str, str]) -> dict[str, str]:
        for name, content in value.items():
            if not _VARIABLE.fullmatch(name) or "\0" in content:
                raise ValueError(f"{name[:40]!r} can't be an environment variable")
            if _SECRET.search(name):
                raise ValueError(
                    f"{name[:40]} looks like a secret, which no file of the launch shall hold: keep it in a "
                    "file that the program reads"
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
            raise ValueError(f"which {self.kind} shall run is not said")
        if self.kind == "module" and not all(part.isidentifier() for part in self.target.split(".")):
            raise ValueError(f"{self.target!r} is no name of a module")
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
        """Whether it may run on fewer nodes than it asks for."""
        return self.nodes_min is not None and self.nodes_min < self.nodes

    @property
    def ranks(self) -> int:
        """Ranks on all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def title(self) -> str:
        """What runs, in words for a list."""
        if self.kind == "cell":
            return self.name
        # A launch that is repeated names its program by the whole path, which would leave room for nothing.
        program = self.target.rpartition("/")[2] if self.target.startswith("/") else self.target
        return shown_command_line((program, *self.arguments))[:120]


def nodes_range(text: str) -> tuple[int, int | None]:
    """``2`` or ``1:2`` as most and fewest nodes; None where the fewest are the most.

    Raises
    ------
    ValueError
        It is neither.
    """
    found = _RANGE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no number of nodes; give N or MIN:MAX")
    if found[2] is None:
        return int(found[1]), None
    return int(found[2]), int(found[1])
