"""The recorder's loop: read every source at multiples of its interval, write samples, publish ticks.

`IdleWatch` detects a node whose GPUs have all been idle for 20 minutes.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ..diagnosis.rules import Rule
from ..telemetry.gpu_processes import GpuProcessFile
from ..telemetry.metric_table import METRICS, SCORE_PARTS
from ..telemetry.ranks import RankFinder, ranks_file
from ..telemetry.sample import FINE_INTERVAL, Device, Sample
from ..telemetry.sources import Clock, EventSource, ProcessSource, Source, SystemClock
from ..telemetry.store.segments import Provenance
from .job_processes import NetworkMonitor
from .journal import ClockWatch, Journal, ThrottleWatch
from .rule_monitor import RuleMonitor
from .sample_files import FineRecording, SampleWriter, ScoreParts, Settings, fine_sources
from .storage_monitor import StorageMonitor

if TYPE_CHECKING:
    from ..telemetry.live import Tick


#: Seconds between two checks whether the parent process is still running.
_PARENT_CHECK_SECONDS = 1.0


class TickSink(Protocol):
    """Receiver of ticks: the live stream on this node, or the sender to the head node."""

    def send(self, tick: "Tick") -> None:
        """Send a tick without waiting."""

    def close(self) -> None:
        """Release the sockets."""


class MetricsFollower(Protocol):
    """Follower of metrics that the workload logs; both methods append to the run's ``metrics.jsonl``."""

    def poll(self) -> None:
        """Take what is new."""

    def close(self) -> None:
        """Take what was written up to now."""


