"""Live view of a run in a notebook's cell, drawn as in the panel.

One thread sends new samples of the line plots. `PacedThread` draws score, heat map, time series and shares
less often, since they take longer.
"""

import atexit
import base64
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import traitlets

from gipfel_cluster.model import one_line
from gipfel_extension.saturation import Advice, advise, document_of, score_table
from gipfel_extension.saturation.advice import DebouncedAdvice
from gipfel_extension.saturation.result import points_over_time
from gipfel_extension.telemetry.figures.activity import MetricsFeed, figure_delta, saturation_figure
from gipfel_extension.telemetry.figures.heat import heat_figure
from gipfel_extension.telemetry.figures.image import small_image, stacked_images, static_image
from gipfel_extension.telemetry.figures.lines import LINES, coarsened
from gipfel_extension.telemetry.figures.run_figures import time_series_figure
from gipfel_extension.telemetry.figures.saved import saved_figure
from gipfel_extension.telemetry.figures.score_figures import score_figure, shares_figure
from gipfel_extension.telemetry.live.feed import SaturationFeed, SaturationStatus, absent_status
from gipfel_extension.telemetry.live.paced_thread import PacedThread
from gipfel_extension.telemetry.sample import Sample, SampleTable
from gipfel_extension.telemetry.store.overview import Overview
from gipfel_extension.telemetry.user_metrics import METRICS_FILE, UserMetrics, read_metrics

from .displays import SaturationPlot, describe
from .output import LiveWidget, ViewOutput, view_files, widget_bundle
from .run import KernelRun, run_of

#: Names of the plots, as the view offers them.
PLOTS = ("score", "heat", "series", "shares")

#: Time buckets of the time series, and columns of the heat map.
_BUCKETS = 400
_HEAT_BUCKETS = 120
#: Share of a core that drawing may use, since the kernel also runs the user's work.
_SHARE = 0.05
#: Longest time in seconds to wait for new samples, and shortest time between two messages to the page.
_POLL_S = 0.5
#: Maximum age in seconds of the figure with which a page that is opened later, or a saved notebook, begins.
_REDRAW_S = 60.0
_END_S = 3.0
_MIN_SPAN_S = 10.0
_NO_RUN = "Nothing is recorded here. Open the Gipfel panel, or measure with gipfel_widgets.measure()."


