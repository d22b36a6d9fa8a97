"""The seams of a check: what it is given and what it must have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from gipfel_cluster.model import GipfelError

from .gpus.reading import GpuReader
from .host import Host
from .model import Finding, Owner, Scope
from .probing import ProbeRunner, ProbeSpec


@dataclass(frozen=True)
class CheckContext:
    """The node as a check sees it: everything outside is injected here.

    Parameters
    ----------
    node
        This node's name.
    environment
        The environment that the user's own processes have in the container.
    host
        Files, file systems, programs, sockets and clocks.
    gpus
        NVML, or a fake of it.
    probes
        Runs single files with the image's Python.
    expected_gpus
        How many GPUs the job was given on this node; None where nobody knows.
    scratch
        A folder of this node, for this run only.
    time_limit_s
        How long the check may take; it is stopped then.
    job_pids
        Process ids that belong to the job; None where that cannot be told.
    """

    node: str
    environment: Mapping[str, str]
    host: Host
    gpus: GpuReader
    probes: ProbeRunner
    scratch: Path
    expected_gpus: int | None = None
    time_limit_s: float = 60.0
    job_pids: frozenset[int] | None = field(default=None)


@runtime_checkable
class Check(Protocol):
    """A check of a GPU or of a node: a frozen pydantic model whose fields are its parameters.

    A check returns findings; it need not catch what goes wrong. An exception, a `Missing` tool and the time
    limit become verdicts that do not pass in `run_check`.
    """

    type: ClassVar[str]
    scope: ClassVar[Scope]

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """The check with these parameters; pydantic's."""

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """What it found, one finding per subject; none at all is a verdict that does not pass."""


@runtime_checkable
class GroupCheck(Protocol):
    """A check of a pair of nodes, of all nodes, or of the GPUs of one node: a probe on a group of ranks."""

    type: ClassVar[str]
    scope: ClassVar[Scope]

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """The check with these parameters; pydantic's."""

    def probe(self, time_limit_s: float) -> ProbeSpec:
        """What each rank of the group runs."""


class Missing(GipfelError):  # noqa: N818 - not an error of the program
    """Requirement of a check that this node lacks: a tool, a module, a GPU.

    Parameters
    ----------
    owner
        Whose it is by its kind; None where the check can't say.
    """

    def __init__(self, problem: str, fix: str = "", owner: Owner | None = None) -> None:
        super().__init__(problem, fix)
        self.owner = owner
