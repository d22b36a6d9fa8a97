"""The host as one job sees it: CPU, memory, page faults, I/O, pressure; from ``/proc`` and the job's cgroup.

Network and Lustre are the whole node's: no counter of theirs belongs to a job.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..sample import HOST_METRICS, Device, Sample
from . import no_argument
from .cgroup import job_cgroup
from .lustre import lustre_counters
from .network import network_counters
from .nfs import nfs_counters
from .processes import ProcessTree
from .protocol import Clock, SourceRequest

#: Seconds between two readings of all processes of a job that has a cgroup.
_PROCESSES_S = 1.0
_IO = ("IO_READ_BYTES", "IO_WRITE_BYTES")
_PRESSURES = {"PRESSURE_CPU": "cpu", "PRESSURE_MEMORY": "memory", "PRESSURE_IO": "io"}


class HostSource:
    """CPU, memory, page faults, I/O of the job; pressure of its cgroup, else of the node; the node's network.

    Parameters
    ----------
    root_pid
        The process whose tree is the job, where the job has no cgroup of its own; None for what Slurm started
        of the job that this process is part of, or for this process where there is none.
    root
        Where ``proc`` and ``sys`` are mounted.
    cgroups
        Mount point of the cgroup file system.
    """

    name = "host"
    simulated = False

    def __init__(
        self,
        root_pid: int | None,
        *,
        environment: Mapping[str, str],
        clock: Clock,
        root: Path = Path("/"),
        cgroups: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._clock = clock
        self._root = root
        self._proc = proc = root / "proc"
        self._pid = root_pid or os.getpid()
        self._cgroup = job_cgroup(self._pid, proc=proc, mount=cgroups)
        job_id = environment.get("SLURM_JOB_ID", "") if root_pid is None else ""
        self._tree = ProcessTree(self._pid, job_id=job_id, proc=proc)
        self._before: dict[str, float | None] = {}
        self._before_ns = 0
        self._processes: tuple[float | None, float | None] = (None, None)
        self._processes_ns = 0
        self._process_rates: dict[str, float | None] = {}
        node = environment.get("GIPFEL_NODE") or socket.gethostname()
        scope = "process tree" if self._cgroup is None else "job cgroup"
        self._cores = self._count_cores()
        self._total = self._memory_total()
        self.devices: tuple[Device, ...] = (
            Device(f"host:{node}", "host", node, None, node=node, scope=scope),
        )

    def read(self) -> list[Sample]:
        """One sample; rates are None on the first read."""
        time_ns, now_ns = self._clock.time_ns(), self._clock.monotonic_ns()
        memory, counters = self._job()
        counters |= network_counters(self._proc, self._root / "sys")
        counters |= lustre_counters(self._root)
        counters |= nfs_counters(self._proc)
        rates = self._rates(counters, now_ns)
        self._add_processes(rates, now_ns)
        values: dict[str, float | None] = dict.fromkeys(HOST_METRICS)
        values.update(rates, MEMORY_USED=memory, MEMORY_TOTAL=self._total)
        cores = rates["CPU_CORES_USED"]
        values["CPU_UTIL"] = None if cores is None else min(1.0, cores / self._cores)
        values.update({metric: self._pressure(part) for metric, part in _PRESSURES.items()})
        return [Sample(time_ns, now_ns, self.devices[0].uuid, values)]

    def close(self) -> None:
        """Hold nothing, give nothing back."""

    def _job(self) -> tuple[float | None, dict[str, float | None]]:
        """Memory now, and counters so far under the names of their rates."""
        if self._cgroup is not None:
            read, written = self._cgroup.io_bytes() or (None, None)
            minor, major = self._cgroup.faults() or (None, None)
            memory, cpu = self._cgroup.memory_bytes(), self._cgroup.cpu_seconds()
        elif (usage := self._tree.usage()) is not None:
            read, written = usage.read_bytes, usage.write_bytes
            minor, major = usage.minor_faults, usage.major_faults
            memory, cpu = usage.memory_bytes, usage.cpu_seconds
        else:
            read = written = minor = major = memory = cpu = None
        return memory, {
            "CPU_CORES_USED": cpu,
            "IO_READ_BYTES": read,
            "IO_WRITE_BYTES": written,
            "PAGE_FAULTS_MINOR": minor,
            "PAGE_FAULTS_MAJOR": major,
        }

    def _rates(self, counters: dict[str, float | None], now_ns: int) -> dict[str, float | None]:
        seconds = (now_ns - self._before_ns) / 1e9
        rates: dict[str, float | None] = {}
        for name, value in counters.items():
            before = self._before.get(name)
            known = value is not None and before is not None and seconds > 0
            # A process that leaves the tree takes its counters along.
            rates[name] = max(0.0, value - before) / seconds if known else None  # type: ignore[operator]
        self._before, self._before_ns = counters, now_ns
        return rates

    def _add_processes(self, rates: dict[str, float | None], now_ns: int) -> None:
        """Take what the job's processes read and wrote where that is more than the cgroup counts.

        The cgroup counts block devices alone. Reading every process costs more, so that is done once a
        second.
        """
        if self._cgroup is None:
            return
        seconds = (now_ns - self._processes_ns) / 1e9
        if seconds >= _PROCESSES_S:
            usage = self._tree.usage()
            found = (usage.read_bytes, usage.write_bytes) if usage else (None, None)
            for metric, value, before in zip(_IO, found, self._processes, strict=True):
                known = value is not None and before is not None
                self._process_rates[metric] = max(0.0, value - before) / seconds if known else None  # type: ignore[operator]
            self._processes, self._processes_ns = found, now_ns
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


def open_host(argument: str, request: SourceRequest) -> HostSource:
    """``host``."""
    no_argument("host", argument)
    return HostSource(request.root_pid, environment=request.environment, clock=request.clock)
