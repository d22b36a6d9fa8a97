"""What is checked before a launch is queued, and how a check answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..launches.plan import LaunchPlan
from ..standpoint import Standpoint
from .holders import Holder
from .probe import ProbeAnswer


class CheckOutcome(Frozen):
    """What a check found: one sentence, and what to do; ``fail`` keeps the launch from starting.

    ``holders`` are the processes on the launch's GPUs, for whoever may end them; they are not written down.
    """

    check: str
    verdict: Literal["pass", "warn", "fail", "unknown"]
    message: str
    fix: str = ""
    holders: tuple[Holder, ...] = Field((), exclude=True)


@dataclass(frozen=True)
class Context:
    """What checks look at; ``probe`` is what the container said, None where it could not be asked."""

    plan: LaunchPlan
    folder: Path
    here: Standpoint
    environment: Mapping[str, str]
    probe: ProbeAnswer | None
    probe_problem: str = ""

    @property
    def contained(self) -> bool:
        """Return whether the ranks run in a container: an EDF without an image enters none."""
        if self.probe is not None and self.probe.engine:
            return self.probe.engine != "host"
        return self.here.inside or bool(self.plan.edf or self.environment.get("GIPFEL_EDF"))


class Check(Protocol):
    """One thing that would make a launch fail, found before it is queued."""

    name: str

    def run(self, context: Context) -> CheckOutcome | None:
        """Look; None where there is nothing to say."""
