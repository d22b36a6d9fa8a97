"""One feed of samples for all open pages of this server.

`SaturationBroadcast` reads the feed on a thread. Each `Page` has a bounded queue of `FeedUpdate`, and a
`View` that selects what the page shows.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from gipfel_cluster.model import GipfelError

from ..saturation.advice import HOLD_S
from ..telemetry.figures.activity import MetricsFeed
from ..telemetry.live.feed import SaturationFeed, absent_status
from ..telemetry.sample import Device, Sample, SampleTable
from ..telemetry.user_metrics import METRICS_FILE
from .analysis import AnalysisResult, SaturationAnalysis
from .history import LIVE_WINDOW_S, DrawnFigures, LiveFigures
from .runs import CurrentRun
from .views import JobMeans, LiveView, Traces, View, event_texts

#: Longest queue of updates for a slow page; when it is full, the page gets complete figures instead.
MAX_WAITING = 30
_POLL_S = 0.5
#: Shortest time between two updates, which limits the cost of drawing.
_MIN_PAUSE_S = 0.5
#: Age from which figures are drawn again, because samples that arrive late are missing in them.
_REDRAW_S = 60.0
_OPEN_S = 20.0
_CLOSE_S = 5.0


@dataclass(frozen=True)
class FeedUpdate:
    """Samples and points that the reader got in one poll of the feed.

    ``job`` and ``user_metrics`` are new points of the job's lines and of the metrics that the user's program
    logs; ``user_metrics`` is None if a metric is new, so that the figure must be drawn again.
    """

    status: Mapping[str, Any]
    devices: tuple[Device, ...]
    samples: tuple[Sample, ...]
    job: Traces = field(default_factory=dict)
    user_metrics: Traces | None = field(default_factory=dict)


@dataclass
class Pending:
    """Updates that have not been sent to a page yet; ``lost`` is true if older ones were dropped."""

    updates: list[FeedUpdate] = field(default_factory=list)
    lost: bool = False
    analysed: AnalysisResult | None = None
    view_changed: bool = False


class Page:
    """State of one open page: its view, and a bounded queue of updates that reports when it dropped some."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._pending = Pending()
        self._ready = asyncio.Event()

    def put(self, update: FeedUpdate) -> None:
        """Add an update; if the queue is full, drop its content and report that to the page."""
        if len(self._pending.updates) == MAX_WAITING:
            self._pending.updates.clear()
            self._pending.lost = True
        self._pending.updates.append(update)
        self._ready.set()

    def set_analysed(self, analysed: AnalysisResult) -> None:
        """Set the newest score; replace one that the page has not been sent yet."""
        self._pending.analysed = analysed
        self._ready.set()

    def set_view(self, view: View) -> None:
        """Change what the page shows."""
        self.view = view
        self._pending.view_changed = True
        self._ready.set()

    async def take(self) -> Pending:
        """Wait for an update, a score or a changed view, and return all since the last call."""
        await self._ready.wait()
        self._ready.clear()
        pending, self._pending = self._pending, Pending()
        return pending


