"""Checks of GPUs as the job was given them: count, memory, processes, compute mode.

`readings`, `for_each`, `unsaid`, `passed` and `failed` are shared with the other checks.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext, Missing
from ..gpus import GpuReading, Process, ReadingError
from ..host import Host
from ..model import Finding, Owner, Scope, Verdict
from ..quantities import Quantity, with_unit

Mode = Literal["default", "exclusive_process", "exclusive_thread", "prohibited"]


def readings(context: CheckContext) -> tuple[GpuReading, ...]:
    """Return the GPUs of this job on this node.

    Raises
    ------
    Missing
        There is none, or NVML can't be asked.
    """
    try:
        found = context.gpus.read()
    except ReadingError as error:
        raise Missing(error.problem, error.fix, _owner(context)) from error
    if not found:
        fix = "Ask for GPUs in the job, and for them in the container."
        raise Missing("NVML shows no GPU.", fix, _owner(context))
    return found


def _owner(context: CheckContext) -> Owner | None:
    """Return the protocol as the owner where the job was given no GPU, else None."""
    return None if context.expected_gpus else Owner.PROTOCOL


def for_each(context: CheckContext, look: Callable[[GpuReading], Finding]) -> Sequence[Finding]:
    """Return one finding per GPU, with its UUID and model."""
    return [
        look(gpu).model_copy(update={"subject": gpu.uuid, "model": gpu.name}) for gpu in readings(context)
    ]


def unsaid(what: str) -> Finding:
    """Return the verdict where NVML gives no value."""
    return Finding(
        verdict=Verdict.INCONCLUSIVE,
        reason=f"NVML does not report {what} of this GPU.",
        fix="Take this check out of the protocol, or make it a warning, for GPUs that don't report it.",
    )


def passed(reason: str, figure: float | None = None, unit: str = "") -> Finding:
    """Return a finding with nothing wrong."""
    return Finding(verdict=Verdict.PASS, reason=reason, figure=figure, unit=unit)


def failed(reason: str, fix: str, figure: float | None = None, unit: str = "") -> Finding:
    """Return a finding of a fault."""
    return Finding(verdict=Verdict.FAIL, reason=reason, fix=fix, figure=figure, unit=unit)


class GpuCount(Frozen):
    """As many GPUs as the job was given, all of one model.

    Parameters
    ----------
    count
        How many a node must have; None takes what the job asked for.
    model
        Words that the model's name must hold; empty for any one model.
    """

    type: ClassVar[str] = "gpu_count"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 30.0

    count: Annotated[int, Field(ge=1)] | None = None
    model: Line = ""

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        gpus = readings(context)
        wanted = self.count if self.count is not None else context.expected_gpus
        models = sorted({gpu.name for gpu in gpus})
        found = f"{len(gpus)} x {', '.join(models)}"
        if wanted is not None and len(gpus) != wanted:
            fix = "A GPU may have fallen off the bus: take another node, and tell the operators."
            return [failed(f"NVML shows {len(gpus)} of {wanted} GPUs.", fix, float(len(gpus)))]
        if wanted is None and context.expected_gpus is None:
            return [failed("The expected number of GPUs is unknown.", "Give 'count' in the protocol.")]
        if len(models) > 1:
            return [failed(f"The GPUs differ: {', '.join(models)}.", "Take nodes of one kind.")]
        if self.model and not all(word in models[0].upper() for word in self.model.upper().split()):
            return [failed(f"The GPUs are {models[0]}, not {self.model}.", "Take other nodes.")]
        return [passed(f"{found}.", float(len(gpus)))]


class GpuMemory(Frozen):
    """Share of a GPU's memory that is in use.

    Parameters
    ----------
    most_used
        Largest share of the memory; what the driver reserves for itself isn't counted.
    """

    type: ClassVar[str] = "gpu_memory"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    most_used: Annotated[Quantity, Field(ge=0, le=1)] = 0.05

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        if gpu.memory_used is None or not gpu.memory_total:
            return unsaid("how much memory is in use")
        share = gpu.memory_used / gpu.memory_total
        text = f"{with_unit(gpu.memory_used, 'B')} of {with_unit(gpu.memory_total, 'B')} are in use"
        if share > self.most_used:
            fix = "End what holds the memory (restart kernels of this job), or take another node."
            return failed(f"{text}, more than {self.most_used:.0%}.", fix, share)
        return passed(f"{text}.", share)


class GpuProcesses(Frozen):
    """No other job computes on the GPU; a process of this job is degraded."""

    type: ClassVar[str] = "gpu_processes"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU."""
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
        return passed("No process computes on it.", 0.0)


def _own(pid: int, context: CheckContext) -> bool:
    """Return whether a process belongs to this job; by its environment where `job_pids` is unknown."""
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
    held = f" with {with_unit(process.used_bytes, 'B')}" if process.used_bytes else ""
    return f"{process.pid} ({name}){held}"


class ComputeMode(Frozen):
    """The compute mode is one of those that are allowed.

    Parameters
    ----------
    allowed
        A data loader or a second rank on a GPU in exclusive mode dies.
    """

    type: ClassVar[str] = "compute_mode"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    allowed: tuple[Mode, ...] = Field(default=("default",), min_length=1)

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        if gpu.compute_mode is None:
            return unsaid("the compute mode")
        if gpu.compute_mode not in self.allowed:
            fix = f"Ask the operators for compute mode {self.allowed[0]}, or take another node."
            return failed(f"The compute mode is {gpu.compute_mode}.", fix)
        return passed(f"The compute mode is {gpu.compute_mode}.")
