"""Pre-flight checks: they find problems that would make a launch fail, before anything is queued."""

from collections.abc import Callable, Mapping
from pathlib import Path

from gipfel_cluster.workloads.submission import SubmissionContext

from ..record.spec import LaunchPlan
from .checks import (
    check_checkpoint,
    check_edf,
    check_image,
    check_job_limits,
    check_network,
    check_notebook_kernel,
    check_scheduler,
    check_script,
    check_security,
    check_vetting,
)
from .context import CheckOutcome, Context, Holder, run_probe
from .gpus import check_gpus, free_gpus, terminate_holders

__all__ = ["CHECKS", "CheckOutcome", "Context", "Holder", "run_preflight", "terminate_holders"]

#: Checks in the order in which they run; each returns None if it does not apply to a launch.
CHECKS: tuple[Callable[[Context], CheckOutcome | None], ...] = (
    check_scheduler,
    check_job_limits,
    check_edf,
    check_image,
    check_script,
    check_notebook_kernel,
    check_gpus,
    check_network,
    check_checkpoint,
    check_security,
    check_vetting,
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
    for check in CHECKS:
        outcome = check(context)
        if outcome is not None:
            add(outcome)
    return tuple(outcomes)
