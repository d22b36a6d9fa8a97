"""What checks of storage share: a folder, a file's size, how often; the median of what was measured."""

import statistics
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext
from ..model import Finding, Scope, Verdict
from ..quantities import Quantity, shown
from .files import folder_of

#: What to do where the time limit came first.
SLOW = "Storage is slow now: wait, or give the check more time."


class StorageCheck(Frozen):
    """Bytes per second of a folder.

    Parameters
    ----------
    folder
        Absolute, or beginning with ``$VARIABLE``.
    bytes
        Of a file.
    samples
        How often it is measured; once more at the beginning, which is dropped.
    """

    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 60.0
    #: What the folder does so fast, as a verb.
    verb: ClassVar[str]

    folder: Line
    bytes: Annotated[Quantity, Field(ge=4096, le=2**36)] = 64.0 * 2**20
    samples: Annotated[int, Field(ge=5, le=100)] = 5

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        folder = folder_of(self.folder, context)
        measured = self.measure(folder, int(self.bytes), time.monotonic() + context.time_limit_s * 0.9)
        if isinstance(measured, Finding):
            return [measured]
        rates = tuple(measured[1:])
        figure = statistics.median(rates)
        reason = f"{folder} {self.verb} {shown(figure, 'B/s')}."
        return [Finding(verdict=Verdict.PASS, reason=reason, figure=figure, unit="B/s", samples=rates)]

    @abstractmethod
    def measure(self, folder: Path, size: int, deadline: float) -> list[float] | Finding:
        """Bytes per second, one more than `samples`; or what is wrong, such as the deadline (monotonic s)."""
