"""What the samples of a run are worth now: live, starting, stale or absent, and one line that says so."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TypedDict

from .sample import Device

State = Literal["live", "starting", "stale", "absent"]

#: Silence after which a recorder counts as gone: this many intervals, and at least so many seconds.
SILENT_INTERVALS = 3.0
_SILENT_LIVE_SECONDS = 3.0
#: Longer where only its file is seen, which is written every few seconds.
_SILENT_FILE_SECONDS = 12.0


class Status(TypedDict):
    """The state of a run's samples; ``last_ns`` is UTC, ``interval`` seconds.

    ``dropped`` counts ticks of other nodes that found no room on their way here; the segments hold them.
    """

    state: State
    source: str
    simulated: bool
    gpus: int
    interval: float
    last_ns: int | None
    dropped: int
    message: str


@dataclass
class RecorderState:
    """What is known of one recorder of the run.

    ``last_ns`` is the time of its newest sample, ``heard_ns`` that of its newest sign of life.
    """

    name: str
    node: str
    source: str = ""
    interval: float = 1.0
    last_ns: int | None = None
    heard_ns: int | None = None
    ended: bool = False
    live: bool = False
    seq: int = 0
    dropped: int = 0
    event: str = ""
    devices: dict[str, Device] = field(default_factory=dict)

    def silent_seconds(self, now_ns: int) -> float:
        """Seconds since it was last heard of, 0 before the first time."""
        heard = max(filter(None, (self.last_ns, self.heard_ns)), default=now_ns)
        return (now_ns - heard) / 1e9

    def lost(self, now_ns: int) -> bool:
        """Whether it should have said something by now."""
        least = _SILENT_LIVE_SECONDS if self.live else _SILENT_FILE_SECONDS
        return not self.ended and self.silent_seconds(now_ns) > max(SILENT_INTERVALS * self.interval, least)


def shown(recorders: Sequence[RecorderState]) -> list[RecorderState]:
    """Those that run; all of them when none does."""
    return [recorder for recorder in recorders if not recorder.ended] or list(recorders)


def judge(recorders: Sequence[RecorderState], now_ns: int, *, starting: bool) -> Status:
    """Sum up a run's recorders.

    Parameters
    ----------
    starting
        True where there is a sign, such as a socket, of a recorder that hasn't spoken yet.
    """
    present = shown(recorders)
    devices = {uuid: device for recorder in present for uuid, device in recorder.devices.items()}
    gpus = sum(device.kind == "gpu" for device in devices.values())
    last_ns = max((r.last_ns for r in present if r.last_ns is not None), default=None)
    state, message = _words(present, now_ns, last_ns, starting=starting, gpus=gpus)
    return Status(
        state=state,
        source=", ".join(recorder.source for recorder in present if recorder.source),
        simulated=any(device.simulated for device in devices.values()),
        gpus=gpus,
        interval=max((recorder.interval for recorder in present), default=0.0),
        last_ns=last_ns,
        dropped=sum(recorder.dropped for recorder in present),
        message=message,
    )


def _words(
    present: Sequence[RecorderState], now_ns: int, last_ns: int | None, *, starting: bool, gpus: int
) -> tuple[State, str]:
    lost = next((recorder for recorder in present if recorder.lost(now_ns)), None)
    if not present and starting:
        return "starting", "The recorder is starting."
    if not present:
        return "absent", "Nothing is recorded for this run: no recorder was started."
    if all(recorder.ended for recorder in present):
        return "stale", f"The recording ended at {_clock_time(last_ns)}."
    if lost is not None:
        silent = lost.silent_seconds(now_ns)
        return "stale", f"{_named(lost)} has been silent for {silent:.0f} s; what it recorded is kept."
    if any(recorder.devices and recorder.last_ns is None for recorder in present):
        return "starting", "The recorder runs; the first sample is on its way."
    return "live", _live_words(present, gpus)


def _live_words(present: Sequence[RecorderState], gpus: int) -> str:
    dropped = {recorder.node: recorder.dropped for recorder in present if recorder.dropped}
    if dropped:
        nodes = f"{min(dropped)} and {len(dropped) - 1} more nodes" if len(dropped) > 1 else min(dropped)
        return f"{sum(dropped.values())} ticks of {nodes} were dropped on the way; the run folder has them."
    events = [recorder.event for recorder in present if recorder.event]
    if events:
        return events[-1]
    if not gpus:
        return "This job has no GPU; the host is recorded."
    return f"{gpus} GPU{'s' if gpus != 1 else ''}, a sample every {present[0].interval:g} s."


def _named(recorder: RecorderState) -> str:
    kind = "The recorder" if recorder.name == "job" else f"The recorder {recorder.name!r}"
    return f"{kind} on {recorder.node}"


def _clock_time(time_ns: int | None) -> str:
    if time_ns is None:
        return "an unknown time"
    return f"{datetime.fromtimestamp(time_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
