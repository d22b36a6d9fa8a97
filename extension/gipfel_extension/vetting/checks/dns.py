"""Whether names of hosts are found, and quickly."""

import time
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext
from ..model import Finding, Scope
from ..quantities import Quantity
from .gpus import failed, passed


class Dns(Frozen):
    """Each name is found in time.

    Parameters
    ----------
    names
        What is looked up; the node's own name when empty, which torchrun and gloo need.
    at_most
        Seconds for one name.
    """

    type: ClassVar[str] = "dns"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 30.0

    names: tuple[Line, ...] = ()
    at_most: Annotated[Quantity, Field(gt=0)] = 2.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        slowest = 0.0
        for name in self.names or (context.node,):
            start = time.monotonic()
            try:
                found = context.host.resolve(name)
            except (OSError, UnicodeError) as error:
                fix = "See /etc/resolv.conf and /etc/hosts in the container."
                return [failed(f"{name} is not found: {getattr(error, 'strerror', None) or error}.", fix)]
            slowest = max(slowest, time.monotonic() - start)
            if not found:
                return [failed(f"{name} has no address.", "See /etc/hosts in the container.")]
        if slowest > self.at_most:
            fix = "A name server of this node does not answer: tell the operators."
            return [failed(f"A name took {slowest:.1f} s.", fix, slowest, "s")]
        return [passed(f"{len(self.names) or 1} name(s) found.", slowest, "s")]
