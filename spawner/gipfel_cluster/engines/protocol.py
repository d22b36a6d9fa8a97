"""The contract of an engine: `ContainerRequest` in, `Invocation` out."""

from collections.abc import Sequence
from typing import Protocol

from pydantic import Field

from ..edf.model import Edf, Mount
from ..model import Frozen


class ContainerRequest(Frozen):
    """A command to be run in the container of an EDF."""

    edf: Edf
    command: tuple[str, ...]
    #: On top of the EDF's own: runtime, run folder, working directory, sockets.
    mounts: tuple[Mount, ...] = ()
    #: The host's variables that the container is offered; see `gipfel_cluster.environment.compose`.
    environment: dict[str, str] = Field(default_factory=dict)
    #: Names, or families ending in ``*``, that neither image nor EDF may change.
    binding: tuple[str, ...] = ()
    #: Wins over the EDF's.
    workdir: str = ""
    #: A private directory (0700) on local disk with a short path; the caller makes and removes it.
    scratch: str
    #: For engines that start by srun: its options about tasks and nodes.
    step: tuple[str, ...] = ()
    #: Only to be shown, perhaps on another machine than the one that would run it: what is missing here is a
    #: note then, and nothing is made on disk.
    only_shown: bool = False


class Invocation(Frozen):
    """A process to execute; ``environment`` is its whole environment, not an addition."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    #: What this engine can't honour of the EDF, one sentence each.
    notes: tuple[str, ...] = ()


class Engine(Protocol):
    """Turns requests into processes."""

    name: str

    def missing(self) -> str | None:
        """Return in one line why this machine can't run it, or None."""

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:
        """Turn a request into what to execute.

        Parameters
        ----------
        python
            A Python of the host, 3.11 or newer, as a path or as the first words of an argv.

        Raises
        ------
        GipfelError
            The engine can't run this EDF on this machine.
        """
