"""The recorder: one small process per node that reads sources, writes segments and publishes ticks.

It stands beside the workload and never ends because of it or it because of the recorder: what a source or the
disk refuses becomes an event and missing values.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .sample import METRICS, Device, Sample, SourceError
from .segments import Provenance, SegmentWriter
from .sources import Clock, Source, SystemClock, open_source

if TYPE_CHECKING:
    from .live import Publisher

log = logging.getLogger("gipfel.recorder")

_ROTATE_SECONDS = 3600.0
#: How many seconds of samples wait in memory for a disk that refuses them.
_PATIENCE_SECONDS = 600.0


@dataclass(frozen=True)
class Settings:
    """How a recorder works.

    Parameters
    ----------
    telemetry
        The run folder's ``telemetry``.
    name
        Tells the recorders of one run apart: ``job``, ``simulated``.
    interval, flush, rotate
        Seconds between samples, between writes, and that one segment covers.
    """

    telemetry: Path
    node: str
    name: str = "job"
    interval: float = 1.0
    flush: float = 2.0
    rotate: float = _ROTATE_SECONDS


class Recorder:
    """Reads sources on a drift-free beat.

    Parameters
    ----------
    publisher
        Where ticks go; None records without a live stream.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        settings: Settings,
        *,
        publisher: "Publisher | None" = None,
        clock: Clock | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._settings = settings
        self._publisher = publisher
        self._clock = clock or SystemClock()
        self._owned = [
            tuple(replace(d, node=d.node or settings.node) for d in s.devices) for s in self._sources
        ]
        self._provenance = Provenance(
            settings.node,
            settings.name,
            ", ".join(source.name for source in self._sources if source.devices),
            any(source.simulated for source in self._sources),
            settings.interval,
            tuple(device for devices in self._owned for device in devices),
        )
        self._segment: SegmentWriter | None = None
        self._segment_ns = self._flushed_ns = 0
        self._waiting: list[Sample] = []
        self._failing: set[str] = set()
        self._events: list[str] = []
        self._seq = 0

    def run(self, ended: threading.Event, *, parent: int | None = None) -> None:
        """Tick until the event is set, or until this process has another parent than `parent`; then close."""
        started_ns = self._clock.monotonic_ns()
        beat = 0
        try:
            while not ended.is_set() and parent in (None, os.getppid()):
                self.tick()
                passed = (self._clock.monotonic_ns() - started_ns) / 1e9
                # After a delay the beats that were missed are left out rather than made up for.
                beat = max(beat + 1, int(passed / self._settings.interval) + 1)
                self._clock.wait(beat * self._settings.interval - passed, ended)
        finally:
            self.close()

    def tick(self) -> None:
        """Read every source once, publish, and write when it is time."""
        samples = [s for i, source in enumerate(self._sources) for s in self._read(source, self._owned[i])]
        self._waiting += samples
        now_ns = self._clock.monotonic_ns()
        if self._segment is None or now_ns - self._flushed_ns >= self._settings.flush * 1e9:
            self._flush(now_ns)
        self._publish(samples)

    def close(self) -> None:
        """Write what waits, mark the segment as complete, say goodbye and close the sources."""
        self._flush(self._clock.monotonic_ns())
        self._finish()
        self._publish([], ended=True)
        if self._publisher is not None:
            self._publisher.close()
        for source in self._sources:
            source.close()

    def _read(self, source: Source, devices: tuple[Device, ...]) -> list[Sample]:
        try:
            samples = source.read()
        except Exception as error:  # noqa: BLE001 - one source must not end the others
            self._trouble(source.name, f"{source.name} can't be read: {error}")
            time_ns, monotonic_ns = self._clock.time_ns(), self._clock.monotonic_ns()
            return [Sample(time_ns, monotonic_ns, d.uuid, dict.fromkeys(METRICS[d.kind])) for d in devices]
        self._relief(source.name, f"{source.name} can be read again")
        return samples

    def _flush(self, now_ns: int) -> None:
        """Write what waits; after an error begin a new segment next time, because this one may be torn."""
        self._flushed_ns = now_ns
        if not self._provenance.devices:
            return
        try:
            if self._segment is not None and now_ns - self._segment_ns >= self._settings.rotate * 1e9:
                self._finish()
            if self._segment is None:
                self._settings.telemetry.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._segment = SegmentWriter(
                    self._settings.telemetry, self._provenance, start_ns=self._clock.time_ns()
                )
                self._segment_ns = now_ns
            self._segment.write(self._waiting)
        except OSError as error:
            if self._segment is not None:
                self._segment.abandon()
                self._segment = None
            most = int(len(self._provenance.devices) * _PATIENCE_SECONDS / self._settings.interval)
            self._waiting = self._waiting[-max(1, most) :]
            self._trouble("disk", f"{self._settings.telemetry} can't be written: {error}")
            return
        self._waiting = []
        self._relief("disk", f"{self._settings.telemetry} can be written again")

    def _finish(self) -> None:
        if self._segment is not None:
            segment, self._segment = self._segment, None
            try:
                segment.close()
            except OSError as error:
                segment.abandon()
                self._trouble("disk", f"A segment can't be closed: {error}")

    def _publish(self, samples: list[Sample], *, ended: bool = False) -> None:
        events, self._events = tuple(self._events), []
        if self._publisher is None:
            return
        from .live import Tick  # noqa: PLC0415 - recording alone needs no ZeroMQ

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
        self._publisher.send(tick)

    def _trouble(self, what: str, message: str) -> None:
        if what not in self._failing:
            self._failing.add(what)
            self._events.append(message)
            log.warning(message)

    def _relief(self, what: str, message: str) -> None:
        if what in self._failing:
            self._failing.discard(what)
            self._events.append(message)
            log.warning(message)


