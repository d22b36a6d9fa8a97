"""Whether a host outside can be reached."""

import time
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext
from ..model import Finding, Scope
from ..quantities import Quantity
from .gpus import failed, passed


class Internet(Frozen):
    """A TCP connection opens in time.

    Parameters
    ----------
    host, port
        Whom to reach.
    seconds
        How long to wait.
    """

    type: ClassVar[str] = "internet"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 30.0

    host: Annotated[Line, Field(min_length=1, max_length=253)]
    port: Annotated[int, Field(ge=1, le=65_535)] = 443
    seconds: Annotated[Quantity, Field(gt=0, le=600)] = 3.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        start = time.monotonic()
        try:
            context.host.connect(self.host, self.port, self.seconds)
        except (OSError, UnicodeError) as error:
            fix = "See whether nodes reach it at all, and whether a proxy must be set."
            said = getattr(error, "strerror", None) or error
            return [failed(f"{self.host}:{self.port} can't be reached: {said}.", fix)]
        took = time.monotonic() - start
        return [passed(f"{self.host}:{self.port} answers in {took:.2f} s.", took, "s")]
