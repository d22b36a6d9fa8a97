"""GPUs of a launch that are freed before it starts, on request: who holds them is named, then ended."""

from collections.abc import Callable
from dataclasses import replace

from .gpus import GpuCheck
from .holders import END_S, end_holders
from .probe import ask_container
from .protocol import CheckOutcome, Context


def freed(context: Context, tell: Callable[[CheckOutcome], None]) -> Context:
    """End those that hold GPUs of the launch and may be ended, and look again.

    Parameters
    ----------
    tell
        Is told whom it will be before anything is ended.
    """
    found = GpuCheck().run(context)
    held = [each for each in found.holders if not each.kept] if found else []
    if not held:
        return context
    who = ", ".join(str(each) for each in held)
    tell(CheckOutcome(check="gpus", verdict="warn", message=f"To free GPUs of this launch, ends {who}."))
    left = end_holders(held)
    if left:
        still = ", ".join(str(each) for each in left)
        words, fix = f"{still} did not end within {END_S:g} s.", "To end it at once: kill -KILL PID."
        tell(CheckOutcome(check="gpus", verdict="warn", message=words, fix=fix))
    probe, problem = ask_container(context.plan, context.folder, context.environment)
    return replace(context, probe=probe, probe_problem=problem)