def open_sources(
    specs: Sequence[str],
    *,
    interval: float,
    root_pid: int | None,
    environment: Mapping[str, str],
    clock: Clock,
) -> list[Source]:
    """The sources that can be opened; what can't is logged, one line each.

    Raises
    ------
    SourceError
        None of them can.
    """
    sources: list[Source] = []
    refused: SourceError | None = None
    for spec in specs:
        try:
            sources.append(
                open_source(spec, interval=interval, root_pid=root_pid, environment=environment, clock=clock)
            )
        except SourceError as error:
            refused = error
            log.warning("%s", error)
    if not sources and refused is not None:
        raise refused
    return sources


def main(arguments: Sequence[str] | None = None) -> int:
    """Record until SIGTERM, SIGINT or SIGHUP; 0, or 1 when no source could be opened."""
    given = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s recorder: %(message)s")
    # Samples say what a person works on: they are theirs alone.
    os.umask(0o077)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    # Named by who starts it: a parent that ends while this program is loaded has been replaced by now.
    parent = os.getppid() if given.with_parent == 0 else given.with_parent
    clock = SystemClock()
    environment = {**os.environ, "GIPFEL_NODE": given.node}
    try:
        sources = open_sources(
            given.source,
            interval=given.interval,
            root_pid=given.root_pid,
            environment=environment,
            clock=clock,
        )
    except SourceError:
        return 1
    settings = Settings(given.telemetry, given.node, given.name, given.interval, given.flush)
    Recorder(sources, settings, publisher=_publisher(given), clock=clock).run(ended, parent=parent)
    return 0


def _publisher(given: argparse.Namespace) -> "Publisher | None":
    if given.sockets is None:
        return None
    try:
        from .live import Publisher  # noqa: PLC0415 - recording alone needs no ZeroMQ

        return Publisher(given.sockets, given.name)
    except (SourceError, ImportError) as error:
        log.warning("There is no live stream: %s", error)
        return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gipfel_extension.telemetry.recorder", description=__doc__
    )
    parser.add_argument("--telemetry", type=Path, required=True, help="folder of the segments")
    parser.add_argument("--node", required=True, help="this node's name")
    parser.add_argument(
        "--sockets", type=Path, help="folder of the live stream's socket; none: no live stream"
    )
    parser.add_argument("--name", default="job", help="tells the recorders of a run apart (default: job)")
    parser.add_argument("--interval", type=_seconds, default=1.0, help="seconds between samples (default: 1)")
    parser.add_argument("--flush", type=_seconds, default=2.0, help="seconds between writes (default: 2)")
    parser.add_argument(
        "--source", action="append", required=True, help="auto, nvml, host, replay:F, synthetic:N"
    )
    parser.add_argument("--root-pid", type=int, help="process whose tree is the job (default: this one)")
    parser.add_argument(
        "--with-parent", nargs="?", type=int, const=0, help="end when the parent process, of this id, ends"
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.01 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("must be from 0.01 to 3600 seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
