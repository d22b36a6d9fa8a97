"""Whether anybody or anything uses this server: kernels, GPUs, job steps, programs, saved files; pure."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gipfel_cluster.scheduler.processes import descendants

from ..telemetry.sample import Device, SampleTable

#: Programs that hold a job step or a launch for as long as it runs.
STEP_PROGRAMS = frozenset(("srun", "mpirun", "mpiexec", "torchrun", "papermill"))
#: Which samples say that a GPU works, the most telling first.
GPU_WORK = ("SM_ACTIVE", "GR_ENGINE_ACTIVE", "GPU_UTIL")
_MOST_CORES = 0.5
_RECENT_S = 60.0


@dataclass(frozen=True)
class Signs:
    """What there is to see at one moment.

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
    """For how long nothing was used.

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

    def look(self, signs: Signs, now: float) -> None:
        """Take what was seen at ``now``."""
        self.busy_with = busy_with(signs, self._gpu_threshold)
        self.since = now if self.busy_with else min(max(self.since, signs.last_used), now)

    def touch(self, now: float) -> None:
        """Somebody said that the server is wanted."""
        self.since = now


def busy_with(signs: Signs, gpu_threshold: float) -> tuple[str, ...]:
    """What works now, in words."""
    found = []
    if signs.busy_kernels:
        found.append(f"{signs.busy_kernels} busy kernel{'s' if signs.busy_kernels > 1 else ''}")
    if signs.gpu_share is not None and not signs.gpu_share < gpu_threshold:
        # No sample is not an idle GPU.
        silent = np.isnan(signs.gpu_share)
        found.append("GPUs that nothing is heard of" if silent else f"GPU {signs.gpu_share:.0%}")
    found += [f"a step ({name})" for name in sorted(set(signs.steps))[:2]]
    if signs.cores > _MOST_CORES:
        found.append(f"{signs.cores:.1f} CPU cores")
    return tuple(found)


def gpu_share(table: SampleTable, devices: Iterable[Device], now_ns: int) -> float | None:
    """How much of the last minute the busiest GPU worked; see `Signs`. Simulated ones don't count."""
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
    """The programs below this server: which hold a step, and how many cores they use."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._before: tuple[float, dict[int, float]] | None = None

    def look(self, now: float) -> tuple[tuple[str, ...], float]:
        """Names of programs that hold a step, and cores in use since the last look."""
        pids = descendants(self._root)
        steps = tuple(name for pid in pids if (name := _program(pid)) in STEP_PROGRAMS)
        spent = {pid: seconds for pid in pids if (seconds := _cpu_seconds(pid)) is not None}
        before, self._before = self._before, (now, spent)
        if before is None or now <= before[0]:
            return steps, 0.0
        used = sum(max(seconds - before[1].get(pid, 0.0), 0.0) for pid, seconds in spent.items())
        return steps, used / (now - before[0])


def _program(pid: int) -> str:
    """A process's name; of an interpreter, the script's or module's."""
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
