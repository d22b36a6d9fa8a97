"""Writing of samples to segments: `SampleWriter`, and `FineRecording` for samples at 10 Hz.

Samples wait in memory while the disk cannot be written. Fine samples go to segments of their own. Each second
they also become one ordinary sample per GPU: their means, and the `SCORE_PARTS`, from which the score is
computed later.
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..telemetry.metric_table import SCORE_PARTS, unit_of
from ..telemetry.sample import FINE_INTERVAL, Columns, Device, Provenance, Sample
from ..telemetry.sources import Clock, Source
from ..telemetry.store.fine import FineRetention, fine_folder
from ..telemetry.store.segment_files import segment_prefix
from ..telemetry.store.segments import SegmentWriter
from .journal import Journal

#: Seconds of samples that are kept in memory while the disk cannot be written.
_MAX_WAITING_SECONDS = 600.0
#: Maximum seconds between two attempts to write after an error; the pause doubles until then.
_MAX_PAUSE_SECONDS = 30.0
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Settings:
    """Directory and intervals of a recorder.

    Parameters
    ----------
    telemetry
        The run folder's ``telemetry``.
    name
        Name that distinguishes the recorders of a run, such as ``job`` or ``simulated``.
    interval, flush, rotate
        Seconds between samples, seconds between writes, and seconds that one segment covers.
    fine
        How long samples at `FINE_INTERVAL` are kept, of the sources that can be read that fast
        (`fine_sources`). `interval` is then that of the samples that are kept permanently and sent to live
        views and to the job's first node. None: every source is read at `interval`.
    metrics
        GPU metrics in addition to those that are always recorded.
    """

    telemetry: Path
    node: str
    name: str = "job"
    interval: float = 1.0
    flush: float = 2.0
    rotate: float = 3600.0
    fine: FineRetention | None = None
    metrics: tuple[str, ...] = ()


class SampleWriter:
    """Writer of the consecutive segments of one recorder; keeps samples while the disk cannot be written.

    Parameters
    ----------
    provenance
        Metadata of each segment: devices, interval, and metrics in addition to the usual ones.
    """

    def __init__(
        self,
        settings: Settings,
        provenance: Provenance,
        journal: Journal,
        clock: Clock,
        *,
        summaries: bool = True,
    ) -> None:
        self._summaries = summaries
        self._problem = f"disk {settings.telemetry}"
        self._settings = settings
        self._provenance = provenance
        self._journal = journal
        self._clock = clock
        self._segment: SegmentWriter | None = None
        self._segment_start_ns = 0
        self._due_ns: int | None = None
        self._pause = settings.flush
        self._waiting: list[Sample] = []
        self._lost = 0

    def add(self, samples: Sequence[Sample]) -> None:
        """Add samples, and write when a write is due; the first samples are written immediately."""
        self._waiting += samples
        now_ns = self._clock.monotonic_ns()
        if self._due_ns is None or now_ns >= self._due_ns:
            self.flush()

    def flush(self) -> None:
        """Write the waiting samples; after an error the next write starts a new segment."""
        now_ns = self._clock.monotonic_ns()
        self._due_ns = now_ns + int(self._pause * 1e9)
        if self._provenance.devices:
            try:
                self._write(now_ns)
            except OSError as error:
                self._handle_disk_error(error, now_ns)
            except Exception as error:  # noqa: BLE001 - recording continues after any error
                self._drop_invalid_samples(error)
            else:
                self._handle_success()
        self._journal.write()

    def finish(self) -> None:
        """Close the segment; the next samples start a new one."""
        if self._segment is None:
            return
        segment, self._segment = self._segment, None
        try:
            segment.close()
        except OSError as error:
            segment.abandon()
            message = f"A segment can't be closed: {_reason(error)}."
            self._journal.report_problem(self._problem, "disk_full", message)

    def _write(self, now_ns: int) -> None:
        if self._segment is not None and now_ns - self._segment_start_ns >= self._settings.rotate * 1e9:
            self.finish()
        if self._segment is None:
            self._settings.telemetry.mkdir(mode=0o700, parents=True, exist_ok=True)
            start_ns = self._waiting[0].time_ns if self._waiting else self._clock.time_ns()
            self._segment = SegmentWriter(
                self._settings.telemetry, self._provenance, start_ns=start_ns, summaries=self._summaries
            )
            self._segment_start_ns = now_ns
        self._segment.write(self._waiting)
        self._waiting = []

    def _handle_disk_error(self, error: OSError, now_ns: int) -> None:
        if self._segment is not None:
            self._segment.abandon()
            self._segment = None
        max_waiting = max(
            1, int(len(self._provenance.devices) * _MAX_WAITING_SECONDS / self._settings.interval)
        )
        self._lost += max(0, len(self._waiting) - max_waiting)
        self._waiting = self._waiting[-max_waiting:]
        self._pause = min(2 * self._pause, max(_MAX_PAUSE_SECONDS, self._settings.flush))
        self._due_ns = now_ns + int(self._pause * 1e9)
        folder = self._settings.telemetry
        problem = "The disk is full" if error.errno in _DISK_FULL_ERRORS else "The disk refuses samples"
        self._journal.report_problem(
            self._problem,
            "disk_full",
            f"{problem}: {folder} can't be written: {_reason(error)}.",
        )

    def _drop_invalid_samples(self, error: Exception) -> None:
        """Drop the waiting samples: a source returned values that are not numbers."""
        if self._segment is not None:
            self._segment.abandon()
            self._segment = None
        self._lost += len(self._waiting)
        self._waiting = []
        self._journal.report_problem("values", "source_lost", f"A source returned invalid values: {error}")

    def _handle_success(self) -> None:
        self._pause = self._settings.flush
        message = f"{self._settings.telemetry} can be written again."
        self._journal.report_recovery(self._problem, "disk_back", message)
        if self._lost:
            self._journal.note("samples_lost", f"{self._lost} samples could not be written and are lost.")
            self._lost = 0


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


#: Function of a GPU, its samples, and the seconds between two samples; returns the `SCORE_PARTS`.
ScoreParts = Callable[[Device, Columns, float], Mapping[str, float | None]]

#: Nanoseconds by which the last sample of a second may come early: half of the fine interval.
_EARLY_NS = int(FINE_INTERVAL * 5e8)
#: Units of metrics whose newest value in a second is kept (sizes, counters); other metrics are averaged.
_NEWEST_VALUE_UNITS = frozenset({"B", "J"})
#: Seconds that a fine segment covers; segments are removed as a whole.
_ROTATE_S = 1800.0


class FineRecording:
    """Writer of fine samples, which also computes their one-second means."""

    def __init__(
        self,
        settings: Settings,
        provenance: Provenance,
        journal: Journal,
        clock: Clock,
        *,
        retention: FineRetention,
        score: ScoreParts,
    ) -> None:
        metrics = tuple(name for name in provenance.extra if name not in SCORE_PARTS)
        fine_provenance = replace(provenance, interval=FINE_INTERVAL, extra=metrics)
        folder = fine_folder(settings.telemetry)
        fine_settings = replace(settings, telemetry=folder, interval=FINE_INTERVAL, rotate=_ROTATE_S)
        self._writer = (
            SampleWriter(fine_settings, fine_provenance, journal, clock, summaries=False)
            if retention.hours
            else None
        )
        self._seconds = SecondAggregator(provenance.devices, score)
        self._clock = clock
        self._retention, self._folder = retention, folder
        self._name_prefix = segment_prefix(settings.node, settings.name)
        self._pruned_ns: int | None = None

    def add(self, samples: Sequence[Sample]) -> bool:
        """Add samples; return whether a second has passed since the last one-second samples."""
        self._seconds.add(samples)
        now_ns = self._clock.monotonic_ns()
        if self._writer is not None:
            self._writer.add(samples)
            if self._pruned_ns is None or now_ns - self._pruned_ns >= _ROTATE_S * 1e9:
                self._pruned_ns = now_ns
                self._retention.prune(self._folder, self._clock.time_ns(), name_prefix=self._name_prefix)
        return self._seconds.due(now_ns)

    def drain(self) -> list[Sample]:
        """Return one sample per GPU, the means of the samples since the last call."""
        return self._seconds.drain()

    def finish(self) -> None:
        """Write the waiting samples and close the segment."""
        if self._writer is not None:
            self._writer.flush()
            self._writer.finish()


def fine_sources(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Return the sources that can be read at `FINE_INTERVAL`."""
    return tuple(source for source in sources if getattr(source, "fine", False))


