"""New points of the job's lines, as samples come in: the mean over its devices, beat by beat."""

from collections.abc import Sequence
from typing import Any

from ..telemetry.figures.job_lines import ADDED_LINES, JOB_LINES
from ..telemetry.figures.rows import Line
from ..telemetry.sample import Device, Sample

#: Beats that wait for the slowest node; a sample that is later still is in the next whole figure.
_MOST_WAITING = 8


class JobMeans:
    """Adds up samples of many devices, and gives a point per line when a beat is over."""

    def __init__(self) -> None:
        self._beats: dict[int, dict[str, list[float]]] = {}
        self._done = 0

    def add(
        self, samples: Sequence[Sample], devices: Sequence[Device], interval: float
    ) -> dict[str, dict[str, list[Any]]]:
        """Take samples in; the points of the beats that are over, by the ``uid`` of their trace.

        Parameters
        ----------
        interval
            Seconds of a beat.
        """
        beat_ms = max(100, round(1000 * interval))
        kinds = {device.uuid: device.kind for device in devices}
        for sample in samples:
            beat = sample.time_ns // 1_000_000 // beat_ms * beat_ms
            kind = kinds.get(sample.device)
            if kind is None or beat <= self._done:
                continue
            sums = self._beats.setdefault(beat, {})
            lines = JOB_LINES[kind] + (ADDED_LINES if kind == "host" else ())
            for line in lines:
                value = _scaled(sample, line)
                if value is not None:
                    pair = sums.setdefault(f"job/{line.metric}", [0.0, 0.0])
                    pair[0] += value
                    pair[1] += 1
        return self._over()

    def _over(self) -> dict[str, dict[str, list[Any]]]:
        traces: dict[str, dict[str, list[Any]]] = {}
        newest = max(self._beats, default=0)
        added = {f"job/{line.metric}" for line in ADDED_LINES}
        for beat in sorted(self._beats):
            if beat == newest:
                break
            for uid, (total, count) in self._beats.pop(beat).items():
                trace = traces.setdefault(uid, {"x": [], "y": []})
                trace["x"].append(beat)
                trace["y"].append(round(total if uid in added else total / count, 3))
            self._done = beat
        while len(self._beats) > _MOST_WAITING:
            self._beats.pop(min(self._beats))
        return traces


def _scaled(sample: Sample, line: Line) -> float | None:
    value = sample.values.get(line.metric)
    total = sample.values.get(line.of) if line.of else 1.0
    return None if value is None or not total else value * line.factor / total
