"""The sources that are read ten times a second, and what becomes of their samples."""

from collections.abc import Sequence
from dataclasses import replace

from ..provenance import Provenance
from ..sample import FINE_INTERVAL, SCORE_PARTS, Sample
from ..sources import Clock, Source
from ..store.fine import fine_folder
from ..store.segment_files import segment_begin
from .disk import Disk
from .journal import Journal
from .seconds import ScoreParts, Seconds
from .settings import Settings

#: Seconds that one segment covers: what is removed at a time.
_ROTATE_S = 1800.0


class FineRecording:
    """Segments of fine samples, and the seconds that go on from there."""

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
