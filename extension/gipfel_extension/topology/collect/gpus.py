"""GPUs as a reader returns them, and the protocol of such readers."""

from dataclasses import dataclass
from typing import Protocol

from ..model import Gpu, Link


@dataclass(frozen=True)
class GpuPart:
    """GPUs of a node and the links between them."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    problems: tuple[str, ...] = ()


class GpuTopologyReader(Protocol):
    """Reader of the GPUs of one maker on this node; tests replace it."""

    def read(self) -> GpuPart:
        """Return the GPUs; nothing where the node has none of this maker."""
        ...
