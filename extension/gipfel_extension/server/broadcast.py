"""One feed of samples for all pages of this server.

`SaturationBroadcast` reads it on a thread; each `Page` has a bounded queue of `Event` and a `View` of what
it shows.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gipfel_cluster.model import GipfelError

from ..saturation.advice.steady import HOLD_S
from ..telemetry.figures.metric_rows import MetricsFeed
from ..telemetry.live.feed import SaturationFeed
from ..telemetry.sample import Device, Sample, SampleTable
from ..telemetry.user_metrics import METRICS_FILE
from .analysis import Analysed, SaturationAnalysis
from .history import LIVE_WINDOW_S, Drawn, Picture
from .runs import CurrentRun
from .views import JobMeans, LiveView, Traces, View, event_texts

#: Events that wait for a slow page before it gets a whole figure instead.
MOST_WAITING = 30
_POLL_S = 0.5
#: A page that is drawn more often costs more than it shows.
_SHORTEST_PAUSE_S = 0.5
#: A figure at most this old is kept below new points: late samples are in the next.
_REDRAW_S = 60.0
_OPEN_S = 20.0
_CLOSE_S = 5.0


@dataclass(frozen=True)
class Event:
    """Result of one turn of the reader.

    ``job`` and ``own`` are new points of the job's lines and of the user's own metrics; ``own`` is None where
    a metric is new, and a figure is due.
    """

    status: Mapping[str, Any]
    devices: tuple[Device, ...]
    samples: tuple[Sample, ...]
    job: Traces = field(default_factory=dict)
    own: Traces | None = field(default_factory=dict)


class Page:
    """A bounded queue of events, complete or declared lost; and the page's view."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._events: list[Event] = []
        self._ready = asyncio.Event()
        self._lost = False
        self._analysed: Analysed | None = None
        self._view_changed = False

    def put(self, event: Event) -> None:
        """Add an event; where too many wait, they are dropped and the page is told so."""
        if len(self._events) == MOST_WAITING:
            self._events.clear()
            self._lost = True
        self._events.append(event)
        self._ready.set()

    def set_analysed(self, analysed: Analysed) -> None:
        """Give it a score; one that it has not taken yet is replaced."""
        self._analysed = analysed
        self._ready.set()

    def set_view(self, view: View) -> None:
        """Look at something else from now on."""
        self.view = view
        self._view_changed = True
        self._ready.set()

    async def wait(self) -> None:
        """Wait until there is anything to take."""
        await self._ready.wait()

    def pop(self) -> tuple[Event | None, bool]:
        """Return the oldest event, None where there is none, and whether older ones were dropped."""
        event = self._events.pop(0) if self._events else None
        lost, self._lost = self._lost, False
        self._settle()
        return event, lost

    def pop_analysed(self) -> Analysed | None:
        """Return the newest score that the page was not sent yet."""
        analysed, self._analysed = self._analysed, None
        self._settle()
        return analysed

    def pop_view_changed(self) -> bool:
        """Return whether the page's view has changed since the last call."""
        changed, self._view_changed = self._view_changed, False
        self._settle()
        return changed

    def _settle(self) -> None:
        if not self._events and self._analysed is None and not self._view_changed:
            self._ready.clear()