class SecondAggregator:
    """Aggregator of fine samples into one-second means.

    Parameters
    ----------
    devices
        The GPUs whose samples are added; samples of others are ignored.
    """

    def __init__(self, devices: Sequence[Device], score: ScoreParts) -> None:
        self._devices = {device.uuid: device for device in devices}
        self._score = score
        self._waiting: dict[str, list[Sample]] = {}
        self._due_ns: int | None = None

    def add(self, samples: Sequence[Sample]) -> None:
        """Add samples."""
        for sample in samples:
            if sample.device in self._devices:
                self._waiting.setdefault(sample.device, []).append(sample)

    def due(self, now_ns: int) -> bool:
        """Return whether a second has passed on the monotonic clock; True at the first call."""
        if self._due_ns is None:
            self._due_ns = now_ns
        if now_ns < self._due_ns - _EARLY_NS:
            return False
        late = max(0, now_ns - self._due_ns) // 10**9
        self._due_ns += (1 + late) * 10**9
        return True

    def drain(self) -> list[Sample]:
        """Return one sample per GPU, the means of the waiting samples, at the time of the last one."""
        waiting, self._waiting = self._waiting, {}
        return [self._mean_sample(self._devices[uuid], samples) for uuid, samples in waiting.items()]

    def _mean_sample(self, device: Device, samples: Sequence[Sample]) -> Sample:
        metrics = tuple(dict.fromkeys(metric for sample in samples for metric in sample.values))
        rows = np.array([[sample.values.get(metric) for metric in metrics] for sample in samples], np.float64)
        columns: Columns = dict(zip(metrics, rows.T, strict=True))
        values = {metric: _aggregate(metric, column) for metric, column in columns.items()}
        columns["time_ns"] = np.array([sample.time_ns for sample in samples], np.int64)
        values |= self._score(device, columns, FINE_INTERVAL)
        return Sample(samples[-1].time_ns, samples[-1].monotonic_ns, device.uuid, values)


def _aggregate(metric: str, column: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float | None:
    """Return the mean or newest of several values, or the union of bit masks; missing values are ignored."""
    known = column[np.isfinite(column)]
    if not len(known):
        return None
    unit = unit_of(metric)
    if unit == "bits":
        return float(np.bitwise_or.reduce(known.astype(np.int64)))
    return float(known[-1] if unit in _NEWEST_VALUE_UNITS else known.mean())
