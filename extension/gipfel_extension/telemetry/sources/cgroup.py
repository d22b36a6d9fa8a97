"""The control group (version 2) of a Slurm job, where the job has one of its own."""

import re
from contextlib import suppress
from pathlib import Path

_JOB = re.compile(r"job_\d+")


def job_cgroup(
    pid: int, *, proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")
) -> "Cgroup | None":
    """The job's group that a process is in; None without Slurm's cgroups or with version 1."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("0::/"):
            parts = Path(line[3:].lstrip("/")).parts
            for depth, part in enumerate(parts, start=1):
                group = mount.joinpath(*parts[:depth])
                if _JOB.fullmatch(part) and (group / "memory.current").exists():
                    return Cgroup(group, mount)
    return None


class Cgroup:
    """One group below a mount point; every reading is None where the kernel doesn't give it."""

    def __init__(self, path: Path, mount: Path) -> None:
        self.path = path
        self._lineage = [path, *(p for p in path.parents if p.is_relative_to(mount) and p != mount)]

    def cpu_seconds(self) -> float | None:
        """CPU time used so far."""
        usage = _keyed(self.path / "cpu.stat").get("usage_usec")
        return None if usage is None else usage / 1e6

    def cores(self) -> float | None:
        """The narrowest CPU quota of the group and those around it, in cores."""
        quotas = []
        for group in self._lineage:
            with suppress(OSError, ValueError, ZeroDivisionError):
                quota, period = (group / "cpu.max").read_text().split()
                quotas.append(float(quota) / float(period))
        return min(quotas, default=None)

    def memory_bytes(self) -> float | None:
        """Memory in use, without file cache that the kernel can drop."""
        current = _number(self.path / "memory.current")
        if current is None:
            return None
        return max(0.0, current - _keyed(self.path / "memory.stat").get("inactive_file", 0.0))

    def memory_limit(self) -> float | None:
        """The narrowest memory limit of the group and those around it, in bytes."""
        limits = (_number(group / "memory.max") for group in self._lineage)
        return min((limit for limit in limits if limit is not None), default=None)

    def faults(self) -> tuple[float, float] | None:
        """Minor and major page faults so far."""
        stat = _keyed(self.path / "memory.stat")
        if "pgfault" not in stat or "pgmajfault" not in stat:
            return None
        return max(0.0, stat["pgfault"] - stat["pgmajfault"]), stat["pgmajfault"]

    def io_bytes(self) -> tuple[float, float] | None:
        """Bytes read from and written to block devices so far."""
        try:
            words = (self.path / "io.stat").read_text().split()
        except OSError:
            return None
        pairs = [word.split("=", 1) for word in words if "=" in word]
        read = sum(float(value) for key, value in pairs if key == "rbytes")
        return read, sum(float(value) for key, value in pairs if key == "wbytes")


def _keyed(path: Path) -> dict[str, float]:
    values = {}
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, value = line.split()
            values[key] = float(value)
    return values


def _number(path: Path) -> float | None:
    with suppress(OSError, ValueError):
        # "max" means no limit and is no number.
        return float(path.read_text())
    return None
