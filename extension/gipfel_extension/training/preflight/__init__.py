"""Pre-flight: what would make a launch fail, found before anything is queued."""

from collections.abc import Callable, Mapping
from pathlib import Path

from ..launches.plan import LaunchPlan
from ..standpoint import Standpoint
from .checkpoint import CheckpointCheck
from .edf import EdfCheck
from .gpus import GpuCheck
from .image import ImageCheck
from .probe import ask_container
from .protocol import Check, CheckOutcome, Context
from .script import ScriptCheck
from .vetting import VettingCheck

__all__ = ["CHECKS", "Check", "CheckOutcome", "Context", "run_preflight"]

CHECKS: tuple[Callable[[], Check], ...] = (
    EdfCheck,
    ImageCheck,
    ScriptCheck,
    GpuCheck,
    CheckpointCheck,
    VettingCheck,
)


def run_preflight(
    plan: LaunchPlan,
    environment: Mapping[str, str],
    here: Standpoint,
    tell: Callable[[CheckOutcome], None] | None = None,
) -> tuple[CheckOutcome, ...]:
    """Run every check; the container is asked once."""
    folder = Path(plan.folder)
    probe, problem = ask_container(plan, folder, environment)
    context = Context(plan, folder, here, environment, probe, problem)
    outcomes = []
    for make in CHECKS:
        outcome = make().run(context)
        if outcome is not None:
            outcomes.append(outcome)
            if tell is not None:
                tell(outcome)
    return tuple(outcomes)
