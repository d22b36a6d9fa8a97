"""Work that agents were given: tickets that are answered, or lost with their node."""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gipfel_cluster.model import Frozen

from .messages import CheckDone, PortFound, RankDied, RanksDone, Stop
from .peers import Peers

#: Seconds that an agent may be late with what its own limits should have ended.
_LATE_S = 20.0
_TICK_S = 0.2


class RunEnded(Exception):  # noqa: N818 - no mistake
    """The run ends before its checks have: its time is up, or somebody asked for it."""


@dataclass
class Ticket:
    """One thing that an agent does.

    Parameters
    ----------
    answer
        What it said; None until then, and for good where the node was lost.
    died
        Whether one of its ranks has died while others run.
    """

    number: int
    node: str
    due: float
    answer: Frozen | None = None
    done: bool = False
    died: bool = False


@dataclass
class Desk:
    """Gives work to agents and takes the answers.

    Parameters
    ----------
    ended
        Why the run must end now; empty as long as it need not.
    tick
        Called a few times a second while something is waited for.
    due
        When the run must end, by `clock`; infinite where it has no limit.
    """

    peers: Peers
    ended: Callable[[], str]
    tick: Callable[[], None] = lambda: None
    due: float = math.inf
    clock: Callable[[], float] = time.monotonic
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _open: dict[int, Ticket] = field(default_factory=dict)

    def give(self, node: str, make: Callable[[int], Frozen], limit_s: float) -> Ticket:
        """Have a node do something that takes at most so many seconds."""
        ticket = Ticket(next(self._numbers), node, time.monotonic() + limit_s + _LATE_S)
        if node in self.peers.present:
            self._open[ticket.number] = ticket
            self.peers.send(node, make(ticket.number))
        else:
            ticket.done = True
        return ticket

    def pump(self) -> None:
        """Listen for a moment.

        Raises
        ------
        RunEnded
            With the reason.
        """
        for node, message in self.peers.listen(_TICK_S):
            self._take(node, message)
        now = time.monotonic()
        for ticket in list(self._open.values()):
            if ticket.node not in self.peers.present:
                self._close(ticket)
            elif now > ticket.due:
                self.peers.lose(ticket.node, "Its agent gave no result within the check's time limit.")
                self._close(ticket)
        self.tick()
        reason = self.ended()
        if reason:
            raise RunEnded(reason)

    def wait(self, tickets: Sequence[Ticket]) -> None:
        """Listen until all of them are done."""
        while not all(each.done for each in tickets):
            self.pump()

    def give_up(self, ticket: Ticket) -> None:
        """End what a node does and wait for it no longer."""
        self.peers.send(ticket.node, Stop(task=ticket.number))
        self._close(ticket)

    def _take(self, node: str, message: Frozen) -> None:
        if not isinstance(message, CheckDone | PortFound | RanksDone | RankDied):
            return
        ticket = self._open.get(message.task)
        if ticket is None or ticket.node != node:
            return
        if isinstance(message, RankDied):
            ticket.died = True
            return
        ticket.answer = message
        self._close(ticket)

    def _close(self, ticket: Ticket) -> None:
        ticket.done = True
        self._open.pop(ticket.number, None)
