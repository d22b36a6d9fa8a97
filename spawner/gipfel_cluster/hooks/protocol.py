"""What every hook is given and gives back."""

from collections.abc import Mapping
from typing import Protocol

from ..engines.protocol import ContainerRequest
from ..model import Frozen
from ..runtime.model import Runtime
from .node import Node


class Hooked(Frozen):
    """A request with what the hooks added, and what a person should know, one sentence each."""

    request: ContainerRequest
    notes: tuple[str, ...] = ()


class Surroundings(Frozen):
    """Where a container is to run."""

    engine: str
    #: None where nothing of ours is brought into the container.
    runtime: Runtime | None


class Hook(Protocol):
    """One annotation family ``com.hooks.<name>.*``, which is only asked where it is enabled."""

    @property
    def name(self) -> str:
        """The family's name."""

    def apply(
        self, request: ContainerRequest, settings: Mapping[str, str], where: Surroundings, node: Node
    ) -> Hooked:
        """Change a request as the annotations ask; what can't be had is a note, never an error.

        Parameters
        ----------
        settings
            The family's annotations without ``com.hooks.<name>.``.
        """
