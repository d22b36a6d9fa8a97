"""Pre-flight: what would make a launch fail, found before anything is queued."""

from collections.abc import Callable, Mapping
from pathlib import Path

from ..launches.plan import LaunchPlan
from ..standpoint import Standpoint
from .checkpoint import CheckpointCheck
from .edf import EdfCheck
from .freeing import freed
from .gpus import GpuCheck
from .holders import Holder, end_holders
from .image import ImageCheck
from .notebook import NotebookCheck
from .probe import ask_container
from .protocol import Check, CheckOutcome, Context
from .scheduler import SchedulerCheck
from .script import ScriptCheck
from .vetting import VettingCheck

__all__ = ["CHECKS", "Check", "CheckOutcome", "Context", "Holder", "end_holders", "run_preflight"]

CHECKS: tuple[Callable[[], Check], ...] = (
    SchedulerCheck,
    EdfCheck,
    ImageCheck,
    ScriptCheck,
    NotebookCheck,
    GpuCheck,
    CheckpointCheck,
    VettingCheck,
)


def run_preflight(
    plan: LaunchPlan,
    environment: Mapping[str, str],
    here: Standpoint,
    tell: Callable[[CheckOutcome], None] | None = None,
    *,
    free: bool = False,
) -> tuple[CheckOutcome, ...]:
    """Run every check; the container is asked once, and with ``free`` again after GPUs were freed."""
    folder = Path(plan.folder)
    probe, problem = ask_container(plan, folder, environment)
    context = Context(plan, folder, here, environment, probe, problem)
    outcomes: list[CheckOutcome] = []

    def add(outcome: CheckOutcome) -> None:
        outcomes.append(outcome)
        if tell is not None:
            tell(outcome)

    if free:
        context = freed(context, add)
    for make in CHECKS:
        outcome = make().run(context)
        if outcome is not None:
            add(outcome)
    return tuple(outcomes)
