"""What waits to be sent to one open page."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..telemetry.sample import Device, Sample
from .analysis import Analysed
from .live_view import Traces
from .views import View

#: Events that wait for a slow page before it gets a whole figure instead.
MOST_WAITING = 30


@dataclass(frozen=True)
class Event:
    """What one turn of the reader found.

    ``job`` and ``own`` are new points of the job's lines and of the user's own metrics; ``own`` is None where
    a metric is new, and a figure is due.
    """

    status: Mapping[str, Any]
    devices: tuple[Device, ...]
    samples: tuple[Sample, ...]
    job: Traces = field(default_factory=dict)
    own: Traces | None = field(default_factory=dict)


class Page:
    """A bounded queue of events: whole, or declared lost; and what the page looks at."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._events: list[Event] = []
        self._ready = asyncio.Event()
        self._lost = False
        self._analysed: Analysed | None = None
        self._looked = False

    def put(self, event: Event) -> None:
        """Add an event; where too many wait, they are dropped and the page is told so."""
        if len(self._events) == MOST_WAITING:
            self._events.clear()
            self._lost = True
        self._events.append(event)
        self._ready.set()

    def tell(self, analysed: Analysed) -> None:
        """Give it a score; one that it has not taken yet is replaced."""
        self._analysed = analysed
        self._ready.set()

    def look(self, view: View) -> None:
        """Look at something else from now on."""
        self.view = view
        self._looked = True
        self._ready.set()

    async def wait(self) -> None:
        """Until there is anything to take."""
        await self._ready.wait()

    def take(self) -> tuple[Event | None, bool]:
        """The oldest event, None where there is none; whether older ones were dropped before it."""
        event = self._events.pop(0) if self._events else None
        lost, self._lost = self._lost, False
        self._settle()
        return event, lost

    def take_analysed(self) -> Analysed | None:
        """The newest score that it was not sent yet."""
        analysed, self._analysed = self._analysed, None
        self._settle()
        return analysed

    def take_look(self) -> bool:
        """Whether it looks at something else since the last call."""
        looked, self._looked = self._looked, False
        self._settle()
        return looked

    def _settle(self) -> None:
        if not self._events and self._analysed is None and not self._looked:
            self._ready.clear()
