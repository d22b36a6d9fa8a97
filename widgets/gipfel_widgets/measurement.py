"""Measuring a piece of work: what GPUs and host did between two moments, and where that is recorded."""

import atexit
import time
from dataclasses import replace
from types import TracebackType

import numpy as np

from gipfel_cluster.model import GipfelError
from gipfel_extension.telemetry.metrics import UserMetrics, read_metrics
from gipfel_extension.telemetry.sample import SampleTable
from gipfel_extension.telemetry.store.fine import read_finest
from gipfel_extension.telemetry.stream import SaturationFeed

from .plot import SaturationPlot
from .recorder import KernelRecorder
from .run import KernelRun, create_run, present_run
from .summary import SaturationSummary

_JUDGE_S = 5.0
_GLANCE_S = 0.2
#: What a shared recorder holds back before it writes, and some more for a slow file system.
_FLUSH_S = 8.0
_SHORTEST_S, _LONGEST_S = 0.01, 3600.0


class Measurement:
    """A context within which everything that runs is measured; made by :func:`measure`.

    Attributes
    ----------
    run
        Where the record is.
    own
        True where this measurement made the run and records it itself.
    simulated
        True where the values are made up or replayed; then no real one is shown, and vice versa.
    """

    def __init__(self, source: str = "auto", interval: float | None = None) -> None:
        if interval is not None and not _SHORTEST_S <= interval <= _LONGEST_S:
            raise GipfelError(
                f"An interval of {interval:g} s can't be kept.",
                f"Choose one from {_SHORTEST_S:g} to {_LONGEST_S:g} seconds.",
            )
        self.source = source
        self.simulated = source.partition(":")[0] in ("synthetic", "replay")
        self.own = False
        self._interval = interval
        self._run: KernelRun | None = None
        self._recorder: KernelRecorder | None = None
        self._started_ns: int | None = None
        self._ended_ns: int | None = None
        self._whole: SampleTable | None = None

    @property
    def run(self) -> KernelRun:
        """Where the record is.

        Raises
        ------
        GipfelError
            The measurement has not begun.
        """
        if self._run is None:
            raise GipfelError(
                "Nothing is measured yet.", "Begin with start(), or use the measurement in a with block."
            )
        return self._run

    @property
    def seconds(self) -> float:
        """How long it has measured, 0 before it begins."""
        if self._started_ns is None:
            return 0.0
        return ((self._ended_ns or time.time_ns()) - self._started_ns) / 1e9

    def start(self) -> "Measurement":
        """Begin; starts a recorder of its own where none runs that records this source.

        Raises
        ------
        GipfelError
            The source can't be read, or the run folder can't be made.
        """
        if self._run is not None:
            raise GipfelError("This measurement has begun already.", "Make another with measure().")
        self._run = None if self.simulated or self.source != "auto" else _recorded_run()
        if self._run is None:
            self.own = True
            self._run = create_run(self.source, self._interval)
            sources = ("host", "auto") if self.source == "auto" else (self.source,)
            name = "simulated" if self.simulated else "job"
            self._recorder = KernelRecorder(self._run, name, sources, self._interval)
            # A kernel that is shut down between two cells runs no __exit__.
            atexit.register(self._end_recorder)
            self._recorder.start()
        self._started_ns = time.time_ns()
        return self

    def stop(self) -> None:
        """End; an own recorder writes what it holds. Ending twice is no error."""
        if self._run is not None and self._ended_ns is None:
            self._ended_ns = time.time_ns()
            self._end_recorder()

    def table(self) -> SampleTable:
        """The samples between beginning and end, or until now; real ones alone or simulated ones alone.

        Waits up to 8 s for a recorder that it shares to write the last of them.
        """
        if self._whole is not None:
            return self._whole
        ended_ns = self._ended_ns
        table = self._read()
        if ended_ns is None:
            return table
        deadline = time.monotonic() + (0.0 if self.own else _FLUSH_S)
        # A sample after the end shows that those before it were written.
        while (table.last_ns or 0) < ended_ns and time.monotonic() < deadline:
            time.sleep(_GLANCE_S)
            table = self._read()
        self._whole = _until(table, ended_ns)
        return self._whole

    def figure(self, *, dark: bool = False) -> SaturationPlot:
        """The plots of the whole measurement, with what was logged meanwhile."""
        return SaturationPlot(
            self.table(), window_s=max(1.0, self.seconds), dark=dark, metrics=self.metrics()
        )

    def metrics(self) -> UserMetrics:
        """What this run's processes logged between beginning and end, or until now.

        A measurement that made a run of its own has that of the run that the kernel is in, too: the work logs
        there.
        """
        folders = {self.run.path, *([] if (present := present_run()) is None else [present.path])}
        found = [read_metrics(folder) for folder in sorted(folders)]
        last_ns = self._ended_ns or time.time_ns()
        return UserMetrics.union(found).between(self._started_ns or 0, last_ns)

    def summary(self) -> SaturationSummary:
        """Mean, 10th percentile and maximum of each metric by device."""
        return SaturationSummary.of(self.table(), seconds=self.seconds)

    def __enter__(self) -> "Measurement":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        word = "simulated " if self.simulated else ""
        state = "not begun" if self._run is None else f"{self.seconds:.1f} s in {self._run}"
        return f"<Measurement of {word}source {self.source}: {state}>"

    def _read(self) -> SampleTable:
        return read_finest(self.run.telemetry, since_ns=self._started_ns, simulated=self.simulated)

    def _end_recorder(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()
        atexit.unregister(self._end_recorder)


def measure(source: str = "auto", interval: float | None = None) -> Measurement:
    """Measure what runs in a ``with`` block.

    Parameters
    ----------
    source
        ``auto``: this run's recorder where there is one, else host and GPUs; ``host``, ``nvml``,
        ``replay:FILE`` or ``synthetic:training``, ``idle``, ``starved``.
    interval
        Seconds between two samples of a recorder that is started for this; one that runs keeps its own. None
        is 0.1 where the GPUs count that fast, and else 1.
    """
    return Measurement(source, interval)


def _recorded_run() -> KernelRun | None:
    """The kernel's run if real samples come in."""
    run = present_run()
    if run is None:
        return None
    try:
        feed = SaturationFeed(run.telemetry, run.sockets, window_s=60.0)
    except OSError:
        return None
    try:
        deadline = time.monotonic() + _JUDGE_S
        while feed.state()["state"] == "starting" and time.monotonic() < deadline:
            feed.poll(_GLANCE_S)
        real = any(not device.simulated for device in feed.devices())
        return run if real and feed.state()["state"] == "live" else None
    finally:
        feed.close()


def _until(table: SampleTable, time_ns: int) -> SampleTable:
    kept = {}
    for device in table.devices:
        columns = table.of(device.uuid)
        last = int(np.searchsorted(columns["time_ns"], time_ns, side="right"))
        kept[device.uuid] = {name: column[:last] for name, column in columns.items()}
    return replace(table, columns=kept)
