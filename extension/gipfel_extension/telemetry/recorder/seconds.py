"""Samples that come ten times a second as one a second: means, and the parts of their score."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..sample import FINE_INTERVAL, Columns, Device, Sample, unit_of

#: The parts of the score of some samples of a GPU, of each of which the share of a second is given.
ScoreParts = Callable[[Device, Columns, float], Mapping[str, float | None]]

#: How much earlier than a second after the one before its last sample may come.
_EARLY_NS = int(FINE_INTERVAL * 5e8)
#: Units of what is there at a moment: the newest counts. Of the others the mean does.
_NEWEST = frozenset({"B", "J"})


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
        """Whether a second is over by a clock that never goes back; the first is with its first samples."""
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
