"""The recorder's loop: read every source on a drift-free beat, write, publish."""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ..sample import FINE_INTERVAL, METRICS, SCORE_PARTS, Device, Sample
from ..sources import Clock, EventSource, ProcessSource, Source, SystemClock
from ..store.segments import Provenance
from .beat import Beat, ClockWatch
from .disk import Disk
from .find_ranks import RankFinder
from .fine import FineRecording, fine_sources
from .journal import Journal
from .metrics_file import MetricsFile
from .seconds import ScoreParts
from .settings import Settings
from .throttling import Throttling

if TYPE_CHECKING:
    from ..live import Tick


class TickTaker(Protocol):
    """Where ticks go: the live stream on this node, the way to the head node."""

    def send(self, tick: "Tick") -> None:
        """Pass a tick on; never waits."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Recorder:
    """Reads sources on a drift-free beat.

    Parameters
    ----------
    publisher, others
        Where ticks go; none records without a live stream.
    metrics
        A file of the workload to take metrics from.
    environment
        Says which Slurm job this is.
    score
        What is kept of the score of fine samples; without it, or without a source that counts so fast, every
        source is read at the interval of the settings.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        settings: Settings,
        *,
        publisher: TickTaker | None = None,
        others: Sequence[TickTaker] = (),
        clock: Clock | None = None,
        metrics: MetricsFile | None = None,
        environment: Mapping[str, str] = os.environ,
        score: ScoreParts | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._settings = settings
        self._publishers = (*((publisher,) if publisher is not None else ()), *others)
        self._clock = clock or SystemClock()
        self._metrics = metrics
        self._owned = [
            tuple(replace(d, node=d.node or settings.node) for d in s.devices) for s in self._sources
        ]
        fine = fine_sources(self._sources) if settings.fine is not None and score is not None else ()
        brought = (name for source in self._sources for name in getattr(source, "extra", ()))
        self._provenance = Provenance(
            settings.node,
            settings.name,
            ", ".join(source.name for source in self._sources if source.devices),
            any(source.simulated for source in self._sources),
            settings.interval,
            tuple(device for devices in self._owned for device in devices),
            tuple(dict.fromkeys((*settings.metrics, *brought, *(SCORE_PARTS if fine else ())))),
        )
        self.journal = Journal(settings.telemetry, settings.node, settings.name, self._clock)
        self._disk = Disk(settings, self._provenance, self.journal, self._clock)
        self._fine = (
            FineRecording(settings, self._provenance, self.journal, self._clock, score)
            if fine and score is not None
            else None
        )
        self._every = fine or self._sources
        self._interval = FINE_INTERVAL if fine else settings.interval
        self._clocks = ClockWatch(self._clock, self._interval, self.journal)
        self._throttling = Throttling(self.journal)
        self._ranks = RankFinder(settings, environment)
        self._seq = 0

    def run(self, ended: threading.Event, *, parent: int | None = None) -> None:
        """Tick until the event is set, or until this process has another parent than `parent`; then close."""
        beat = Beat(self._clock, self._interval)
        source = self._provenance.source or "no source"
        self.journal.note("recorder_started", f"Recording {source} every {self._interval:g} s.", told=False)

        def goes_on() -> bool:
            return parent in (None, os.getppid())

        try:
            while not ended.is_set() and goes_on():
                self.tick()
                beat.wait(ended, goes_on)
        finally:
            self.close()

    def tick(self) -> None:
        """Read the sources whose time it is, publish, and write when it is time."""
        if self._clocks.look():
            # Times within one segment never go back.
            if self._fine is not None:
                self._disk.add(self._fine.take())
                self._fine.finish()
            self._disk.flush()
            self._disk.finish()
        samples = self._read_all(self._every)
        if self._fine is not None:
            if not self._fine.add(samples):
                return
            others = [source for source in self._sources if source not in self._every]
            samples = [*self._read_all(others), *self._fine.take()]
        self._beside(samples)
        self._disk.add(samples)
        self._publish(samples)

    def close(self) -> None:
        """Write what waits, mark the segment as complete, say goodbye and close the sources."""
        self.journal.note("recorder_ended", "The recorder was told to end.", told=False)
        if self._fine is not None:
            self._disk.add(self._fine.take())
            self._fine.finish()
        self._disk.flush()
        self._disk.finish()
        self.journal.write()
        self._publish([], ended=True)
        for publisher in self._publishers:
            publisher.close()
        for source in self._sources:
            source.close()

    def _read_all(self, sources: Sequence[Source]) -> list[Sample]:
        owned = zip(self._sources, self._owned, strict=True)
        return [sample for source, own in owned if source in sources for sample in self._read(source, own)]

    def _read(self, source: Source, devices: tuple[Device, ...]) -> list[Sample]:
        try:
            samples = source.read()
        except Exception as error:  # noqa: BLE001 - one source must not end the others
            self.journal.trouble(source.name, "source_lost", f"{source.name} can't be read: {error}")
            time_ns, monotonic_ns = self._clock.time_ns(), self._clock.monotonic_ns()
            return [Sample(time_ns, monotonic_ns, d.uuid, dict.fromkeys(METRICS[d.kind])) for d in devices]
        self.journal.relief(source.name, "source_back", f"{source.name} can be read again")
        return samples

    def _beside(self, samples: list[Sample]) -> None:
        """What is looked at beside the samples; none of it may end them."""
        with self.journal.suppressed("clocks' event reasons"):
            self._throttling.look(samples)
        for source in self._sources:
            if isinstance(source, EventSource):
                with self.journal.suppressed(f"events of {source.name}"):
                    for event in source.events():
                        self.journal.add(event)
        if self._metrics is not None:
            with self.journal.suppressed("metrics' file"):
                self._metrics.poll()
        if self._ranks.due(self._clock.monotonic_ns()):
            with self.journal.suppressed("ranks"):
                holders = [h for s in self._sources if isinstance(s, ProcessSource) for h in s.processes()]
                self._ranks.look(holders)

    def _publish(self, samples: list[Sample], *, ended: bool = False) -> None:
        events = self.journal.take()
        if not self._publishers:
            return
        from ..live import Tick  # noqa: PLC0415 - recording alone needs no ZeroMQ

        self._seq += 1
        origin = self._provenance
        tick = Tick(
            self._seq,
            origin.recorder,
            origin.node,
            origin.source,
            origin.simulated,
            origin.interval,
            origin.devices,
            tuple(samples),
            events,
            ended,
        )
        for publisher in self._publishers:
            with self.journal.suppressed("live stream"):
                publisher.send(tick)
