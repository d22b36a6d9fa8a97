"""One feed of samples for everybody who looks at this server."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from gipfel_cluster.model import GipfelError

from ..telemetry.figures import figure_delta, saturation_figure
from ..telemetry.sample import Device, Sample, SampleTable
from ..telemetry.stream import SaturationFeed
from .page import Event, Page
from .run import CurrentRun

#: The longest time span that a page may ask for.
LONGEST_WINDOW_S = 3600.0
_POLL_S = 0.5
#: A page that is drawn more often than this costs more than it tells.
_SHORTEST_PAUSE_S = 0.5
_OPEN_S = 20.0
_CLOSE_S = 5.0


@dataclass(frozen=True)
class Figure:
    """A plotly figure, and the time of the newest sample in it by device."""

    content: dict[str, Any]
    newest: Mapping[str, int]


def absent(message: str) -> dict[str, Any]:
    """The status where there is nothing to read, with the reason."""
    status = {
        "state": "absent",
        "source": "",
        "simulated": False,
        "gpus": 0,
        "interval": 1.0,
        "last_ns": None,
    }
    return {**status, "message": message}


class SaturationBroadcast:
    """A thread that reads segments and live streams, and the pages that it is read for.

    The event loop reads no file and no socket: it takes what the thread hands over. Made on the event loop.
    """

    def __init__(self, run: CurrentRun, log: logging.Logger) -> None:
        self._run = run
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._pages: set[Page] = set()
        self._feed: SaturationFeed | None = None
        self._status: Mapping[str, Any] = absent("The recording is being read.")
        self._devices: tuple[Device, ...] = ()
        self._newest: dict[str, int] = {}
        self._opened = asyncio.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read, name="gipfel-saturation", daemon=True)
        self._thread.start()

    @property
    def status(self) -> Mapping[str, Any]:
        """How live the samples are."""
        return self._status

    async def devices(self) -> tuple[Device, ...]:
        """The devices that are shown."""
        await self._open()
        return self._devices

    def simulated_since(self, time_ns: int) -> bool:
        """Whether a simulated sample newer than this came in."""
        return any(d.simulated and self._newest.get(d.uuid, 0) > time_ns for d in self._devices)

    async def figure(self, window_s: float, *, dark: bool) -> Figure:
        """The figure of the last `window_s` seconds.

        Raises
        ------
        GipfelError
            The run folder could not be read in time.
        """
        feed = await self._open()
        return await asyncio.to_thread(_draw, feed, window_s, dark=dark)

    async def table(self, window_s: float) -> SampleTable:
        """The samples of the last `window_s` seconds before the newest.

        Raises
        ------
        GipfelError
            The run folder could not be read in time.
        """
        feed = await self._open()
        return await asyncio.to_thread(feed.table, window_s)

    async def messages(self, window_s: float, *, dark: bool) -> AsyncIterator[dict[str, Any]]:
        """What one page is sent: a figure, then new points; a figure again when devices change."""
        page = Page()
        self._pages.add(page)
        try:
            figure = await self.figure(window_s, dark=dark)
            status, devices, newest = self._status, self._devices, dict(figure.newest)
            yield {"type": "figure", "figure": figure.content, "status": status}
            while True:
                event, lost = await page.take()
                fresh = [s for s in event.samples if s.time_ns > newest.get(s.device, 0)]
                newest.update({s.device: s.time_ns for s in fresh})
                if lost or event.devices != devices:
                    figure = await self.figure(window_s, dark=dark)
                    devices, newest = event.devices, dict(figure.newest)
                    yield {"type": "figure", "figure": figure.content, "status": event.status}
                elif fresh:
                    yield {"type": "samples", "traces": figure_delta(fresh), "status": event.status}
                elif event.status != status:
                    yield {"type": "status", "status": event.status}
                status = event.status
        finally:
            self._pages.discard(page)

    async def close(self) -> None:
        """End the thread."""
        self._closing.set()
        await asyncio.to_thread(self._thread.join, _CLOSE_S)

    async def _open(self) -> SaturationFeed:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._opened.wait(), _OPEN_S)
        if self._feed is None:
            raise GipfelError(
                f"The run folder {self._run.folder.path} could not be read within {_OPEN_S:g} s.",
                "Is its file system slow or full? Try again in a minute.",
            )
        return self._feed

    def _read(self) -> None:
        """Poll the feed until the server ends; on the thread."""
        feed = SaturationFeed(self._run.folder.telemetry, self._run.sockets, window_s=LONGEST_WINDOW_S)
        self._feed = feed
        waiting: list[Sample] = []
        published = 0.0
        failing = False
        while not self._closing.is_set():
            try:
                waiting += feed.poll(_POLL_S)
                if waiting and time.monotonic() - published < _SHORTEST_PAUSE_S:
                    continue
                self._hand_over(feed, waiting)
                waiting, published, failing = [], time.monotonic(), False
            except Exception:  # noqa: BLE001 - a thread that ended would leave every page standing still
                if not failing:
                    self._log.exception("The samples of this run can't be read; trying again.")
                failing = True
                self._closing.wait(_POLL_S)
        feed.close()

    def _hand_over(self, feed: SaturationFeed, samples: list[Sample]) -> None:
        status = dict(feed.state())
        unknown = {sample.device for sample in samples} - {device.uuid for device in self._devices}
        seen = [self._status.get(name) for name in ("source", "gpus", "simulated")]
        changed = seen != [status[name] for name in ("source", "gpus", "simulated")]
        devices = feed.table(1.0).devices if unknown or changed else self._devices
        event = Event(status, devices, tuple(samples))
        try:
            self._loop.call_soon_threadsafe(self._publish, event)
        except RuntimeError:
            # The event loop has ended, and the server with it.
            self._closing.set()

    def _publish(self, event: Event) -> None:
        """Hand an event to every page; on the event loop."""
        self._status, self._devices = event.status, event.devices
        self._newest.update({sample.device: sample.time_ns for sample in event.samples})
        self._opened.set()
        for page in self._pages:
            page.put(event)


def _draw(feed: SaturationFeed, window_s: float, *, dark: bool) -> Figure:
    table = feed.table(window_s)
    times = {device.uuid: table.of(device.uuid)["time_ns"] for device in table.devices}
    newest = {device: int(column[-1]) for device, column in times.items() if len(column)}
    return Figure(saturation_figure(table, window_s=window_s, dark=dark), newest)
