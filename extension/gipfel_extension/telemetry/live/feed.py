"""The feed of a view: recorded and live samples as one table, and the state of the recording.

Notebook server and kernel both use it: for a running job, for a job whose recorder was killed, and for an old
run folder.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ..events import read_events
from ..sample import Device, Provenance, Sample, SampleTable
from ..sources import Clock, SystemClock
from ..store.segments import read_samples
from . import LiveReader, Tick

__all__ = ["LiveReader", "SaturationFeed", "SaturationStatus", "Tick"]

State = Literal["live", "starting", "stale", "absent"]

#: A recorder counts as lost after this many intervals without a tick, but not before this many seconds.
SILENT_INTERVALS = 3.0
_SILENT_LIVE_SECONDS = 3.0
#: Minimum seconds without a sample if a recorder sends no ticks: its file is written only every few seconds.
_SILENT_FILE_SECONDS = 12.0
#: Without ticks, and after a gap in them, the segments are reread after this many seconds, which is longer
#: than a recorder buffers samples.
_REREAD_SECONDS = 3.0
#: Maximum difference between the clocks of nodes.
_SKEW_NS = 60 * 10**9
#: Samples are moved into the table when there are more than this, plus this many per device.
_MAX_RECENT_SAMPLES, _MAX_RECENT_PER_DEVICE = 1000, 30


@dataclass(frozen=True)
class SaturationStatus:
    """State of a run's recording, for views.

    ``interval`` is in seconds; ``last_ns`` is the UTC time of the newest sample. ``dropped`` is the number of
    ticks of other nodes that were dropped on the way; their samples are in the segments. ``message`` is a
    sentence for users.
    """

    state: State
    source: str
    simulated: bool
    gpus: int
    interval: float
    last_ns: int | None
    dropped: int
    message: str


@dataclass(frozen=True)
class RecorderState:
    """State of one recorder of a run; ``origin`` is that of its newest segment or tick.

    ``last_ns`` is the time of its newest sample, ``alive_ns`` that of its newest tick (UTC). ``live`` is True
    if it sends ticks, ``seq`` is the number of its newest tick, and ``event`` its newest event.
    """

    origin: Provenance
    last_ns: int | None = None
    alive_ns: int | None = None
    ended: bool = False
    live: bool = False
    seq: int = 0
    dropped: int = 0
    event: str = ""

    def silent_seconds(self, now_ns: int) -> float:
        """Return the seconds since the last sample or tick; 0 before the first one."""
        alive_ns = max(filter(None, (self.last_ns, self.alive_ns)), default=now_ns)
        return (now_ns - alive_ns) / 1e9

    def is_lost(self, now_ns: int) -> bool:
        """Return whether the next sample or tick is overdue."""
        least = _SILENT_LIVE_SECONDS if self.live else _SILENT_FILE_SECONDS
        longest = max(SILENT_INTERVALS * self.origin.interval, least)
        return not self.ended and self.silent_seconds(now_ns) > longest


class SaturationFeed:
    """Samples of one run within a time window that ends at the newest sample.

    One thread calls :meth:`poll`; any thread may call the other methods. Construction and polling read files.

    Parameters
    ----------
    telemetry
        The run folder's ``telemetry``, which may not exist yet.
    sockets
        Directory of the recorders' sockets; None reads only the segments.
    window_s
        Length of the time window in seconds.
    """

    def __init__(
        self,
        telemetry: Path,
        sockets: Path | None = None,
        *,
        window_s: float = 600.0,
        clock: Clock | None = None,
    ) -> None:
        self.window_s = window_s
        self._telemetry = telemetry
        self._sockets = sockets
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._live = LiveReader(sockets) if sockets is not None else None
        self._recorders: dict[tuple[str, str], RecorderState] = {}
        self._table = SampleTable(columns={})
        self._devices: dict[str, Device] = {}
        self._recent: list[Sample] = []
        self._seen: dict[str, set[int]] = {}
        self._reread_ns = 0
        self._refresh()
        # Samples that the recorder is buffering now are older than the first tick, but not in its file yet:
        # the file must be read again.
        self._gap = True

    @property
    def run(self) -> Path:
        """The run folder."""
        return self._telemetry.parent

    def poll(self, timeout: float) -> list[Sample]:
        """Return the samples that arrived since the last call; wait up to `timeout` seconds for the first."""
        new: list[Sample] = []
        if self._live is None:
            self._clock.wait(timeout, threading.Event())
        else:
            tick = self._live.receive(timeout)
            while tick is not None:
                new += self._add_tick(tick)
                tick = self._live.receive(0)
        if self._clock.monotonic_ns() >= self._reread_ns:
            new += self._refresh()
        return new

    def devices(self) -> tuple[Device, ...]:
        """Return the devices of :meth:`table`; a new figure is needed when they change."""
        with self._lock:
            present = active_recorders(list(self._recorders.values()))
            uuids = {device.uuid for recorder in present for device in recorder.origin.devices}
            return tuple(device for uuid, device in self._devices.items() if uuid in uuids)

    def table(self, window_s: float | None = None) -> SampleTable:
        """Return the samples of the last seconds, without those of ended recorders while others run."""
        kept = self.devices()
        with self._lock:
            self._compact()
            table = self._table
            present = active_recorders(list(self._recorders.values()))
            source = ", ".join(each.origin.source for each in present if each.origin.source)
        columns = {device.uuid: table[device.uuid] for device in kept}
        table = replace(table, devices=kept, columns=columns, source=source)
        last = table.last_ns
        return table if last is None else table.between(last - int((window_s or self.window_s) * 1e9))

    def state(self) -> SaturationStatus:
        """Return the state of the recording, with a message for users."""
        starting = self._sockets is not None and any(self._sockets.glob("*.sock"))
        with self._lock:
            return status_of(list(self._recorders.values()), self._clock.time_ns(), starting=starting)

    def close(self) -> None:
        """Close the live stream; must be called by the thread that polls."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def _add_tick(self, tick: Tick) -> list[Sample]:
        with self._lock:
            key = (tick.origin.node, tick.origin.recorder)
            known = self._recorders.get(key, RecorderState(tick.origin))
            has_lost_ticks = known.live and tick.seq not in (1, known.seq + 1)
            if has_lost_ticks or not self._gap:
                self._schedule_reread()
            self._gap |= has_lost_ticks
            self._recorders[key] = replace(
                known,
                origin=tick.origin,
                last_ns=max((s.time_ns for s in tick.samples), default=known.last_ns),
                alive_ns=self._clock.time_ns(),
                ended=tick.ended,
                live=True,
                seq=tick.seq,
                dropped=tick.dropped,
                event=tick.events[-1].message if tick.events else known.event,
            )
            self._devices.update({device.uuid: device for device in tick.origin.devices})
            if any(event.kind == "clock_step" for event in tick.events):
                self._compact()
                self._table = self._until_now(self._table)
            new = [sample for sample in tick.samples if self._is_new(sample)]
            self._recent += new
            if len(self._recent) > _MAX_RECENT_SAMPLES + _MAX_RECENT_PER_DEVICE * len(self._devices):
                self._compact()
            return new

    def _refresh(self) -> list[Sample]:
        """Reread the segments and return the samples that are new."""
        fresh = read_samples(self._telemetry, since_ns=self._clock.time_ns() - int(self.window_s * 1e9))
        if not fresh.rows and not self._table.rows:
            # An old run: use its last window.
            fresh = read_samples(self._telemetry)
            last = fresh.last_ns
            fresh = fresh if last is None else fresh.between(last - int(self.window_s * 1e9))
        if any(event.kind == "clock_step" for event in read_events(self._telemetry)):
            fresh = self._until_now(fresh)
        with self._lock:
            self._gap = False
            self._schedule_reread()
            self._update_recorders(fresh)
            new = [s for device in fresh.devices for s in fresh.samples(device) if self._is_new(s)]
            self._devices.update({device.uuid: device for device in fresh.devices})
            self._table = SampleTable.union((self._table, replace(fresh, segments=())))
            self._compact()
            return sorted(new, key=lambda sample: sample.time_ns)

    def _until_now(self, table: SampleTable) -> SampleTable:
        """Drop samples with future times, from before a clock was set back: they would hide newer samples."""
        return table.between(None, self._clock.time_ns() + _SKEW_NS + 1)

    def _update_recorders(self, fresh: SampleTable) -> None:
        """Update the state of each recorder from its newest segment."""
        for segment in fresh.segments:
            origin = segment.provenance
            if not origin.recorder:
                continue
            key = (origin.node, origin.recorder)
            recorder = self._recorders.get(key, RecorderState(origin))
            newest = max(filter(None, (recorder.last_ns, segment.last_ns)), default=None)
            if segment.last_ns is None or segment.last_ns == newest:
                ended = segment.state == "closed" and not self._has_next_segment(recorder)
                recorder = replace(recorder, origin=origin, ended=ended)
            self._recorders[key] = replace(recorder, last_ns=newest)

    def _has_next_segment(self, recorder: RecorderState) -> bool:
        """Return whether a recorder with a closed segment still sends ticks and will write a new segment."""
        silent = recorder.silent_seconds(self._clock.time_ns())
        return recorder.live and not recorder.ended and silent < SILENT_INTERVALS * recorder.origin.interval

    def _schedule_reread(self) -> None:
        self._reread_ns = self._clock.monotonic_ns() + int(_REREAD_SECONDS * 1e9)

    def _is_new(self, sample: Sample) -> bool:
        times = self._seen.setdefault(sample.device, set())
        known = sample.time_ns in times
        times.add(sample.time_ns)
        return not known

    def _compact(self) -> None:
        """Move recent samples into the table and drop those outside the window."""
        if self._recent or len(self._table.devices) != len(self._devices):
            fresh = SampleTable.from_samples(self._recent, self._devices.values())
            self._table = SampleTable.union((self._table, fresh))
            self._recent = []
        last = self._table.last_ns
        if last is not None:
            first = last - int(self.window_s * 1e9)
            self._table = self._table.between(first)
            self._seen = {device: {t for t in times if t >= first} for device, times in self._seen.items()}