class SaturationBroadcast:
    """Thread that reads segments and live streams, and the pages that show them.

    Only the thread reads files and sockets; it passes updates to the event loop. The object must be created
    on the event loop.
    """

    def __init__(self, run: CurrentRun, log: logging.Logger, *, advice_hold_s: float = HOLD_S) -> None:
        self._run = run
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._pages: set[Page] = set()
        self._feed: SaturationFeed | None = None
        self._status: Mapping[str, Any] = asdict(absent_status("The recording is loading."))
        self._devices: tuple[Device, ...] = ()
        self._newest: dict[str, int] = {}
        self._analysed: dict[float, AnalysisResult] = {}
        self._opened = asyncio.Event()
        self._closing = threading.Event()
        self._user_metrics = MetricsFeed(run.folder.path / METRICS_FILE)
        self._thread = threading.Thread(target=self._read, name="gipfel-saturation", daemon=True)
        self._thread.start()
        self._analysis = SaturationAnalysis(
            self._table,
            run.folder.telemetry,
            self._windows,
            partial(self._call_on_loop, self._store_score),
            log,
            hold_s=advice_hold_s,
        )

    @property
    def status(self) -> Mapping[str, Any]:
        """State of the samples, such as live or stale, and the time of the newest one."""
        return self._status

    async def devices(self) -> tuple[Device, ...]:
        """Return the devices that are shown."""
        await self._open()
        return self._devices

    def simulated_since(self, time_ns: int) -> bool:
        """Return whether a simulated sample newer than this arrived."""
        return any(d.simulated and self._newest.get(d.uuid, 0) > time_ns for d in self._devices)

    async def draw(self, view: View, only: tuple[str, ...] = ()) -> DrawnFigures:
        """Return the figures of a view, up to now; only those named in `only` if it is given.

        Raises
        ------
        GipfelError
            The run folder could not be read in time.
        """
        picture = LiveFigures(await self._open(), self._run.folder.path)
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
        self._analysis.request()
        try:
            live, devices, drawn_at = LiveView(page.view), self._devices, time.monotonic()
            yield await self._figures(live, page.view)
            status, devices = self._status, self._devices
            if page.view.window in self._analysed:
                yield _score(self._analysed[page.view.window])
            while True:
                pending = await page.take()
                if pending.view_changed:
                    only = _missing(live.view, page.view)
                    live = live if only else LiveView(page.view)
                    yield await self._figures(live, page.view, only)
                    self._analysis.request()
                if pending.analysed and pending.analysed.window == page.view.window:
                    yield _score(pending.analysed)
                lost = pending.lost
                for update in pending.updates:
                    stale = time.monotonic() - drawn_at > _REDRAW_S and bool(update.samples)
                    if lost or stale or update.user_metrics is None or update.devices != devices:
                        live, devices, drawn_at = LiveView(page.view), update.devices, time.monotonic()
                        yield await self._figures(live, page.view)
                    elif new_points := live.new_points(update.samples, update.job, update.user_metrics):
                        yield {"type": "samples", **new_points, "status": update.status}
                    elif update.status != status:
                        yield {"type": "status", "status": update.status}
                    status, lost = update.status, False
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
        live.record_drawn(drawn.figures, drawn.newest)
        gpus = [device.to_json() for device in drawn.devices if device.kind == "gpu"]
        content = {"figures": drawn.figures, "complete": not only, "gpus": gpus}
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
        return LiveFigures(self._feed, self._run.folder.path).table(window_s)

    def _windows(self) -> set[float]:
        if self._feed is None:
            return set()
        return {page.view.window for page in tuple(self._pages)}

    def _read(self) -> None:
        """Poll the feed until the server ends; runs on the thread."""
        feed = SaturationFeed(self._run.folder.telemetry, self._run.sockets, window_s=LIVE_WINDOW_S)
        self._feed = feed
        self._user_metrics.all_metrics()
        means = JobMeans()
        waiting: list[Sample] = []
        published = 0.0
        failing = False
        while not self._closing.is_set():
            try:
                waiting += feed.poll(_POLL_S)
                if waiting and time.monotonic() - published < _MIN_PAUSE_S:
                    continue
                self._publish_samples(feed, waiting, means)
                waiting, published, failing = [], time.monotonic(), False
            except Exception:  # noqa: BLE001 - if the thread ended, no page would be updated
                if not failing:
                    self._log.exception("The samples of this run can't be read. Gipfel retries.")
                failing = True
                self._closing.wait(_POLL_S)
        feed.close()

    def _publish_samples(self, feed: SaturationFeed, samples: list[Sample], means: JobMeans) -> None:
        status = asdict(feed.state())
        unknown = {sample.device for sample in samples} - {device.uuid for device in self._devices}
        before = [self._status.get(name) for name in ("source", "gpus", "simulated")]
        changed = before != [status[name] for name in ("source", "gpus", "simulated")]
        devices = feed.table(1.0).devices if unknown or changed else self._devices
        job = means.add(samples, devices, float(status["interval"]) or 1.0)
        logged = self._user_metrics.new_points()
        if logged is None:
            self._user_metrics.all_metrics()
        update = FeedUpdate(status, devices, tuple(samples), job, None if logged is None else dict(logged))
        self._call_on_loop(self._publish, update)

    def _call_on_loop(self, call: Any, argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, argument)
        except RuntimeError:
            # The event loop has ended, and the server with it.
            self._closing.set()

    def _publish(self, update: FeedUpdate) -> None:
        """Pass an update to every page; runs on the event loop."""
        self._status, self._devices = update.status, update.devices
        self._newest.update({sample.device: sample.time_ns for sample in update.samples})
        self._opened.set()
        for page in self._pages:
            page.put(update)

    def _store_score(self, analysed: AnalysisResult) -> None:
        kept = self._windows()
        self._analysed = {window: each for window, each in self._analysed.items() if window in kept}
        self._analysed[analysed.window] = analysed
        for page in self._pages:
            page.set_analysed(analysed)


def _score(analysed: AnalysisResult) -> dict[str, Any]:
    return {"type": "score", "document": analysed.document, "events": event_texts(analysed.events)}


def _missing(before: View, now: View) -> tuple[str, ...]:
    """Return the figures that a page lacks when only its GPUs, gauges or heat map changed; empty for all."""
    if (before.window, before.dark) != (now.window, now.dark):
        return ()
    names = [f"gpu/{uuid}" for uuid in now.gpus if uuid not in before.gpus]
    names += [f"gauge/{metric}" for metric in now.gauges if metric not in before.gauges]
    names += ["heat"] if now.metric != before.metric else []
    # If GPUs were only removed, no figure is needed; an unknown name requests an empty set of figures.
    return tuple(names) or ("none",)
