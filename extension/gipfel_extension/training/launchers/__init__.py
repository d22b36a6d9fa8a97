"""Launchers by their names."""

from collections.abc import Callable

from .accelerate import Accelerate
from .protocol import PROGRAM, SAME_PYTHON, Attempt, Launcher, check_attempt
from .srun import Srun
from .torchrun import Torchrun

__all__ = ["LAUNCHERS", "PROGRAM", "SAME_PYTHON", "Attempt", "Launcher", "check_attempt", "launcher_of"]

LAUNCHERS: dict[str, Callable[[], Launcher]] = {
    "torchrun": Torchrun,
    "srun": Srun,
    "accelerate": Accelerate,
}


def launcher_of(name: str) -> Launcher:
    """The launcher of a name of `LAUNCHERS`."""
    return LAUNCHERS[name]()
