"""Hooks that only a site can have: what each of them would need, said by name."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..engines.protocol import ContainerRequest
from .node import Node
from .protocol import Hooked, Surroundings


@dataclass(frozen=True)
class SiteHook:
    """A hook that nothing is done for; its reason ends a sentence that begins with its name."""

    name: str
    reason: str

    def apply(
        self,
        request: ContainerRequest,
        settings: Mapping[str, str],  # noqa: ARG002
        where: Surroundings,
        node: Node,  # noqa: ARG002
    ) -> Hooked:
        """Say whose business it is."""
        note = f"com.hooks.{self.name} is the site's business in the engine {where.engine}: {self.reason}."
        return Hooked(request=request, notes=(note,))


SITE_HOOKS = (
    SiteHook(
        "cxi", "a host's libfabric can't be bound in general, so the image must bring one for Slingshot"
    ),
    SiteHook("netstack", "network stacks are folders of the site's, so the image must bring its own"),
    SiteHook(
        "nvidia_cuda_mps",
        "the MPS control daemon has to run before the container does and decides who shares a GPU",
    ),
    SiteHook(
        "slurm", "Slurm's programs must match the site's daemons; gipfel submit needs none in the image"
    ),
    SiteHook("parallax_imagestore_create", "the image store is Sarus's"),
)
