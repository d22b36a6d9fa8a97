"""The plots beside a view's lines: score, heat map, time series and shares, made at a pace of their own."""

import threading
import time
from collections.abc import Callable
from typing import Any

from gipfel_extension.saturation import Advice, advise, document_of, score_table
from gipfel_extension.saturation.advice.steady import SteadyAdvice
from gipfel_extension.saturation.shares import shares_of
from gipfel_extension.telemetry.figures.gpu_lines import time_series_figure
from gipfel_extension.telemetry.figures.heat import heat_figure
from gipfel_extension.telemetry.figures.image import stacked_images, static_image
from gipfel_extension.telemetry.figures.lines import coarser
from gipfel_extension.telemetry.figures.score_bar import score_figure, shares_figure
from gipfel_extension.telemetry.overview.read import Overview
from gipfel_extension.telemetry.sample import SampleTable

#: Names of the plots, as the view offers them.
PLOTS = ("score", "heat", "series", "shares")

_BUCKETS = 400
_HEAT_BUCKETS = 120
_SHORTEST_PAUSE_S = 5.0
#: Of a core that the kernel shares with the user's own work.
_SHARE = 0.05


def document_and_plots(
    table: SampleTable, *, dark: bool, steady: SteadyAdvice | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The score's document and all plots of a table; no plot where it holds no GPU.

    Parameters
    ----------
    steady
        Keeps the advice of a live view from flickering.
    """
    job = score_table(table)
    advice = advise(table, job)
    if steady is not None:
        advice = steady.shown(0.0, table, _advice_of, advice, time.monotonic())
    document = document_of(job, advice)
    if not table.gpus:
        return document, {}
    overview = Overview.of_table(table, _BUCKETS)
    # A column that is shorter than two samples would have holes.
    seconds = overview.bucket_ns * len(overview.time_ns) / 1e9
    columns = max(1, min(_HEAT_BUCKETS, int(seconds / (2 * max(table.interval, 1e-3)))))
    shares = shares_of(job)
    return document, {
        "score": score_figure(document, dark=dark, title="Score and losses"),
        "heat": heat_figure(coarser(overview, columns), dark=dark, title="GPUs over time: SM active"),
        "series": time_series_figure(overview, dark=dark),
        "shares": shares_figure(shares.time_ns, shares.points, dark=dark, simulated=table.simulated),
    }


def _advice_of(table: SampleTable) -> tuple[Advice, ...]:
    return advise(table, score_table(table))


def whole_image(activity: dict[str, Any], plots: dict[str, Any]) -> bytes:
    """The activity figure and every plot, one below the other, as a PNG for paper."""
    pictures = [plots[name] for name in PLOTS if name in plots]
    return stacked_images([static_image(figure) for figure in (*pictures[:2], activity, *pictures[2:])])


class PlotsThread:
    """Makes score and plots again and again, until it is stopped.

    Parameters
    ----------
    table
        What is shown now.
    publish
        Takes document and plots; on the thread.
    """

    def __init__(
        self,
        table: Callable[[], SampleTable],
        publish: Callable[[dict[str, Any], dict[str, Any]], None],
        ended: threading.Event,
    ) -> None:
        self.dark = False
        self._steady = SteadyAdvice()
        self._table = table
        self._publish = publish
        self._ended = ended
        self._asked = threading.Event()
        self.thread = threading.Thread(target=self._run, name="gipfel-widget-score", daemon=True)
        self.thread.start()

    def ask(self, *, dark: bool) -> None:
        """A page wants them in its colours, soon."""
        self.dark = dark
        self._asked.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._asked.clear()
            began = time.thread_time()
            try:
                self._publish(*document_and_plots(self._table(), dark=self.dark, steady=self._steady))
            except ReferenceError:
                # Nobody holds the view any more.
                return
            pause = max(_SHORTEST_PAUSE_S, (time.thread_time() - began) / _SHARE)
            end = time.monotonic() + pause
            while not self._ended.wait(0.25) and not self._asked.is_set() and time.monotonic() < end:
                pass