def active_recorders(recorders: Sequence[RecorderState]) -> list[RecorderState]:
    """Return the running recorders, or all where none is running."""
    return [recorder for recorder in recorders if not recorder.ended] or list(recorders)


def status_of(recorders: Sequence[RecorderState], now_ns: int, *, starting: bool) -> SaturationStatus:
    """Return the state of a run's recording from its recorders.

    Parameters
    ----------
    starting
        True where a socket shows that a recorder has started which has not sent a tick yet.
    """
    present = active_recorders(recorders)
    devices = {device.uuid: device for recorder in present for device in recorder.origin.devices}
    gpus = sum(device.kind == "gpu" for device in devices.values())
    last_ns = max((r.last_ns for r in present if r.last_ns is not None), default=None)
    state, message = _state_text(present, now_ns, last_ns, starting=starting, gpus=gpus)
    return SaturationStatus(
        state=state,
        source=", ".join(each.origin.source for each in present if each.origin.source),
        simulated=any(device.simulated for device in devices.values()),
        gpus=gpus,
        interval=max((recorder.origin.interval for recorder in present), default=0.0),
        last_ns=last_ns,
        dropped=sum(recorder.dropped for recorder in present),
        message=message,
    )


def absent_status(message: str) -> SaturationStatus:
    """Return the status without samples; `message` is the reason."""
    return replace(status_of((), 0, starting=False), interval=1.0, message=message)


