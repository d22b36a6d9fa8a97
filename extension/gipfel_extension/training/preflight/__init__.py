"""Pre-flight checks: they find problems that would make a launch fail, before anything is queued."""

from collections.abc import Callable, Mapping
from pathlib import Path

from gipfel_cluster.workloads.submission import SubmissionContext

from ..record.spec import LaunchPlan
from .checks import (
    CheckpointCheck,
    EdfCheck,
    ImageCheck,
    LimitsCheck,
    NetworkCheck,
    NotebookCheck,
    SchedulerCheck,
    ScriptCheck,
    SecurityCheck,
    VettingCheck,
)
from .context import Check, CheckOutcome, Context, Holder, run_probe
from .gpus import GpuCheck, free_gpus, terminate_holders

__all__ = ["CHECKS", "Check", "CheckOutcome", "Context", "Holder", "run_preflight", "terminate_holders"]

CHECKS: tuple[Callable[[], Check], ...] = (
    SchedulerCheck,
    LimitsCheck,
    EdfCheck,
    ImageCheck,
    ScriptCheck,
    NotebookCheck,
    GpuCheck,
    NetworkCheck,
    CheckpointCheck,
    SecurityCheck,
    VettingCheck,
)


def run_preflight(
    plan: LaunchPlan,
    environment: Mapping[str, str],
    submission: SubmissionContext,
    on_outcome: Callable[[CheckOutcome], None] | None = None,
    *,
    kill_holders: bool = False,
) -> tuple[CheckOutcome, ...]:
    """Run every check; probe the container once, and with `kill_holders` again after GPUs were freed."""
    folder = Path(plan.folder)
    probe, problem = run_probe(plan, folder, environment)
    context = Context(plan, folder, submission, environment, probe, problem)
    outcomes: list[CheckOutcome] = []

    def add(outcome: CheckOutcome) -> None:
        outcomes.append(outcome)
        if on_outcome is not None:
            on_outcome(outcome)

    if kill_holders:
        context = free_gpus(context, add)
    for make in CHECKS:
        outcome = make().run(context)
        if outcome is not None:
            add(outcome)
    return tuple(outcomes)
