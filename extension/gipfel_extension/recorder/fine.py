"""Samples that come ten times a second: segments of their own, and one sample a second made of them.

A second has the means of its samples and the parts of their score.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..telemetry.metric_table import SCORE_PARTS, unit_of
from ..telemetry.sample import FINE_INTERVAL, Columns, Device, Provenance, Sample
from ..telemetry.sources import Clock, Source
from ..telemetry.store.fine import fine_folder
from ..telemetry.store.segment_files import segment_begin
from .disk import Disk, Settings
from .journal import Journal

#: The parts of the score of some samples of a GPU, of each of which the share of a second is given.
ScoreParts = Callable[[Device, Columns, float], Mapping[str, float | None]]

#: How much earlier than a second after the one before its last sample may come.
_EARLY_NS = int(FINE_INTERVAL * 5e8)
#: Units of what is there at a moment: the newest counts. Of the others the mean does.
_NEWEST = frozenset({"B", "J"})
#: Seconds that one segment covers: what is removed at a time.
_ROTATE_S = 1800.0


class FineRecording:
    """Segments of fine samples, and the seconds that are made of them."""

    def __init__(
        self,
        settings: Settings,
        provenance: Provenance,
        journal: Journal,
        clock: Clock,
        score: ScoreParts,
    ) -> None:
        metrics = tuple(name for name in provenance.extra if name not in SCORE_PARTS)
        own = replace(provenance, interval=FINE_INTERVAL, extra=metrics)
        folder = fine_folder(settings.telemetry)
        changed = replace(settings, telemetry=folder, interval=FINE_INTERVAL, rotate=_ROTATE_S)
        kept = settings.fine
        self._disk = Disk(changed, own, journal, clock, summaries=False) if kept and kept.hours else None
        self._seconds = Seconds(provenance.devices, score)
        self._clock = clock
        self._kept, self._folder = kept, folder
        self._begin = segment_begin(settings.node, settings.name)
        self._pruned_ns: int | None = None

    def add(self, samples: Sequence[Sample]) -> bool:
        """Take samples; whether a second of them is over."""
        self._seconds.add(samples)
        now_ns = self._clock.monotonic_ns()
        if self._disk is not None:
            self._disk.add(samples)
            if self._pruned_ns is None or now_ns - self._pruned_ns >= _ROTATE_S * 1e9:
                self._prune(now_ns)
        return self._seconds.due(now_ns)

    def take(self) -> list[Sample]:
        """Return what the samples since the last call come to, one for each GPU."""
        return self._seconds.take()

    def finish(self) -> None:
        """Write what waits, and end the segment."""
        if self._disk is not None:
            self._disk.flush()
            self._disk.finish()

    def _prune(self, now_ns: int) -> None:
        self._pruned_ns = now_ns
        if self._kept is not None:
            self._kept.prune(self._folder, self._clock.time_ns(), own=self._begin)


def fine_sources(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Return the sources that can be read so often."""
    return tuple(source for source in sources if getattr(source, "fine", False))


class Seconds:
    """Fine samples of GPUs, until a second is full.

    Parameters
    ----------
    devices
        The GPUs whose samples come.
    """

    def __init__(self, devices: Sequence[Device], score: ScoreParts) -> None:
        self._devices = {device.uuid: device for device in devices}
        self._score = score
        self._waiting: dict[str, list[Sample]] = {}
        self._due_ns: int | None = None

    def add(self, samples: Sequence[Sample]) -> None:
        """Take samples."""
        for sample in samples:
            if sample.device in self._devices:
                self._waiting.setdefault(sample.device, []).append(sample)

    def due(self, now_ns: int) -> bool:
        """Return whether a second is over by a monotonic clock; the first is with its first samples."""
        if self._due_ns is None:
            self._due_ns = now_ns
        if now_ns < self._due_ns - _EARLY_NS:
            return False
        late = max(0, now_ns - self._due_ns) // 10**9
        self._due_ns += (1 + late) * 10**9
        return True

    def take(self) -> list[Sample]:
        """Return a sample per GPU: the means of those that wait, at the time of the last."""
        waiting, self._waiting = self._waiting, {}
        return [self._second(self._devices[uuid], samples) for uuid, samples in waiting.items()]

    def _second(self, device: Device, samples: Sequence[Sample]) -> Sample:
        metrics = tuple(dict.fromkeys(metric for sample in samples for metric in sample.values))
        rows = np.array([[sample.values.get(metric) for metric in metrics] for sample in samples], np.float64)
        columns: Columns = dict(zip(metrics, rows.T, strict=True))
        values = {metric: _one(metric, column) for metric, column in columns.items()}
        columns["time_ns"] = np.array([sample.time_ns for sample in samples], np.int64)
        values |= self._score(device, columns, FINE_INTERVAL)
        return Sample(samples[-1].time_ns, samples[-1].monotonic_ns, device.uuid, values)


def _one(metric: str, column: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float | None:
    """Return one value for several: a missing one counts for none, masks are united."""
    known = column[np.isfinite(column)]
    if not len(known):
        return None
    unit = unit_of(metric)
    if unit == "bits":
        return float(np.bitwise_or.reduce(known.astype(np.int64)))
    return float(known[-1] if unit in _NEWEST else known.mean())
