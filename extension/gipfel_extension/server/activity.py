"""Use of this server: kernels, GPUs, job steps, programs, saved files.

`ServerUse` gathers `Indicators`, `Idleness` judges them; only the first does any I/O.
"""

import asyncio
import os
import time
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from gipfel_cluster.model import GipfelError
from gipfel_cluster.process.tree import descendants

from ..telemetry.sample import Device, SampleTable
from ..training.launches.allocation import running_here
from .telemetry import ServerTelemetry

#: Programs that hold a job step or a launch for as long as it runs.
STEP_PROGRAMS = frozenset(("srun", "mpirun", "mpiexec", "torchrun", "papermill"))
#: Which samples say that a GPU works, the most telling first.
GPU_WORK = ("SM_ACTIVE", "GR_ENGINE_ACTIVE", "GPU_UTIL")
_MOST_CORES = 0.5
_RECENT_S = 60.0
_WINDOW_S = 60.0
_SAVED = "gipfel_saved_last_activity"
#: An open tab asks for kernels and sessions every few seconds; that does not use a GPU.
_POLLED = frozenset(("api_last_activity",))


@dataclass(frozen=True)
class Indicators:
    """Indicators of use at one moment.

    ``last_used`` is when a kernel, a terminal or a file was last used, in seconds since 1970; ``gpu_share``
    how much of the last minute the busiest GPU worked, from 0 to 1, None where no GPU is recorded, and NaN
    where one is and nothing was heard of it; ``cores`` how many the programs of this server kept busy.
    """

    last_used: float = 0.0
    busy_kernels: int = 0
    gpu_share: float | None = None
    steps: tuple[str, ...] = ()
    cores: float = 0.0


class Idleness:
    """Time for which nothing was used.

    Parameters
    ----------
    now
        When the server started, in seconds since 1970.
    gpu_threshold
        The share of a minute from which a GPU counts as working.
    """

    def __init__(self, now: float, *, gpu_threshold: float = 0.05) -> None:
        self._gpu_threshold = gpu_threshold
        self.since = now
        self.busy_with: tuple[str, ...] = ()

    def update(self, indicators: Indicators, now: float) -> None:
        """Add the indicators of the time ``now``."""
        self.busy_with = busy_with(indicators, self._gpu_threshold)
        self.since = now if self.busy_with else min(max(self.since, indicators.last_used), now)

    def touch(self, now: float) -> None:
        """Count this moment as use: a user wants the server."""
        self.since = now


def busy_with(indicators: Indicators, gpu_threshold: float) -> tuple[str, ...]:
    """Return what is in use now, in words."""
    found = []
    if indicators.busy_kernels:
        found.append(f"{indicators.busy_kernels} busy kernel{'s' if indicators.busy_kernels > 1 else ''}")
    if indicators.gpu_share is not None and not indicators.gpu_share < gpu_threshold:
        # No sample is not an idle GPU.
        silent = np.isnan(indicators.gpu_share)
        found.append("GPUs that nothing is heard of" if silent else f"GPU {indicators.gpu_share:.0%}")
    found += [f"a step ({name})" for name in sorted(set(indicators.steps))[:2]]
    if indicators.cores > _MOST_CORES:
        found.append(f"{indicators.cores:.1f} CPU cores")
    return tuple(found)


def gpu_share(table: SampleTable, devices: Iterable[Device], now_ns: int) -> float | None:
    """Return how much of the last minute the busiest GPU worked, without simulated ones; see `Indicators`."""
    real = [each for each in devices if each.kind == "gpu" and not each.simulated]
    if not real:
        return None
    shares = [_share(table, each.uuid, now_ns) for each in real]
    heard = [share for share in shares if not np.isnan(share)]
    return max(heard) if len(heard) == len(shares) or max(heard, default=0.0) > 0 else float("nan")


def _share(table: SampleTable, device: str, now_ns: int) -> float:
    if device not in table:
        return float("nan")
    columns = table.of(device)
    recent = columns["time_ns"] > now_ns - int(_RECENT_S * 1e9)
    for name in GPU_WORK:
        values = columns[name][recent] if name in columns else np.empty(0)
        values = values[~np.isnan(values)]
        if len(values):
            return float(values.mean())
    return float("nan")


class ProgramWatch:
    """Programs below this server: which of them hold a step, and how many cores they use."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._before: tuple[float, dict[int, float]] | None = None

    def read(self, now: float) -> tuple[tuple[str, ...], float]:
        """Return the names of programs that hold a step, and the cores in use since the last look."""
        pids = descendants(self._root)
        steps = tuple(name for pid in pids if (name := _program(pid)) in STEP_PROGRAMS)
        spent = {pid: seconds for pid in pids if (seconds := _cpu_seconds(pid)) is not None}
        before, self._before = self._before, (now, spent)
        if before is None or now <= before[0]:
            return steps, 0.0
        used = sum(max(seconds - before[1].get(pid, 0.0), 0.0) for pid, seconds in spent.items())
        return steps, used / (now - before[0])


def _program(pid: int) -> str:
    """Return a process's name; of an interpreter, the script's or module's."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:4]
    except OSError:
        return ""
    names = [Path(os.fsdecode(word)).name for word in words if word]
    if names and names[0].startswith("python"):
        rest = [name for name in names[1:] if not name.startswith("-")]
        return {"torch.distributed.run": "torchrun"}.get(rest[0], rest[0]) if rest else ""
    return names[0] if names else ""


def _cpu_seconds(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class ServerUse:
    """Kernels, terminals, saved files, GPUs and programs of one Jupyter server.

    Parameters
    ----------
    settings
        The server's: its kernel manager, its contents manager and its times of last activity.
    """

    def __init__(self, settings: MutableMapping[str, Any], telemetry: ServerTelemetry) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._programs = ProgramWatch(os.getpid())

    def watch_saving(self) -> None:
        """Count a saved file as use."""
        contents = self._settings["contents_manager"]
        if hasattr(contents, "register_post_save_hook"):
            contents.register_post_save_hook(self._on_saved)

    def _on_saved(self, **_: Any) -> None:
        self._settings[_SAVED] = datetime.now().astimezone()

    async def indicators(self) -> Indicators:
        """Return the indicators now; files and processes are read on a thread."""
        kernels = self._settings["kernel_manager"]
        states = [kernels.get_kernel(each) for each in kernels.list_kernel_ids()]
        busy = sum(getattr(each, "execution_state", "") == "busy" for each in states)
        used = [_seconds(getattr(each, "last_activity", None)) for each in states]
        used += [
            _seconds(value)
            for name, value in self._settings.items()
            if name.endswith("_last_activity") and name not in _POLLED
        ]
        steps, cores = await asyncio.to_thread(self._programs.read, time.monotonic())
        return Indicators(
            last_used=max(used, default=0.0),
            busy_kernels=busy,
            gpu_share=await self._gpu_share(),
            # Not a child here: a launch outlives the server, and so must the server's job.
            steps=(*steps, *await asyncio.to_thread(running_here, os.environ)),
            cores=cores,
        )

    async def _gpu_share(self) -> float | None:
        try:
            _, broadcast = await self._telemetry.started()
            devices = await broadcast.devices()
            table = await broadcast.table(_WINDOW_S)
        except GipfelError:
            return None
        return await asyncio.to_thread(gpu_share, table, devices, time.time_ns())


def _seconds(moment: object) -> float:
    return moment.timestamp() if isinstance(moment, datetime) else 0.0
