"""What this machine has: its CPUs, memory and GPUs, and which GPUs nobody computes on."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..model import Frozen, GipfelError
from .command import run_command
from .gres import GpuCount

_LIMIT_SECONDS = 10.0


class LocalGpu(Frozen):
    """A GPU as the driver lists it; ``busy`` when a process computes on it."""

    index: str
    type: str = ""
    busy: bool = False


async def local_gpus(environment: Mapping[str, str]) -> tuple[LocalGpu, ...]:
    """GPUs of this machine; none where there is no driver."""
    rows = await _ask("--query-gpu=index,uuid,name", environment)
    if not rows:
        return ()
    busy = {row[0] for row in await _ask("--query-compute-apps=gpu_uuid,pid", environment)}
    cells = [(*row, "", "")[:3] for row in rows]
    return tuple(
        LocalGpu(index=index, type=short_name(name), busy=uuid in busy)
        for index, uuid, name in cells
        if index.isdecimal()
    )


def gpus_are_known(gpus: Sequence[LocalGpu], *, devices: Path = Path("/dev")) -> bool:
    """Return whether these are all GPUs of this machine.

    They are not where a driver is loaded that ``nvidia-smi`` did not speak for: a broken one, or AMD's.
    """
    return bool(gpus) or not any((devices / name).exists() for name in ("nvidiactl", "kfd"))


def count_gpus(gpus: Sequence[LocalGpu]) -> tuple[GpuCount, ...]:
    """How many there are of each type."""
    types = list(dict.fromkeys(each.type for each in gpus))
    return tuple(GpuCount(type=kind, count=sum(each.type == kind for each in gpus)) for kind in types)


def short_name(product: str) -> str:
    """``h200`` for ``NVIDIA H200``: the word of a product's name that people use."""
    words = product.lower().replace("/", " ").split()
    ordinary = {"nvidia", "tesla", "geforce", "quadro", "graphics", "device", "gpu"}
    return next((word for word in words if word not in ordinary), "")


def local_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def local_memory() -> int:
    """Memory of this machine in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


async def _ask(query: str, environment: Mapping[str, str]) -> list[list[str]]:
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return []
    try:
        argv = (program, query, "--format=csv,noheader")
        result = await run_command(argv, environment=environment, limit=_LIMIT_SECONDS)
    except (GipfelError, TimeoutError):
        return []
    if result.code:
        return []
    return [[cell.strip() for cell in line.split(",")] for line in result.output.splitlines() if line.strip()]
