"""Which checks there are: ours and those of other packages, by the entry points ``gipfel.checks``."""

import difflib
import functools
import importlib
import importlib.metadata
from typing import Any

from ..check import Check, GroupCheck
from ..model import Scope

GROUP = "gipfel.checks"

#: Ours, so that they are there without an installed package (a source tree, a mounted runtime).
OURS: dict[str, str] = {
    "gpu_count": "gpu_count:GpuCount",
    "gpu_memory": "gpu_memory:GpuMemory",
    "gpu_processes": "gpu_processes:GpuProcesses",
    "compute_mode": "compute_mode:ComputeMode",
    "temperature": "temperature:Temperature",
    "clocks": "clocks:Clocks",
    "power_limit": "power_limit:PowerLimit",
    "ecc": "ecc:Ecc",
    "remapped_rows": "remapped_rows:RemappedRows",
    "xid": "xid:Xid",
    "nvlink": "nvlink:NvLinks",
    "pcie": "pcie:Pcie",
    "memory_bandwidth": "memory_bandwidth:MemoryBandwidth",
    "matmul": "matmul:Matmul",
    "host_copy": "host_copy:HostCopy",
    "libraries": "libraries:Libraries",
    "affinity": "affinity:Affinity",
    "host_memory": "host_memory:HostMemory",
    "shared_memory": "shared_memory:SharedMemory",
    "environment": "environment:EnvironmentValues",
    "network_stack": "network_stack:NetworkStack",
    "mounts": "mounts:Mounts",
    "quota": "quota:Quota",
    "storage_write": "storage_write:StorageWrite",
    "storage_read": "storage_read:StorageRead",
    "dns": "dns:Dns",
    "clock_offset": "clock_offset:ClockOffset",
    "internet": "internet:Internet",
    "container": "container:Container",
    "collective": "collective:Collective",
}


class UnknownCheck(Exception):  # noqa: N818 - a person's mistake
    """There is no check of this type; `near` is the nearest name, or empty."""

    def __init__(self, type_: str, problem: str, near: str = "") -> None:
        super().__init__(problem)
        self.type, self.problem, self.near = type_, problem, near


def check_types() -> tuple[str, ...]:
    """The types of all checks that are known here, sorted."""
    return tuple(sorted({*OURS, *_others()}))


def check_class(type_: str) -> type[Check] | type[GroupCheck]:
    """The class of a check type.

    Raises
    ------
    UnknownCheck
        No such type, or another package's check can't be imported.
    """
    if type_ in OURS:
        module, _, name = OURS[type_].partition(":")
        loaded: Any = getattr(importlib.import_module(f"{__package__}.{module}"), name)
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
        raise UnknownCheck(type_, f"{point.value} is no check: it lacks a scope or parameters.")
    if not hasattr(loaded, "run") and not hasattr(loaded, "probe"):
        raise UnknownCheck(type_, f"{point.value} is no check: it has neither run() nor probe().")
    return loaded  # type: ignore[no-any-return]


@functools.cache
def _others() -> dict[str, importlib.metadata.EntryPoint]:
    points = importlib.metadata.entry_points(group=GROUP)
    return {point.name: point for point in points if point.name not in OURS}
