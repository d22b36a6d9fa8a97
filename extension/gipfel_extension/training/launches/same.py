"""Whether the very same launch runs already: a cell that is run again shows it and starts no second one."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gipfel_cluster.model import GipfelError

from ..spec import LaunchSpec
from .folder import known_folders
from .plan import LaunchPlan

if TYPE_CHECKING:
    from ..launch import Launch


def running_same(spec: LaunchSpec, environment: Mapping[str, str], directory: Path) -> "Launch | None":
    """The newest launch of the same spec from the same folder that waits or runs; None where there is none.

    One whose supervisor has been silent for long counts as gone.
    """
    from ..launch import Launch  # noqa: PLC0415 - it stands above

    started = str(_resolved(spec.directory or ".", directory))
    for folder in reversed(known_folders(environment, everywhere=True)):
        with contextlib.suppress(GipfelError, OSError, ValueError):
            launch = Launch(folder)
            # Whoever looks before it starts may be gone; what is queued or runs goes on by itself.
            if launch.state.phase in {"preflight", "ended"} or launch.silent:
                continue
            plan = LaunchPlan.load(folder)
            if plan.directory == started and _asked(plan.spec, spec.where) == _asked(spec, spec.where):
                return launch
    return None


def _asked(spec: LaunchSpec, where: str) -> LaunchSpec:
    """A spec as it was asked: a plan's says where it went, and looking first changes nothing of what runs."""
    return spec.model_copy(update={"where": where, "preflight": True, "resume": False, "python": ""})


def _resolved(path: str, directory: Path) -> Path:
    return (directory / Path(path).expanduser()).resolve()
