"""How far a node's clock is from the others'."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext, Missing
from ..model import Finding, Scope
from ..quantities import Quantity
from .gpus import failed, passed

_STATUS_LIMIT_S = 5.0


class ClockOffset(Frozen):
    """Seconds to an NTP server, or what the node's own time service says of itself.

    Parameters
    ----------
    server
        Host or host:port; empty asks ``chronyc`` or ``timedatectl``.
    at_most
        Seconds, in either direction: logs and traces of ranks are laid beside each other.
    """

    type: ClassVar[str] = "clock_offset"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 20.0

    server: Line = ""
    at_most: Annotated[Quantity, Field(gt=0)] = 1.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        if not self.server:
            return [self._of_itself(context)]
        try:
            offset = context.host.clock_offset(self.server, _STATUS_LIMIT_S)
        except OSError as error:
            fix = "See whether the server can be reached from here, or leave 'server' empty."
            raise Missing(f"{self.server} does not tell the time: {error}.", fix) from error
        return [self._judged(abs(offset), f"of {self.server}")]

    def _of_itself(self, context: CheckContext) -> Finding:
        try:
            ran = context.host.run(["chronyc", "-c", "tracking"], _STATUS_LIMIT_S)
            fields = ran.output.strip().split(",")
            if ran.status == 0 and len(fields) > 4:
                return self._judged(abs(float(fields[4])), "by chrony")
        except (OSError, ValueError):
            # Not there, or of another version: the next one is asked.
            pass
        try:
            ran = context.host.run(
                ["timedatectl", "show", "-p", "NTPSynchronized", "--value"], _STATUS_LIMIT_S
            )
        except OSError as error:
            fix = "Give 'server' in the protocol."
            raise Missing("Neither chronyc nor timedatectl is here.", fix) from error
        if ran.status:
            raise Missing("timedatectl does not answer here.", "Give 'server' in the protocol.")
        if ran.output.strip() != "yes":
            return failed("The clock is not synchronized.", "Take another node, and tell the operators.")
        return passed("The clock is synchronized, says timedatectl.")

    def _judged(self, offset: float, whose: str) -> Finding:
        if offset > self.at_most:
            fix = "Take another node, and tell the operators."
            return failed(f"The clock is {offset:.3f} s off that {whose}.", fix, offset, "s")
        return passed(f"The clock is {offset:.3f} s off that {whose}.", offset, "s")
