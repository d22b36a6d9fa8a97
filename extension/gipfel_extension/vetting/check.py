"""Checks: the protocols that a check implements, its context, and finding a check by its type.

A check is a frozen pydantic model that is a `Check` or a `GroupCheck`. `check_class` finds ours and those of
other packages by the entry points ``gipfel.checks``.
"""

import difflib
import functools
import importlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from gipfel_cluster.model import GipfelError

from .gpus import GpuReader
from .host import Host
from .model import Finding, Owner, Scope
from .probing import ProbeRunner, ProbeSpec

GROUP = "gipfel.checks"
#: Ours, so that they are there without an installed package (a source tree, a mounted runtime).
OURS: dict[str, str] = {
    "gpu_count": "gpus:GpuCount",
    "gpu_memory": "gpus:GpuMemory",
    "gpu_processes": "gpus:GpuProcesses",
    "compute_mode": "gpus:ComputeMode",
    "temperature": "thermal:Temperature",
    "clocks": "thermal:Clocks",
    "power_limit": "thermal:PowerLimit",
    "ecc": "gpu_errors:Ecc",
    "remapped_rows": "gpu_errors:RemappedRows",
    "xid": "gpu_errors:Xid",
    "nvlink": "gpu_errors:NvLinks",
    "pcie": "gpu_errors:Pcie",
    "memory_bandwidth": "throughput:MemoryBandwidth",
    "matmul": "throughput:Matmul",
    "host_copy": "throughput:HostCopy",
    "libraries": "container:Libraries",
    "affinity": "host_resources:Affinity",
    "host_memory": "host_resources:HostMemory",
    "shared_memory": "host_resources:SharedMemory",
    "environment": "container:EnvironmentValues",
    "network_stack": "container:NetworkStack",
    "mounts": "storage:Mounts",
    "quota": "storage:Quota",
    "storage_write": "storage:StorageWrite",
    "storage_read": "storage:StorageRead",
    "dns": "network:Dns",
    "clock_offset": "network:ClockOffset",
    "internet": "network:Internet",
    "container": "container:Container",
    "collective": "throughput:Collective",
}


@dataclass(frozen=True)
class CheckContext:
    """Node as a check sees it; everything outside is injected here.

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
    """Check of a GPU or a node: a frozen pydantic model whose fields are its parameters.

    A check returns findings; it need not catch what goes wrong. An exception, a `Missing` tool and the time
    limit become verdicts that do not pass in `run_check`.
    """

    type: ClassVar[str]
    scope: ClassVar[Scope]

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """Return the check with these parameters; provided by pydantic."""

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per subject; an empty list is a verdict that does not pass."""


@runtime_checkable
class GroupCheck(Protocol):
    """Check of a node's GPUs, a pair of nodes, or all nodes: a probe on a group of ranks."""

    type: ClassVar[str]
    scope: ClassVar[Scope]

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """Return the check with these parameters; provided by pydantic."""

    def probe(self, time_limit_s: float) -> ProbeSpec:
        """Return the probe that each rank of the group runs."""


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


class UnknownCheck(Exception):  # noqa: N818 - a person's mistake
    """No check has this type; `near` is the nearest name, or empty."""

    def __init__(self, type_: str, problem: str, near: str = "") -> None:
        super().__init__(problem)
        self.type, self.problem, self.near = type_, problem, near


def check_types() -> tuple[str, ...]:
    """Return the types of all known checks, sorted."""
    return tuple(sorted({*OURS, *_others()}))


def check_class(type_: str) -> type[Check] | type[GroupCheck]:
    """Return the class of a check type.

    Raises
    ------
    UnknownCheck
        No such type, or another package's check can't be imported.
    """
    if type_ in OURS:
        module, _, name = OURS[type_].partition(":")
        loaded: Any = getattr(importlib.import_module(f"{__package__}.checks.{module}"), name)
        return loaded  # type: ignore[no-any-return]
    point = _others().get(type_)
    if point is None:
        near = next(iter(difflib.get_close_matches(type_, check_types(), 1, 0.5)), "")
        raise UnknownCheck(type_, f"There is no check of type {type_[:80]!r}.", near)
    try:
        loaded = point.load()
    # What another package does when it is imported is its own; here it is a verdict that does not pass. One
    # that exits would end the run, with whatever status it likes.
    except (Exception, SystemExit) as error:
        raise UnknownCheck(
            type_, f"The check {type_[:80]!r} of {point.value} can't be imported: {error}."
        ) from error
    if not isinstance(getattr(loaded, "scope", None), Scope) or not hasattr(loaded, "model_validate"):
        raise UnknownCheck(type_, f"{point.value} is not a check: it lacks a scope or parameters.")
    if not hasattr(loaded, "run") and not hasattr(loaded, "probe"):
        raise UnknownCheck(type_, f"{point.value} is not a check: it has neither run() nor probe().")
    return loaded  # type: ignore[no-any-return]


@functools.cache
def _others() -> dict[str, importlib.metadata.EntryPoint]:
    points = importlib.metadata.entry_points(group=GROUP)
    return {point.name: point for point in points if point.name not in OURS}