class Recorder:
    """The recorder of one node: reads sources at multiples of their interval, writes and publishes samples.

    Parameters
    ----------
    sinks
        Receivers of ticks; without any there is no live stream.
    metrics
        Follower of the workload's own metric files.
    environment
        Environment variables, which identify the Slurm job.
    score
        Function that computes the intermediate results of the score of fine samples. Without it, or without a
        fast source, every source is read at the interval of the settings.
    rules
        Function that reads the rules that are applied to the samples; None for none.
    network
        Function that opens the monitor of the job's connections for a ``journal``; None for none.
    storage
        Monitor of the job's input and output, which runs in its own threads; closed with the recorder.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        settings: Settings,
        *,
        sinks: Sequence[TickSink] = (),
        clock: Clock | None = None,
        metrics: Sequence[MetricsFollower] = (),
        environment: Mapping[str, str] = os.environ,
        score: ScoreParts | None = None,
        rules: Callable[[], list[Rule]] | None = None,
        network: Callable[..., NetworkMonitor] | None = None,
        storage: StorageMonitor | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._sinks = tuple(sinks)
        self._clock = clock or SystemClock()
        self._metrics = metrics
        self._source_devices = [
            tuple(replace(d, node=d.node or settings.node) for d in s.devices) for s in self._sources
        ]
        fine = fine_sources(self._sources) if settings.fine is not None and score is not None else ()
        extra = (name for source in self._sources for name in getattr(source, "extra", ()))
        self._provenance = Provenance(
            settings.node,
            settings.name,
            ", ".join(source.name for source in self._sources if source.devices),
            any(source.simulated for source in self._sources),
            settings.interval,
            tuple(device for devices in self._source_devices for device in devices),
            tuple(dict.fromkeys((*settings.metrics, *extra, *(SCORE_PARTS if fine else ())))),
        )
        self.journal = Journal(settings.telemetry, settings.node, settings.name, self._clock)
        self._writer = SampleWriter(settings, self._provenance, self.journal, self._clock)
        self._fine = (
            FineRecording(
                settings,
                self._provenance,
                self.journal,
                self._clock,
                retention=settings.fine,
                score=score,
            )
            if fine and settings.fine is not None and score is not None
            else None
        )
        self._frequent_sources = fine or self._sources
        self._interval = FINE_INTERVAL if fine else settings.interval
        self._clocks = ClockWatch(self._clock, self._interval, self.journal)
        self._throttling = ThrottleWatch(self.journal)
        self._idleness = IdleWatch(self.journal, self._provenance.devices)
        ranks = ranks_file(settings.telemetry, settings.node, settings.name)
        self._ranks = RankFinder(ranks, settings.node, environment, recorder=os.getpid())
        self._gpu_processes = GpuProcessFile(settings.telemetry, settings.node, settings.name)
        self._rules = (
            RuleMonitor(
                settings.telemetry.parent,
                settings.node,
                devices=self._provenance.devices,
                journal=self.journal,
                load=rules,
                locations=lambda: self._ranks.locations,
            )
            if rules is not None
            else None
        )
        self._network = None if network is None else network(journal=self.journal)
        self._storage = storage
        self._seq = 0

    def run(self, ended: threading.Event, *, parent: int | None = None) -> None:
        """Run until the event is set or this process' parent is no longer `parent`; then close."""
        ticker = Ticker(self._clock, self._interval)
        source = self._provenance.source or "no source"
        self.journal.note(
            "recorder_started", f"Recording {source} every {self._interval:g} s.", published=False
        )

        def parent_alive() -> bool:
            return parent in (None, os.getppid())

        try:
            while not ended.is_set() and parent_alive():
                self.tick()
                ticker.wait(ended, parent_alive)
        finally:
            self.close()

    def tick(self) -> None:
        """Read the sources that are due, publish the samples, and write them when a write is due."""
        if self._clocks.check():
            # After a step of the clock, start a new segment: times within one segment never go backwards.
            self._finish_segments()
        samples = self._read_all(self._frequent_sources)
        if self._fine is not None:
            if not self._fine.add(samples):
                return
            other_sources = [source for source in self._sources if source not in self._frequent_sources]
            samples = [*self._read_all(other_sources), *self._fine.drain()]
        self._run_monitors(samples)
        self._writer.add(samples)
        self._publish(samples)

    def close(self) -> None:
        """Write the waiting samples, close the segment, publish the last tick and close the sources."""
        self.journal.note("recorder_ended", "The recorder was stopped.", published=False)
        self._finish_segments()
        for follower in self._metrics:
            with self.journal.log_errors("metrics file"):
                follower.close()
        if self._network is not None:
            self._network.close()
        if self._storage is not None:
            self._storage.close()
        self._gpu_processes.remove()
        self.journal.write()
        self._publish([], ended=True)
        for sink in self._sinks:
            sink.close()
        for source in self._sources:
            source.close()

    def _finish_segments(self) -> None:
        if self._fine is not None:
            self._writer.add(self._fine.drain())
            self._fine.finish()
        self._writer.flush()
        self._writer.finish()

    def _read_all(self, sources: Sequence[Source]) -> list[Sample]:
        pairs = zip(self._sources, self._source_devices, strict=True)
        return [s for source, devices in pairs if source in sources for s in self._read(source, devices)]

    def _read(self, source: Source, devices: tuple[Device, ...]) -> list[Sample]:
        try:
            samples = source.read()
        except Exception as error:  # noqa: BLE001 - recording continues after any error
            message = f"{source.name} can't be read: {error}"
            self.journal.report_problem(source.name, "source_lost", message)
            time_ns, monotonic_ns = self._clock.time_ns(), self._clock.monotonic_ns()
            return [Sample(time_ns, monotonic_ns, d.uuid, dict.fromkeys(METRICS[d.kind])) for d in devices]
        self.journal.report_recovery(source.name, "source_back", f"{source.name} can be read again.")
        return samples

    def _run_monitors(self, samples: list[Sample]) -> None:
        """Check throttling, events, rules, user metrics, connections and ranks; log errors and continue."""
        with self.journal.log_errors("clocks' event reasons"):
            self._throttling.check(samples)
        with self.journal.log_errors("GPUs' activity"):
            self._idleness.check(samples)
        for source in self._sources:
            if isinstance(source, EventSource):
                with self.journal.log_errors(f"events of {source.name}"):
                    for event in source.events():
                        self.journal.add(event)
        if self._rules is not None:
            with self.journal.log_errors("values for rules"):
                self._rules.check(samples, self._clock.time_ns())
        for follower in self._metrics:
            with self.journal.log_errors("metrics file"):
                follower.poll()
        if self._network is not None:
            with self.journal.log_errors("connections"):
                self._network.check()
        if self._ranks.due(self._clock.monotonic_ns()):
            with self.journal.log_errors("ranks"):
                holders = [h for s in self._sources if isinstance(s, ProcessSource) for h in s.processes()]
                self._ranks.update(holders)
                self._gpu_processes.update(holders, {each.pid for each in self._ranks.locations})

    def _publish(self, samples: list[Sample], *, ended: bool = False) -> None:
        events = self.journal.drain()
        if not self._sinks:
            return
        from ..telemetry.live import Tick  # noqa: PLC0415 - recording alone needs no ZeroMQ

        self._seq += 1
        tick = Tick(self._seq, self._provenance, tuple(samples), events, ended)
        for sink in self._sinks:
            with self.journal.log_errors("live stream"):
                sink.send(tick)