def document_and_plots(
    table: SampleTable, *, dark: bool, steady: DebouncedAdvice | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the score's document and all plots of a table by name; no plots if the table has no GPU.

    Parameters
    ----------
    steady
        Keeps the advice of a live view from flickering.
    """
    job = score_table(table)
    advice = advise(table, job)
    if steady is not None:
        advice = steady.displayed(0.0, table, _advice_of, advice, time.monotonic())
    document = document_of(job, advice)
    if not table.gpus:
        return document, {}
    overview = Overview.from_table(table, _BUCKETS)
    # A column of less than two sampling intervals could be empty.
    seconds = overview.bucket_ns * len(overview.time_ns) / 1e9
    columns = max(1, min(_HEAT_BUCKETS, int(seconds / (2 * max(table.interval, 1e-3)))))
    shares = points_over_time(job)
    return document, {
        "score": score_figure(document, dark=dark, title="Score and losses"),
        "heat": heat_figure(coarsened(overview, columns), dark=dark, title="GPUs over time: SM active"),
        "series": time_series_figure(overview, dark=dark),
        "shares": shares_figure(shares.time_ns, shares.points, dark=dark, simulated=table.simulated),
    }


def _advice_of(table: SampleTable) -> tuple[Advice, ...]:
    return advise(table, score_table(table))


def whole_image(activity: dict[str, Any], plots: dict[str, Any]) -> bytes:
    """Return the activity figure and every plot, one below the other, as a PNG."""
    pictures = [plots[name] for name in PLOTS if name in plots]
    return stacked_images([static_image(figure) for figure in (*pictures[:2], activity, *pictures[2:])])


def _draw_plots(view: Any) -> bool:
    """Draw score and plots of a weakly referenced `Saturation`; return False if it was garbage-collected."""
    try:
        view.set_plots(*document_and_plots(view.table, dark=view.dark, steady=view.steady))
    except ReferenceError:
        return False
    return True


class Saturation(LiveWidget):
    """Live view of a run's GPUs and hosts: line plots, score and losses, heat map, time series and shares.

    Threads read the run until :meth:`stop`, :meth:`close` or the kernel's end. In a saved notebook the cell
    shows the last plots.

    Parameters
    ----------
    window
        Length of the time axis in seconds.
    run
        A run folder, or the ``run`` of a measurement; None for the run that this kernel belongs to.
    """

    _esm, _css = view_files("saturation")

    figure = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    #: Line colours for a dark page, by metric; the figure's own colours are for a light page.
    dark_colours = traitlets.Dict().tag(sync=True)
    #: The score of the shown samples as ``gipfel score --json`` prints it; empty before it is computed.
    score = traitlets.Dict().tag(sync=True)
    #: Plotly figures by name; see `PLOTS`.
    plots = traitlets.Dict().tag(sync=True)

    def __init__(self, window: float = 600.0, run: KernelRun | Path | str | None = None) -> None:
        self._window = float(window)
        self._ended = threading.Event()
        self._asked = threading.Event()
        self._drawn: dict[str, int] = {}
        self._shown = ViewOutput()
        self._thread: threading.Thread | None = None
        self._plots: PacedThread | None = None
        #: Whether the page that requested the plots last is dark.
        self.dark = False
        #: Keeps the advice from flickering.
        self.steady = DebouncedAdvice()
        self._feed, problem = _open(run, self._window)
        status = asdict(absent_status(problem) if self._feed is None else self._feed.state())
        self._metrics = None if self._feed is None else MetricsFeed(self._feed.run / METRICS_FILE)
        super().__init__(
            figure=self._figure(),
            status=status,
            dark_colours={metric: line.dark for metric, line in LINES.items()},
        )
        self.on_msg(self._answer)
        if self._feed is not None:
            # The thread must not keep a view alive that is otherwise unused.
            self._thread = threading.Thread(
                target=_follow,
                args=(weakref.ref(self), self._feed, self._ended),
                name="gipfel-widget",
                daemon=True,
            )
            self._thread.start()
            # A bound method would keep the view alive.
            draw = partial(_draw_plots, weakref.proxy(self))
            self._plots = PacedThread("gipfel-widget-score", draw, _SHARE)
            atexit.register(_end_thread, self._ended, self._thread)

    @property
    def table(self) -> SampleTable:
        """Samples that the view shows."""
        return SampleTable(columns={}) if self._feed is None else self._feed.table()

    def stop(self) -> None:
        """Stop following the run; the cell keeps the last plots, also without a kernel."""
        if not self._ended.is_set():
            _end_thread(self._ended, self._thread)
            if self._plots is not None:
                self._plots.close(_END_S)
            if self._feed is not None:
                self.figure = self._figure()
                self.status = {
                    **asdict(self._feed.state()),
                    "state": "stale",
                    "message": "This view was stopped.",
                }
                self.set_plots(*document_and_plots(self.table, dark=False))
            if self._shown:
                self._shown.replace(self._repr_mimebundle_()[0])

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        table = self.table
        known = _logged(self._feed)
        plot = SaturationPlot(
            table, window_s=_recorded(table, self._window), metrics=known
        )._repr_mimebundle_()
        if self._ended.is_set() and self.plots:
            # A saved notebook has one image, so it shows all plots.
            activity = saturation_figure(table, window_s=_recorded(table, self._window), metrics=known)
            plot["image/png"] = base64.b64encode(
                small_image(whole_image(saved_figure(activity), self.plots))
            ).decode()
        if not self._ended.is_set():
            plot |= widget_bundle(self.model_id)
        return plot, {}

    def _ipython_display_(self) -> None:
        self._shown.show(self._repr_mimebundle_()[0])

    def __repr__(self) -> str:
        return describe(self.table)

    def _figure(self) -> dict[str, Any]:
        logged = None if self._metrics is None else self._metrics.all_metrics()
        return saturation_figure(self._draw(), window_s=self._window, metrics=logged)

    def _draw(self) -> SampleTable:
        """Return the samples to draw, and remember the newest: later ones are sent as points."""
        table = self.table
        self._drawn = {
            device.uuid: int(times[-1])
            for device in table.devices
            if len(times := table[device.uuid]["time_ns"])
        }
        return table

    def _answer(self, _: object, content: dict[str, Any], __: object) -> None:
        """Answer a page's request for the figure, the plots, or, without plotly.js, an image."""
        if content.get("type") == "figure":
            self._asked.set()
        elif content.get("type") == "plots" and self._plots is not None:
            self.dark = content.get("dark") is True
            self._plots.request()
        elif content.get("type") == "image":
            known = _logged(self._feed)
            image = static_image(saturation_figure(self.table, window_s=self._window, metrics=known))
            self.send({"type": "image"}, buffers=[image])

    def set_plots(self, document: dict[str, Any], plots: dict[str, Any]) -> None:
        """Show a score's document and its plots, by name."""
        self.score, self.plots = document, plots

    def _publish(self, samples: Sequence[Sample], status: SaturationStatus, *, redraw: bool) -> None:
        """Send new samples and metrics, or with `redraw` the whole figure; called on the thread."""
        fresh = [sample for sample in samples if sample.time_ns > self._drawn.get(sample.device, 0)]
        logged = {} if self._metrics is None else self._metrics.new_points()
        # Late samples belong between those that are already drawn, so the figure is drawn again.
        if redraw or logged is None or self._asked.is_set() or len(fresh) < len(samples):
            self._asked.clear()
            self.figure = self._figure()
        elif fresh or logged:
            for sample in fresh:
                self._drawn[sample.device] = max(sample.time_ns, self._drawn.get(sample.device, 0))
            self.send({"type": "samples", "traces": {**figure_delta(fresh), **logged}})
        self.status = asdict(status)


def _open(run: KernelRun | Path | str | None, window: float) -> tuple[SaturationFeed | None, str]:
    """Return the feed of a run, or None and the reason as a sentence."""
    run = run_of(run)
    if run is None:
        return None, _NO_RUN
    if not run.path.is_dir():
        return None, f"There is no run folder {run.path}."
    try:
        return SaturationFeed(run.telemetry, run.sockets, window_s=window), ""
    except OSError as error:
        return None, one_line(f"The run folder {run} can't be read: {error.strerror or error}.")


def _follow(view: "weakref.ref[Saturation]", feed: SaturationFeed, ended: threading.Event) -> None:
    """Poll a run until the view is stopped or garbage-collected, even if its folder changes meanwhile."""
    devices = feed.devices()
    waiting: list[Sample] = []
    published = redrawn = time.monotonic()
    try:
        while not ended.is_set():
            try:
                waiting += feed.poll(_POLL_S)
                status = feed.state()
            except OSError as error:
                problem = one_line(f"The run can't be read: {error.strerror or error}. Trying again.")
                status = absent_status(problem)
                ended.wait(_POLL_S)
            now = time.monotonic()
            shown = view()
            if shown is None:
                return
            if now - published < _POLL_S or ended.is_set():
                continue
            redraw = feed.devices() != devices or (now - redrawn >= _REDRAW_S and bool(waiting))
            if redraw:
                devices, redrawn = feed.devices(), now
            shown._publish(waiting, status, redraw=redraw)  # noqa: SLF001 - the view's own thread
            waiting, published = [], now
            del shown
    finally:
        feed.close()


def _logged(feed: SaturationFeed | None) -> UserMetrics | None:
    try:
        return None if feed is None else read_metrics(feed.run)
    except OSError:
        return None


def _recorded(table: SampleTable, window: float) -> float:
    """Return how many seconds of the window have samples: an image should have no empty time range."""
    firsts = [int(times[0]) for d in table.devices if len(times := table[d.uuid]["time_ns"])]
    if not firsts or table.last_ns is None:
        return window
    return min(window, max(_MIN_SPAN_S, (table.last_ns - min(firsts)) / 1e9))


def _end_thread(ended: threading.Event, thread: threading.Thread | None) -> None:
    ended.set()
    if thread is not None and thread is not threading.current_thread():
        thread.join(_END_S)