def absent(message: str) -> dict[str, Any]:
    """Return the status where there is nothing to read, with the reason."""
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

    def __init__(self, run: CurrentRun, log: logging.Logger, *, advice_hold_s: float = HOLD_S) -> None:
        self._run = run
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._pages: set[Page] = set()
        self._feed: SaturationFeed | None = None
        self._status: Mapping[str, Any] = absent("The recording is being read.")
        self._devices: tuple[Device, ...] = ()
        self._newest: dict[str, int] = {}
        self._analysed: dict[float, Analysed] = {}
        self._opened = asyncio.Event()
        self._closing = threading.Event()
        self._own = MetricsFeed(run.folder.path / METRICS_FILE)
        self._thread = threading.Thread(target=self._read, name="gipfel-saturation", daemon=True)
        self._thread.start()
        self._analysis = SaturationAnalysis(
            self._table, run.folder.telemetry, self._windows, self._publish_score, log, hold_s=advice_hold_s
        )

    @property
    def status(self) -> Mapping[str, Any]:
        """State of the samples: live, or how old."""
        return self._status

    async def devices(self) -> tuple[Device, ...]:
        """Return the devices that are shown."""
        await self._open()
        return self._devices

    def simulated_since(self, time_ns: int) -> bool:
        """Return whether a simulated sample newer than this arrived."""
        return any(d.simulated and self._newest.get(d.uuid, 0) > time_ns for d in self._devices)

    async def draw(self, view: View, only: tuple[str, ...] = ()) -> Drawn:
        """Return the figures of the last seconds of a view; those named in `only`, where given.

        Raises
        ------
        GipfelError
            The run folder could not be read in time.
        """
        picture = Picture(await self._open(), self._run.folder.path)
        events = max((each.events for each in self._analysed.values()), key=len, default=())
        return await asyncio.to_thread(picture.draw, view, events, only)

    async def table(self, window_s: float) -> SampleTable:
        """Return the samples of the last `window_s` seconds before the newest.

        Raises
        ------
        GipfelError
            The run folder could not be read in time.
        """
        feed = await self._open()
        return await asyncio.to_thread(feed.table, window_s)

    async def messages(self, page: Page) -> AsyncIterator[dict[str, Any]]:
        """Yield a page's messages: figures, then new points and scores; figures again for new devices."""
        self._pages.add(page)
        self._analysis.ask()
        try:
            live, devices, drawn_at = LiveView(page.view), self._devices, time.monotonic()
            yield await self._figures(live, page.view)
            status, devices = self._status, self._devices
            if page.view.window in self._analysed:
                yield _score(self._analysed[page.view.window])
            while True:
                await page.wait()
                if page.pop_view_changed():
                    only = _missing(live.view, page.view)
                    live = live if only else LiveView(page.view)
                    yield await self._figures(live, page.view, only)
                    self._analysis.ask()
                if (analysed := page.pop_analysed()) and analysed.window == page.view.window:
                    yield _score(analysed)
                event, lost = page.pop()
                if event is None:
                    continue
                stale = time.monotonic() - drawn_at > _REDRAW_S and bool(event.samples)
                if lost or stale or event.own is None or event.devices != devices:
                    live, devices, drawn_at = LiveView(page.view), event.devices, time.monotonic()
                    yield await self._figures(live, page.view)
                elif news := live.news(event.samples, event.job, event.own):
                    yield {"type": "samples", **news, "status": event.status}
                elif event.status != status:
                    yield {"type": "status", "status": event.status}
                status = event.status
        finally:
            self._pages.discard(page)

    async def close(self) -> None:
        """End the threads."""
        self._closing.set()
        await asyncio.to_thread(self._analysis.close, _CLOSE_S)
        await asyncio.to_thread(self._thread.join, _CLOSE_S)

    async def _figures(self, live: LiveView, view: View, only: tuple[str, ...] = ()) -> dict[str, Any]:
        drawn = await self.draw(view, only)
        live.view = view
        live.drawn(drawn.figures, drawn.newest)
        gpus = [device.to_json() for device in drawn.devices if device.kind == "gpu"]
        content = {"figures": drawn.figures, "whole": not only, "gpus": gpus}
        return {"type": "figures", **content, "status": self._status}

    async def _open(self) -> SaturationFeed:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPEN_S):
                await self._opened.wait()
        if self._feed is None:
            raise GipfelError(
                f"The run folder {self._run.folder.path} could not be read within {_OPEN_S:g} s.",
                "Is its file system slow or full? Try again in a minute.",
            )
        return self._feed

    def _table(self, window_s: float) -> SampleTable:
        if self._feed is None:
            return SampleTable(columns={})
        return Picture(self._feed, self._run.folder.path).table(window_s)

    def _windows(self) -> set[float]:
        if self._feed is None:
            return set()
        return {page.view.window for page in tuple(self._pages)}

    def _read(self) -> None:
        """Poll the feed until the server ends; on the thread."""
        feed = SaturationFeed(self._run.folder.telemetry, self._run.sockets, window_s=LIVE_WINDOW_S)
        self._feed = feed
        self._own.drawn()
        means = JobMeans()
        waiting: list[Sample] = []
        published = 0.0
        failing = False
        while not self._closing.is_set():
            try:
                waiting += feed.poll(_POLL_S)
                if waiting and time.monotonic() - published < _SHORTEST_PAUSE_S:
                    continue
                self._hand_over(feed, waiting, means)
                waiting, published, failing = [], time.monotonic(), False
            except Exception:  # noqa: BLE001 - a thread that ended would leave every page standing still
                if not failing:
                    self._log.exception("The samples of this run can't be read; trying again.")
                failing = True
                self._closing.wait(_POLL_S)
        feed.close()

    def _hand_over(self, feed: SaturationFeed, samples: list[Sample], means: JobMeans) -> None:
        status: dict[str, Any] = dict(feed.state())
        unknown = {sample.device for sample in samples} - {device.uuid for device in self._devices}
        seen = [self._status.get(name) for name in ("source", "gpus", "simulated")]
        changed = seen != [status[name] for name in ("source", "gpus", "simulated")]
        devices = feed.table(1.0).devices if unknown or changed else self._devices
        job = means.add(samples, devices, float(status["interval"]) or 1.0)
        own = self._own.new()
        if own is None:
            self._own.drawn()
        event = Event(status, devices, tuple(samples), job, None if own is None else dict(own))
        self._on_loop(self._publish, event)

    def _publish_score(self, analysed: Analysed) -> None:
        self._on_loop(self._keep_score, analysed)

    def _on_loop(self, call: Any, argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, argument)
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

    def _keep_score(self, analysed: Analysed) -> None:
        kept = self._windows()
        self._analysed = {window: each for window, each in self._analysed.items() if window in kept}
        self._analysed[analysed.window] = analysed
        for page in self._pages:
            page.set_analysed(analysed)


def _score(analysed: Analysed) -> dict[str, Any]:
    return {"type": "score", "document": analysed.document, "events": event_texts(analysed.events)}


def _missing(before: View, now: View) -> tuple[str, ...]:
    """Return the figures that a page lacks when only its GPUs or heat map changed; empty for all."""
    if (before.window, before.dark) != (now.window, now.dark):
        return ()
    names = [f"gpu/{uuid}" for uuid in now.gpus if uuid not in before.gpus]
    names += ["heat"] if now.metric != before.metric else []
    # Fewer GPUs need no figure, but the answer that there is none.
    return tuple(names) or ("none",)
