"""Processes on a GPU before the run: of others, and of this job."""

from collections.abc import Sequence
from typing import ClassVar

from gipfel_cluster.model import Frozen

from ..check import CheckContext
from ..gpus.reading import GpuReading, Process
from ..host import Host
from ..model import Finding, Scope, Verdict
from ..quantities import shown
from .gpus import failed, for_each, passed, unsaid


class GpuProcesses(Frozen):
    """Nobody else computes on the GPU; a process of this job is only noted as degraded."""

    type: ClassVar[str] = "gpu_processes"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding per GPU."""
        return for_each(context, lambda gpu: self._look(gpu, context))

    def _look(self, gpu: GpuReading, context: CheckContext) -> Finding:
        host = context.host
        if gpu.processes is None:
            return unsaid("which processes run on it")
        foreign = [process for process in gpu.processes if not _own(process.pid, context)]
        if foreign:
            names = ", ".join(_words(process, host) for process in foreign[:5])
            fix = "Take another node, and tell the operators: an earlier job may have left it behind."
            return failed(f"{len(foreign)} foreign process(es): {names}.", fix, float(len(foreign)))
        if gpu.processes:
            names = ", ".join(_words(process, host) for process in gpu.processes[:5])
            fix = "Restart the kernel that holds the GPU before the run."
            return Finding(verdict=Verdict.DEGRADED, reason=f"This job's own: {names}.", fix=fix, figure=0.0)
        return passed("Nobody computes on it.", 0.0)


def _own(pid: int, context: CheckContext) -> bool:
    """Whether a process belongs to this job: by its environment, where nobody has said so."""
    if context.job_pids is not None:
        return pid in context.job_pids
    job = context.environment.get("SLURM_JOB_ID")
    try:
        return bool(job) and f"SLURM_JOB_ID={job}" in context.host.text(f"/proc/{pid}/environ").split("\0")
    except OSError:
        # Nobody may read what others' processes have.
        return False


def _words(process: Process, host: Host) -> str:
    try:
        name = host.text(f"/proc/{process.pid}/comm").strip()
    except OSError:
        # Of another container or user: its number is all that one may see.
        name = "unknown"
    held = f" with {shown(process.used_bytes, 'B')}" if process.used_bytes else ""
    return f"{process.pid} ({name}){held}"
