"""The recorder's loop: read every source at drift-free times, write, publish."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ..telemetry.metric_table import METRICS, SCORE_PARTS
from ..telemetry.ranks import RankFinder, ranks_file
from ..telemetry.sample import FINE_INTERVAL, Device, Sample
from ..telemetry.sources import Clock, EventSource, ProcessSource, Source, SystemClock
from ..telemetry.store.segments import Provenance
from .disk import Disk, Settings
from .fine import FineRecording, ScoreParts, fine_sources
from .journal import ClockWatch, Journal, Throttling
from .metrics_file import MetricsFile

if TYPE_CHECKING:
    from ..telemetry.live.ticks import Tick

#: How often a recorder checks whether its parent is still there, at any interval.
_GLANCE_SECONDS = 1.0


class TickSink(Protocol):
    """Receiver of ticks: the live stream on this node, or the sender to the head node."""

    def send(self, tick: "Tick") -> None:
        """Pass a tick on; never waits."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Recorder:
    """The recorder of one node: reads sources at drift-free times, writes and publishes.

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
        publisher: TickSink | None = None,
        others: Sequence[TickSink] = (),
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
        ranks = ranks_file(settings.telemetry, settings.node, settings.name)
        self._ranks = RankFinder(ranks, settings.node, environment)
        self._seq = 0

    def run(self, ended: threading.Event, *, parent: int | None = None) -> None:
        """Tick until the event is set, or until this process has another parent than `parent`; then close."""
        ticker = Ticker(self._clock, self._interval)
        source = self._provenance.source or "no source"
        self.journal.note(
            "recorder_started", f"Recording {source} every {self._interval:g} s.", published=False
        )

        def continues() -> bool:
            return parent in (None, os.getppid())

        try:
            while not ended.is_set() and continues():
                self.tick()
                ticker.wait(ended, continues)
        finally:
            self.close()

    def tick(self) -> None:
        """Read the sources whose time it is, publish, and write when it is time."""
        if self._clocks.check():
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
        self._run_beside(samples)
        self._disk.add(samples)
        self._publish(samples)

    def close(self) -> None:
        """Write what waits, mark the segment as complete, publish the last tick and close the sources."""
        self.journal.note("recorder_ended", "The recorder was asked to stop.", published=False)
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
        except Exception as error:  # noqa: BLE001 - the samples go on whatever it was
            self.journal.trouble(source.name, "source_lost", f"{source.name} can't be read: {error}")
            time_ns, monotonic_ns = self._clock.time_ns(), self._clock.monotonic_ns()
            return [Sample(time_ns, monotonic_ns, d.uuid, dict.fromkeys(METRICS[d.kind])) for d in devices]
        self.journal.relief(source.name, "source_back", f"{source.name} can be read again")
        return samples

    def _run_beside(self, samples: list[Sample]) -> None:
        """Run what is looked at beside the samples; none of it may end the recording."""
        with self.journal.suppressed("clocks' event reasons"):
            self._throttling.check(samples)
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
                self._ranks.update(holders)

    def _publish(self, samples: list[Sample], *, ended: bool = False) -> None:
        events = self.journal.take()
        if not self._publishers:
            return
        from ..telemetry.live.ticks import Tick  # noqa: PLC0415 - recording alone needs no ZeroMQ

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


class Ticker:
    """Ticks at multiples of an interval since the beginning, on the monotonic clock."""

    def __init__(self, clock: Clock, interval: float) -> None:
        self._clock = clock
        self._step_ns = round(interval * 1e9)
        self._started_ns = clock.monotonic_ns()
        self._number = 0

    def wait(self, ended: threading.Event, continues: Callable[[], bool]) -> None:
        """Wait for the next tick, or until the event is set or `continues` is false.

        Missed ticks are left out rather than made up for.
        """
        passed = self._clock.monotonic_ns() - self._started_ns
        self._number = max(self._number + 1, passed // self._step_ns + 1)
        deadline_ns = self._started_ns + self._number * self._step_ns
        while not ended.is_set() and continues():
            left = (deadline_ns - self._clock.monotonic_ns()) / 1e9
            if left <= 0:
                return
            self._clock.wait(min(left, _GLANCE_SECONDS), ended)
