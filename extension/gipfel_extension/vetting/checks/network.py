"""Checks of names, clock and outside world: DNS, clock offset, internet access."""

import time
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import Frozen, Line

from ..check import CheckContext, Missing
from ..model import Finding, Scope
from ..quantities import Quantity
from .gpus import failed, passed

_STATUS_LIMIT_S = 5.0


class Dns(Frozen):
    """Each host name resolves in time.

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
        """Return one finding for the node."""
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


class ClockOffset(Frozen):
    """Offset to an NTP server in seconds, or as the node's own time service reports it.

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
        """Return one finding for the node."""
        if not self.server:
            return [self._of_itself(context)]
        try:
            offset = context.host.clock_offset(self.server, _STATUS_LIMIT_S)
        except OSError as error:
            fix = "See whether the server can be reached from here, or leave 'server' empty."
            raise Missing(f"{self.server} does not report the time: {error}.", fix) from error
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
        return passed("The clock is synchronized, by timedatectl.")

    def _judged(self, offset: float, whose: str) -> Finding:
        if offset > self.at_most:
            fix = "Take another node, and tell the operators."
            return failed(f"The clock is {offset:.3f} s off that {whose}.", fix, offset, "s")
        return passed(f"The clock is {offset:.3f} s off that {whose}.", offset, "s")


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
        """Return one finding for the node."""
        start = time.monotonic()
        try:
            context.host.connect(self.host, self.port, self.seconds)
        except (OSError, UnicodeError) as error:
            fix = "See whether nodes reach it at all, and whether a proxy must be set."
            said = getattr(error, "strerror", None) or error
            return [failed(f"{self.host}:{self.port} can't be reached: {said}.", fix)]
        took = time.monotonic() - start
        return [passed(f"{self.host}:{self.port} answers in {took:.2f} s.", took, "s")]
