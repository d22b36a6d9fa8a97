"""What checks of GPUs share: this job's readings, and a verdict for what NVML does not say."""

from collections.abc import Callable, Sequence

from ..check import CheckContext, Missing
from ..gpus.reading import GpuReading, ReadingError
from ..model import Finding, Owner, Verdict


def readings(context: CheckContext) -> tuple[GpuReading, ...]:
    """The GPUs of this job on this node.

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
    """Blame the protocol where the job was given no GPU that could be looked at."""
    return None if context.expected_gpus else Owner.PROTOCOL


def for_each(context: CheckContext, look: Callable[[GpuReading], Finding]) -> Sequence[Finding]:
    """One finding per GPU, with its UUID and model."""
    return [
        look(gpu).model_copy(update={"subject": gpu.uuid, "model": gpu.name}) for gpu in readings(context)
    ]


def unsaid(what: str) -> Finding:
    """The verdict where NVML gives no value."""
    return Finding(
        verdict=Verdict.INCONCLUSIVE,
        reason=f"NVML does not say {what} of this GPU.",
        fix="Take this check out of the protocol, or make it a warning, for GPUs that don't say it.",
    )


def passed(reason: str, figure: float | None = None, unit: str = "") -> Finding:
    """A finding with nothing wrong."""
    return Finding(verdict=Verdict.PASS, reason=reason, figure=figure, unit=unit)


def failed(reason: str, fix: str, figure: float | None = None, unit: str = "") -> Finding:
    """A finding of something wrong."""
    return Finding(verdict=Verdict.FAIL, reason=reason, fix=fix, figure=figure, unit=unit)