class Ticker:
    """Timer of ticks at multiples of an interval since its start, on the monotonic clock."""

    def __init__(self, clock: Clock, interval: float) -> None:
        self._clock = clock
        self._step_ns = round(interval * 1e9)
        self._started_ns = clock.monotonic_ns()
        self._number = 0

    def wait(self, ended: threading.Event, keep_waiting: Callable[[], bool]) -> None:
        """Wait for the next tick, or until the event is set or `keep_waiting` returns False.

        Missed ticks are skipped.
        """
        passed = self._clock.monotonic_ns() - self._started_ns
        self._number = max(self._number + 1, passed // self._step_ns + 1)
        deadline_ns = self._started_ns + self._number * self._step_ns
        while not ended.is_set() and keep_waiting():
            remaining = (deadline_ns - self._clock.monotonic_ns()) / 1e9
            if remaining <= 0:
                return
            self._clock.wait(min(remaining, _PARENT_CHECK_SECONDS), ended)


#: Seconds without work after which GPUs are reported as idle.
IDLE_S = 1200.0
#: Activity from which a GPU counts as busy, 0 to 1.
BUSY = 0.05
#: Metrics that show activity, the most precise first.
_METRICS = ("SM_ACTIVE", "GR_ENGINE_ACTIVE", "GPU_UTIL")


class IdleWatch:
    """Adds one event when all GPUs of this node have been idle, and again only after one was busy.

    A GPU whose activity is unknown is not idle. Simulated GPUs do not count.
    """

    def __init__(self, journal: Journal, devices: Iterable[Device]) -> None:
        self._journal = journal
        self._gpus = {each.uuid for each in devices if each.kind == "gpu" and not each.simulated}
        self._busy_ns: dict[str, int] = {}
        self._reported = False

    def check(self, samples: Iterable[Sample]) -> None:
        """Check the newest samples."""
        now_ns = 0
        for sample in samples:
            if sample.device not in self._gpus:
                continue
            now_ns = max(now_ns, sample.monotonic_ns)
            values = (sample.values.get(name) for name in _METRICS)
            activity = next((float(each) for each in values if each is not None), None)
            is_idle = activity is not None and activity < BUSY
            if not is_idle or sample.device not in self._busy_ns:
                self._busy_ns[sample.device] = sample.monotonic_ns
        if not now_ns or len(self._busy_ns) < len(self._gpus):
            return
        idle_s = (now_ns - max(self._busy_ns.values())) / 1e9
        if idle_s < IDLE_S:
            self._reported = False
        elif not self._reported:
            self._reported = True
            count = len(self._gpus)
            what = "The GPU has" if count == 1 else f"All {count} GPUs have"
            self._journal.note("gpus_idle", f"{what} been below {BUSY:.0%} for {IDLE_S / 60:.0f} minutes.")