def _state_text(
    present: Sequence[RecorderState], now_ns: int, last_ns: int | None, *, starting: bool, gpus: int
) -> tuple[State, str]:
    lost = next((recorder for recorder in present if recorder.is_lost(now_ns)), None)
    if not present and starting:
        return "starting", "The recorder is starting."
    if not present:
        return "absent", "Nothing is recorded for this run: no recorder was started."
    if all(recorder.ended for recorder in present):
        return "stale", f"The recording ended at {_clock_time(last_ns)}."
    if lost is not None:
        silent = lost.silent_seconds(now_ns)
        return "stale", f"{_display_name(lost)} has sent nothing for {silent:.0f} s; its samples are kept."
    if any(recorder.origin.devices and recorder.last_ns is None for recorder in present):
        return "starting", "The recorder is running; waiting for the first sample."
    return "live", _live_text(present, gpus)


def _live_text(present: Sequence[RecorderState], gpus: int) -> str:
    dropped = {recorder.origin.node: recorder.dropped for recorder in present if recorder.dropped}
    if dropped:
        nodes = f"{min(dropped)} and {len(dropped) - 1} more nodes" if len(dropped) > 1 else min(dropped)
        count = sum(dropped.values())
        return f"{count} ticks of {nodes} were dropped on the way; the run folder has their samples."
    events = [recorder.event for recorder in present if recorder.event]
    if events:
        return events[-1]
    if not gpus:
        return "This job has no GPU; the host is recorded."
    return f"{gpus} GPU{'s' if gpus != 1 else ''}, a sample every {present[0].origin.interval:g} s."


def _display_name(recorder: RecorderState) -> str:
    name = recorder.origin.recorder
    return f"{'The recorder' if name == 'job' else f'The recorder {name!r}'} on {recorder.origin.node}"


def _clock_time(time_ns: int | None) -> str:
    if time_ns is None:
        return "an unknown time"
    return f"{datetime.fromtimestamp(time_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
