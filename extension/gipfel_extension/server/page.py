"""What waits to be sent to one open page."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..telemetry.sample import Device, Sample

#: Events that wait for a slow page before it gets a whole figure instead.
MOST_WAITING = 30


@dataclass(frozen=True)
class Event:
    """What one turn of the reader found."""

    status: Mapping[str, Any]
    devices: tuple[Device, ...]
    samples: tuple[Sample, ...]


class Page:
    """A bounded queue of events: whole, or declared lost."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._ready = asyncio.Event()
        self._lost = False

    def put(self, event: Event) -> None:
        """Add an event; where too many wait, they are dropped and the page is told so."""
        if len(self._events) == MOST_WAITING:
            self._events.clear()
            self._lost = True
        self._events.append(event)
        self._ready.set()

    async def take(self) -> tuple[Event, bool]:
        """Wait for the oldest event; whether older ones were dropped before it."""
        await self._ready.wait()
        event, lost = self._events.pop(0), self._lost
        self._lost = False
        if not self._events:
            self._ready.clear()
        return event, lost
