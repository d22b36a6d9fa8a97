"""The host as one job sees it: CPU, memory, page faults, I/O and pressure.

The values come from the job's cgroup (version 2) where Slurm created one, else from the job's process tree.
Network, Lustre and NFS counters, and the power of processors and memory, are those of the whole node
(``counters.py``, ``file_systems.py``), because the kernel does not count them per job.
"""

import os
import re
import socket
from contextlib import suppress
from pathlib import Path

from ..events import Event
from ..metric_table import HOST_METRICS
from ..sample import Device, Sample
from . import Source, SourceRequest
from .counters import HostEnergy, network_counters, number_in
from .file_systems import lustre_counters, nfs_counters
from .nics import NicCounters

_JOB_GROUP = re.compile(r"job_\d+")
#: Seconds between two readings of the processes of a job that has a cgroup.
_PROCESSES_S = 1.0
_IO = ("IO_READ_BYTES", "IO_WRITE_BYTES")
_PRESSURES = {"PRESSURE_CPU": "cpu", "PRESSURE_MEMORY": "memory", "PRESSURE_IO": "io"}
#: Resources that a job has used so far, or uses now (memory), under the names of their metrics: CPU seconds,
#: bytes, page faults. A value is None where the kernel does not provide it.
Usage = dict[str, float | None]
_USAGE = ("CPU_CORES_USED", "MEMORY_USED", *_IO, "PAGE_FAULTS_MINOR", "PAGE_FAULTS_MAJOR")


