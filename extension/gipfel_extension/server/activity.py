"""Activity of this server: kernels, GPUs, job steps, programs, saved files.

`ActivityMonitor` collects `Indicators`; `Idleness` decides from them how long the server has been idle. Only
the monitor does I/O. `current_activity` is the GPU activity in the status bar of JupyterLab.
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
from ..training.launches.allocation import launches_in_job
from .telemetry import ServerTelemetry

#: Programs that hold a job step or a launch for as long as it runs.
STEP_PROGRAMS = frozenset(("srun", "mpirun", "mpiexec", "torchrun", "papermill"))
#: Metrics that show GPU activity, the most precise first.
GPU_ACTIVITY_METRICS = ("SM_ACTIVE", "GR_ENGINE_ACTIVE", "GPU_UTIL")
_MAX_CORES = 0.5
_RECENT_S = 60.0
_SAVED = "gipfel_saved_last_activity"
#: An open tab polls kernels and sessions every few seconds, so API requests do not count as use.
_POLLED = frozenset(("api_last_activity",))


@dataclass(frozen=True)
class Indicators:
    """Indicators of activity at one moment.

    ``last_used`` is the last use of a kernel, a terminal or a file, in seconds since 1970. ``gpu_share`` is
    the activity of the busiest GPU in the last minute, from 0 to 1; None if no GPU is recorded, and NaN if a
    GPU is recorded but has no recent samples. ``steps`` are names of programs that hold a job step and of
    launches in this job. ``cores`` is the number of CPU cores that programs of this server keep busy.
    """

    last_used: float = 0.0
    busy_kernels: int = 0
    gpu_share: float | None = None
    steps: tuple[str, ...] = ()
    cores: float = 0.0


class Idleness:
    """Time since this server was last used.

    Parameters
    ----------
    now
        Start of the server, in seconds since 1970.
    gpu_threshold
        Activity in the last minute from which a GPU counts as busy, 0 to 1.
    """

    def __init__(self, now: float, *, gpu_threshold: float = 0.05) -> None:
        self._gpu_threshold = gpu_threshold
        self.since = now
        self.busy_with: tuple[str, ...] = ()

    def update(self, indicators: Indicators, now: float) -> None:
        """Add the indicators of the time ``now``."""
        self.busy_with = busy_with(indicators, self._gpu_threshold)
        self.since = now if self.busy_with else min(max(self.since, indicators.last_used), now)


def busy_with(indicators: Indicators, gpu_threshold: float) -> tuple[str, ...]:
    """Return descriptions of what is in use now."""
    found = []
    if indicators.busy_kernels:
        found.append(f"{indicators.busy_kernels} busy kernel{'s' if indicators.busy_kernels > 1 else ''}")
    if indicators.gpu_share is not None and not indicators.gpu_share < gpu_threshold:
        # A GPU without samples may be busy.
        unknown = np.isnan(indicators.gpu_share)
        found.append("GPUs without recent samples" if unknown else f"GPU {indicators.gpu_share:.0%}")
    found += [f"a step ({name})" for name in sorted(set(indicators.steps))[:2]]
    if indicators.cores > _MAX_CORES:
        found.append(f"{indicators.cores:.1f} CPU cores")
    return tuple(found)


def gpu_share(table: SampleTable, devices: Iterable[Device], now_ns: int) -> float | None:
    """Return the activity of the busiest real GPU in the last minute; see `Indicators`."""
    real = [each for each in devices if each.kind == "gpu" and not each.simulated]
    if not real:
        return None
    since_ns = now_ns - int(_RECENT_S * 1e9)
    shares = [_share(table, each.uuid, since_ns) for each in real]
    known = [share for share in shares if share is not None]
    return max(known) if len(known) == len(shares) or max(known, default=0.0) > 0 else float("nan")


def _share(table: SampleTable, device: str, since_ns: int) -> float | None:
    means = (_mean(table, device, metric, since_ns) for metric in GPU_ACTIVITY_METRICS)
    return next((mean for mean in means if mean is not None), None)


class ProgramWatch:
    """Descendant processes of this server: those that hold a job step, and the CPU cores in use."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._before: tuple[float, dict[int, float]] | None = None

    def read(self, now: float) -> tuple[tuple[str, ...], float]:
        """Return the names of programs that hold a step, and the cores in use since the last call."""
        pids = descendants(self._root)
        steps = tuple(name for pid in pids if (name := _program(pid)) in STEP_PROGRAMS)
        spent = {pid: seconds for pid in pids if (seconds := _cpu_seconds(pid)) is not None}
        before, self._before = self._before, (now, spent)
        if before is None or now <= before[0]:
            return steps, 0.0
        used = sum(max(seconds - before[1].get(pid, 0.0), 0.0) for pid, seconds in spent.items())
        return steps, used / (now - before[0])


def _program(pid: int) -> str:
    """Return the name of a process; for a Python interpreter, that of its script or module."""
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


class ActivityMonitor:
    """Monitor of kernels, terminals, saved files, GPUs and programs of one Jupyter server.

    Parameters
    ----------
    settings
        Tornado settings of the server, with its kernel manager, contents manager and times of last activity.
    """

    def __init__(self, settings: MutableMapping[str, Any], telemetry: ServerTelemetry) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._programs = ProgramWatch(os.getpid())

    def watch_saving(self) -> None:
        """Count each saved file as use from now on."""
        self._settings["contents_manager"].register_post_save_hook(self._on_saved)

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
            # A launch is not a child process: it outlives the server, so it must keep the job alive.
            steps=(*steps, *await asyncio.to_thread(launches_in_job, os.environ)),
            cores=cores,
        )

    async def _gpu_share(self) -> float | None:
        try:
            _, broadcast = await self._telemetry.ensure_started()
            devices = await broadcast.devices()
            table = await broadcast.table(_RECENT_S)
        except GipfelError:
            return None
        return await asyncio.to_thread(gpu_share, table, devices, time.time_ns())


def _seconds(moment: object) -> float:
    return moment.timestamp() if isinstance(moment, datetime) else 0.0


#: Seconds before now over which the activity is averaged.
WINDOW_S = 10.0


def current_activity(table: SampleTable, devices: Iterable[Device], now_ns: int) -> dict[str, Any]:
    """Return the mean activity of the GPUs in the last seconds, with the fields of `GpuActivity`.

    The metric is the most precise one that any GPU has; GPUs without a recent sample do not count.
    """
    gpus = [device for device in devices if device.kind == "gpu"]
    since_ns = now_ns - int(WINDOW_S * 1e9)
    found: dict[str, Any] = {"gpus": len(gpus), "share": None, "metric": ""}
    found["simulated"] = any(gpu.simulated for gpu in gpus)
    for metric in GPU_ACTIVITY_METRICS:
        means = [mean for gpu in gpus if (mean := _mean(table, gpu.uuid, metric, since_ns)) is not None]
        if means:
            return {**found, "share": round(sum(means) / len(means), 3), "metric": metric}
    return found


def _mean(table: SampleTable, device: str, metric: str, since_ns: int) -> float | None:
    if device not in table or metric not in table[device]:
        return None
    columns = table[device]
    values = columns[metric][columns["time_ns"] > since_ns]
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None
