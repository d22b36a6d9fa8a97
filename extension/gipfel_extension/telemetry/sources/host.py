"""The host as one job sees it: CPU, memory, I/O, pressure, network; from ``/proc`` and the job's cgroup."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..sample import HOST_METRICS, Device, Sample
from .cgroup import job_cgroup
from .processes import ProcessTree
from .protocol import Clock

_PRESSURES = {"PRESSURE_CPU": "cpu", "PRESSURE_MEMORY": "memory", "PRESSURE_IO": "io"}


class HostSource:
    """CPU, memory and I/O of the job; pressure of the job's cgroup, else of the node; network of the node.

    Parameters
    ----------
    root_pid
        The process whose tree is the job, where the job has no cgroup of its own; None for this process.
    proc, cgroups
        Mount points of procfs and of the cgroup file system.
    """

    name = "host"
    simulated = False

    def __init__(
        self,
        root_pid: int | None,
        *,
        environment: Mapping[str, str],
        clock: Clock,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._clock = clock
        self._proc = proc
        self._pid = root_pid or os.getpid()
        self._cgroup = job_cgroup(self._pid, proc=proc, mount=cgroups)
        self._tree = ProcessTree(self._pid, proc=proc)
        self._before: dict[str, float | None] = {}
        self._before_ns = 0
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
        counters |= self._network()
        rates = self._rates(counters, now_ns)
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
            io: tuple[float | None, float | None] | None = self._cgroup.io_bytes()
            memory, cpu = self._cgroup.memory_bytes(), self._cgroup.cpu_seconds()
        else:
            usage = self._tree.usage()
            io = (usage.read_bytes, usage.write_bytes) if usage else None
            memory, cpu = (usage.memory_bytes, usage.cpu_seconds) if usage else (None, None)
        read, written = io or (None, None)
        return memory, {"CPU_CORES_USED": cpu, "IO_READ_BYTES": read, "IO_WRITE_BYTES": written}

    def _network(self) -> dict[str, float | None]:
        try:
            lines = (self._proc / "net/dev").read_text().splitlines()[2:]
        except OSError:
            return {"NET_RX_BYTES": None, "NET_TX_BYTES": None}
        fields = [line.replace(":", " ").split() for line in lines]
        real = [field for field in fields if len(field) > 9 and field[0] != "lo"]
        return {
            "NET_RX_BYTES": sum(float(field[1]) for field in real),
            "NET_TX_BYTES": sum(float(field[9]) for field in real),
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
