"""Checks of the job's GPUs: count, memory, processes, compute mode.

The base classes `BaseCheck` and `GpuCheck`, and `not_reported`, are used by other checks too.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, OneLine, pluralize

from ..check import CheckContext, Host
from ..gpus import GpuReading, Process
from ..model import Finding, Scope, degraded, failed, inconclusive, passed
from ..threshold import Quantity, with_unit

#: What to do about a faulty node.
ANOTHER_NODE = "Use another node, and tell the operators."
Mode = Literal["default", "exclusive_process", "exclusive_thread", "prohibited"]


def finding_per_gpu(context: CheckContext, judge: Callable[[GpuReading], Finding]) -> Sequence[Finding]:
    """Return the finding of `judge` for each GPU, with the GPU's UUID and model."""
    return [
        judge(gpu).model_copy(update={"subject": gpu.uuid, "model": gpu.name}) for gpu in context.gpus.read()
    ]


def not_reported(value: str) -> Finding:
    """Return the finding for a value that NVML does not report."""
    return inconclusive(
        f"NVML does not report {value} of this GPU.",
        "For GPUs that don't report it, remove this check from the protocol or set `severity: warning`.",
    )


class BaseCheck(Frozen):
    """Base class of checks, by default of a node and within 30 s; a subclass defines `run`."""

    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 30.0


class GpuCheck(BaseCheck):
    """Base class of checks that judge each GPU by what NVML reports of it alone."""

    scope: ClassVar[Scope] = Scope.GPU

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU."""
        return finding_per_gpu(context, self.judge)

    @abstractmethod
    def judge(self, gpu: GpuReading) -> Finding:
        """Return the finding for one GPU."""


class GpuCount(BaseCheck):
    """Check that the node has the number of GPUs that the job has on it, all of one model.

    Parameters
    ----------
    count
        Required number of GPUs; None for the number that the job has.
    model
        Words that the model's name must contain; empty for any model.
    """

    count: Annotated[int, Field(ge=1)] | None = None
    model: OneLine = ""

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        gpus = context.gpus.read()
        expected = self.count if self.count is not None else context.expected_gpus
        models = sorted({gpu.name for gpu in gpus})
        if expected is not None and len(gpus) != expected:
            fix = f"A GPU may have fallen off the bus. {ANOTHER_NODE}"
            return [failed(f"NVML lists {len(gpus)} of {expected} GPUs.", fix, float(len(gpus)))]
        if expected is None and context.expected_gpus is None:
            return [failed("The expected number of GPUs is unknown.", "Set 'count' in the protocol.")]
        if len(models) > 1:
            return [failed(f"The GPUs differ: {', '.join(models)}.", "Use nodes with GPUs of one model.")]
        if self.model and not all(word in models[0].upper() for word in self.model.upper().split()):
            return [failed(f"The GPUs are {models[0]}, not {self.model}.", "Use other nodes.")]
        return [passed(f"{len(gpus)} x {models[0]}.", float(len(gpus)))]


class GpuMemory(GpuCheck):
    """Check that little of a GPU's memory is in use before the run.

    Parameters
    ----------
    most_used
        Allowed share of the memory in use; memory that the driver reserves doesn't count.
    """

    most_used: Annotated[Quantity, Field(ge=0, le=1)] = 0.05

    def judge(self, gpu: GpuReading) -> Finding:
        """Return the finding for one GPU."""
        if gpu.memory_used is None or not gpu.memory_total:
            return not_reported("how much memory is in use")
        share = gpu.memory_used / gpu.memory_total
        text = f"{with_unit(gpu.memory_used, 'B')} of {with_unit(gpu.memory_total, 'B')} are in use"
        if share > self.most_used:
            fix = "Stop the processes that use the memory (restart kernels of this job), or use another node."
            return failed(f"{text}, more than {self.most_used:.0%}.", fix, share)
        return passed(f"{text}.", share)


class GpuProcesses(BaseCheck):
    """Check that no process uses the GPU: another job's process is ``fail``, this job's ``degraded``."""

    scope: ClassVar[Scope] = Scope.GPU

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU."""
        return finding_per_gpu(context, lambda gpu: self._judge(gpu, context))

    def _judge(self, gpu: GpuReading, context: CheckContext) -> Finding:
        host = context.host
        if gpu.processes is None:
            return not_reported("the processes")
        foreign = [process for process in gpu.processes if not _own(process.pid, context)]
        if foreign:
            names = ", ".join(_describe(process, host) for process in foreign[:5])
            fix = "Use another node, and tell the operators: an earlier job may have left the process behind."
            return failed(
                f"{pluralize(len(foreign), 'process')} of others: {names}.", fix, float(len(foreign))
            )
        if gpu.processes:
            names = ", ".join(_describe(process, host) for process in gpu.processes[:5])
            fix = "Restart the kernel that uses the GPU before the run."
            return degraded(f"Processes of this job: {names}.", fix, 0.0)
        return passed("No process uses it.", 0.0)


def _own(pid: int, context: CheckContext) -> bool:
    """Return whether a process belongs to this job, by its environment."""
    job = context.environment.get("SLURM_JOB_ID")
    try:
        return bool(job) and f"SLURM_JOB_ID={job}" in context.host.text(f"/proc/{pid}/environ").split("\0")
    except OSError:
        # The environment of other users' processes can't be read.
        return False


def _describe(process: Process, host: Host) -> str:
    try:
        name = host.text(f"/proc/{process.pid}/comm").strip()
    except OSError:
        # For a process in another container or of another user, only the ID is visible.
        name = "unknown"
    memory = f" with {with_unit(process.used_bytes, 'B')}" if process.used_bytes else ""
    return f"{process.pid} ({name}){memory}"


class ComputeMode(GpuCheck):
    """Check that the compute mode is one of the allowed ones.

    Parameters
    ----------
    allowed
        Allowed modes. In an exclusive mode, a second process on the GPU fails.
    """

    allowed: tuple[Mode, ...] = Field(default=("default",), min_length=1)

    def judge(self, gpu: GpuReading) -> Finding:
        """Return the finding for one GPU."""
        if gpu.compute_mode is None:
            return not_reported("the compute mode")
        if gpu.compute_mode not in self.allowed:
            fix = f"Ask the operators for compute mode {self.allowed[0]}, or use another node."
            return failed(f"The compute mode is {gpu.compute_mode}.", fix)
        return passed(f"The compute mode is {gpu.compute_mode}.")