class HostSource(Source):
    """CPU, memory, page faults, I/O and pressure of the job; network, NICs and file systems of the node.

    The job is its cgroup. Without one, it is the process tree of the request's `root_pid`, or the processes
    of the current Slurm job, or those of this process outside of Slurm.

    Parameters
    ----------
    root
        Directory in which ``proc`` and ``sys`` are mounted.
    cgroups
        Mount point of the cgroup file system.
    """

    name = "host"

    def __init__(
        self,
        request: SourceRequest,
        *,
        root: Path = Path("/"),
        cgroups: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._clock, environment = request.clock, request.environment
        self._root = root
        self._proc = proc = root / "proc"
        self._pid = request.root_pid or os.getpid()
        self._cgroup = job_cgroup(self._pid, proc=proc, mount=cgroups)
        job_id = environment.get("SLURM_JOB_ID", "") if request.root_pid is None else ""
        self._tree = ProcessTree(self._pid, job_id=job_id, proc=proc)
        self._before: dict[str, float | None] = {}
        self._before_ns = 0
        self._processes: Usage = {}
        self._processes_ns = 0
        self._process_rates: dict[str, float | None] = {}
        node = environment.get("GIPFEL_NODE") or socket.gethostname()
        scope = "process tree" if self._cgroup is None else "job cgroup"
        self._energy = HostEnergy(root)
        self._cores = self._count_cores()
        self._total = self._memory_total()
        self._nics = NicCounters(root / "sys", node)
        self.devices: tuple[Device, ...] = (
            Device(f"host:{node}", "host", node, None, node=node, scope=scope),
            *self._nics.devices,
        )

    def read(self) -> list[Sample]:
        """Return a sample of the host and of each NIC; rates are None at the first read."""
        time_ns, now_ns = self._clock.time_ns(), self._clock.monotonic_ns()
        counters = (self._cgroup or self._tree).usage()
        memory = counters.pop("MEMORY_USED")
        counters |= network_counters(self._proc, self._root / "sys")
        counters |= lustre_counters(self._root)
        counters |= nfs_counters(self._proc)
        counters["HOST_POWER"] = self._energy.joules()
        rates = self._rates(counters, now_ns)
        self._add_processes(rates, now_ns)
        values: dict[str, float | None] = dict.fromkeys(HOST_METRICS)
        values.update(rates, MEMORY_USED=memory, MEMORY_TOTAL=self._total)
        cores = rates["CPU_CORES_USED"]
        values["CPU_UTIL"] = None if cores is None else min(1.0, cores / self._cores)
        values.update({metric: self._pressure(part) for metric, part in _PRESSURES.items()})
        return [Sample(time_ns, now_ns, self.devices[0].uuid, values), *self._nics.read(time_ns, now_ns)]

    def events(self) -> list[Event]:
        """Return errors of NICs since the last call."""
        return self._nics.events()

    def _rates(self, counters: dict[str, float | None], now_ns: int) -> dict[str, float | None]:
        seconds = (now_ns - self._before_ns) / 1e9
        rates = {name: _rate(self._before.get(name), value, seconds) for name, value in counters.items()}
        self._before, self._before_ns = counters, now_ns
        return rates

    def _add_processes(self, rates: dict[str, float | None], now_ns: int) -> None:
        """Replace the cgroup's I/O rates by those of the job's processes where these are higher.

        The cgroup counts only block devices. The processes are read once a second, because that costs more.
        """
        if self._cgroup is None:
            return
        seconds = (now_ns - self._processes_ns) / 1e9
        if seconds >= _PROCESSES_S:
            before, self._processes = self._processes, self._tree.usage()
            self._process_rates = {
                metric: _rate(before.get(metric), self._processes[metric], seconds) for metric in _IO
            }
            self._processes_ns = now_ns
        for metric, rate in self._process_rates.items():
            rates[metric] = max((each for each in (rates[metric], rate) if each is not None), default=None)

    def _pressure(self, part: str) -> float | None:
        path = self._cgroup.path / f"{part}.pressure" if self._cgroup else self._proc / "pressure" / part
        with suppress(OSError, ValueError, IndexError):
            return float(path.read_text().split("avg10=")[1].split()[0]) / 100
        return None

    def _count_cores(self) -> float:
        try:
            cores = float(len(os.sched_getaffinity(self._pid)))
        except OSError:
            cores = float(os.cpu_count() or 1)
        quota = self._cgroup.cores() if self._cgroup else None
        return min(cores, quota) if quota else cores

    def _memory_total(self) -> float | None:
        limit = self._cgroup.memory_limit() if self._cgroup else None
        with suppress(OSError, IndexError, ValueError):
            line = (self._proc / "meminfo").read_text().splitlines()[0]
            node = float(line.split()[1]) * 1024
            return min(node, limit) if limit else node
        return limit


def _rate(before: float | None, value: float | None, seconds: float) -> float | None:
    if before is None or value is None or seconds <= 0:
        return None
    # The sum of a process tree decreases when a process leaves the tree.
    return max(0.0, value - before) / seconds


def job_cgroup(
    pid: int, *, proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")
) -> "Cgroup | None":
    """Return the job's cgroup of a process; None without Slurm's cgroups and with cgroup version 1."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("0::/"):
            parts = Path(line[3:].lstrip("/")).parts
            for depth, part in enumerate(parts, start=1):
                group = mount.joinpath(*parts[:depth])
                if _JOB_GROUP.fullmatch(part) and (group / "memory.current").exists():
                    return Cgroup(group, mount)
    return None


class Cgroup:
    """One cgroup; a limit is None where there is none."""

    def __init__(self, path: Path, mount: Path) -> None:
        self.path = path
        self._lineage = [path, *(p for p in path.parents if p.is_relative_to(mount) and p != mount)]

    def usage(self) -> Usage:
        """Return the usage; memory is without reclaimable file cache, and I/O that of block devices."""
        used = dict.fromkeys(_USAGE)
        cpu, memory = (_read_key_values(self.path / name) for name in ("cpu.stat", "memory.stat"))
        if "usage_usec" in cpu:
            used["CPU_CORES_USED"] = cpu["usage_usec"] / 1e6
        current = number_in(self.path / "memory.current")
        if current is not None:
            used["MEMORY_USED"] = max(0.0, current - memory.get("inactive_file", 0.0))
        if "pgfault" in memory and "pgmajfault" in memory:
            used["PAGE_FAULTS_MINOR"] = max(0.0, memory["pgfault"] - memory["pgmajfault"])
            used["PAGE_FAULTS_MAJOR"] = memory["pgmajfault"]
        with suppress(OSError):
            fields = (self.path / "io.stat").read_text().split()
            for metric, key in zip(_IO, ("rbytes=", "wbytes="), strict=True):
                used[metric] = sum(float(each.removeprefix(key)) for each in fields if each.startswith(key))
        return used

    def cores(self) -> float | None:
        """Return the lowest CPU quota of the cgroup and its ancestors, in cores."""
        quotas = []
        for group in self._lineage:
            with suppress(OSError, ValueError, ZeroDivisionError):
                quota, period = (group / "cpu.max").read_text().split()
                quotas.append(float(quota) / float(period))
        return min(quotas, default=None)

    def memory_limit(self) -> float | None:
        """Return the lowest memory limit of the cgroup and its ancestors, in bytes."""
        limits = (number_in(group / "memory.max") for group in self._lineage)
        return min((limit for limit in limits if limit is not None), default=None)


class ProcessTree:
    """A process and its descendants, or those of a Slurm job on this node.

    Parameters
    ----------
    job_id
        Slurm job whose step daemons are the roots of the tree; without any, `root_pid` is the root.
    proc
        The mount point of procfs.
    """

    def __init__(self, root_pid: int, *, job_id: str = "", proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._root = root_pid
        self._daemon = f"slurmstepd: [{job_id}." if job_id else ""
        self._other_pids: set[int] = set()

    def usage(self) -> Usage:
        """Return the tree's usage; all values are None where its root has ended.

        CPU seconds, I/O bytes and page faults include those of ended descendants.
        """
        stats, used = self._members(), dict.fromkeys(_USAGE)
        if not stats:
            return used
        # utime, stime, cutime and cstime: when a process ends, its time is added to cutime and cstime of its
        # parent, so that the sum includes it.
        ticks = sum(float(number) for fields in stats.values() for number in fields[11:15])
        private = shared = 0
        for pid in stats:
            with suppress(OSError, ValueError, IndexError):
                resident, common = map(int, (self._proc / str(pid) / "statm").read_text().split()[1:3])
                private += resident - common
                # Forked workers share memory pages: count only the largest shared size, once.
                shared = max(shared, common)
            with suppress(OSError, ValueError, KeyError):
                lines = (self._proc / str(pid) / "io").read_text().splitlines()
                numbers = dict(line.split(": ") for line in lines)
                for metric, key in zip(_IO, ("read_bytes", "write_bytes"), strict=True):
                    used[metric] = (used[metric] or 0.0) + int(numbers[key])
        return used | {
            "CPU_CORES_USED": ticks / os.sysconf("SC_CLK_TCK"),
            "MEMORY_USED": float(private + shared) * os.sysconf("SC_PAGE_SIZE"),
            "PAGE_FAULTS_MINOR": sum(float(fields[7]) + float(fields[8]) for fields in stats.values()),
            "PAGE_FAULTS_MAJOR": sum(float(fields[9]) + float(fields[10]) for fields in stats.values()),
        }

    def _members(self) -> dict[int, list[str]]:
        """Return the fields of ``stat`` from the third (state) on, by process id of the tree."""
        present = {int(entry.name) for entry in os.scandir(self._proc) if entry.name.isdecimal()}
        # A process that is not a descendant never becomes one: skip those that are already known.
        self._other_pids &= present
        stats = {}
        daemons = []
        for pid in present - self._other_pids:
            # ESRCH: it ended since the listing.
            with suppress(OSError):
                line = (self._proc / str(pid) / "stat").read_text(errors="replace")
                name, _, fields = line.rpartition(")")
                stats[pid] = fields.split()
                if self._daemon and name.endswith("(slurmstepd"):
                    daemons.append(pid)
        children: dict[int, list[int]] = {}
        for pid, fields_of in stats.items():
            children.setdefault(int(fields_of[1]), []).append(pid)
        members: dict[int, list[str]] = {}
        # Without a daemon of this job the tree starts at the root process.
        waiting = [pid for pid in daemons if self._is_of_job(pid)] or [self._root]
        while waiting:
            pid = waiting.pop()
            if pid in stats and pid not in members:
                members[pid] = stats[pid]
                waiting.extend(children.get(pid, []))
        # A daemon sets its title shortly after it starts.
        self._other_pids |= stats.keys() - members.keys() - set(daemons)
        return members

    def _is_of_job(self, daemon: int) -> bool:
        with suppress(OSError):
            title = (self._proc / str(daemon) / "cmdline").read_bytes()
            return title.decode(errors="replace").startswith(self._daemon)
        return False


def _read_key_values(path: Path) -> dict[str, float]:
    values = {}
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, value = line.split()
            values[key] = float(value)
    return values
