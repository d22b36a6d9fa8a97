"""Events of a recorder, written into its events' file and into the next tick.

Beside others' notes: steps of the clock and standstills (:class:`ClockWatch`), and GPUs that are slowed down
(:class:`Throttling`).
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..telemetry.events import Event, events_file
from ..telemetry.files import open_log
from ..telemetry.sample import Sample
from ..telemetry.sources import Clock

log = logging.getLogger("gipfel.recorder")

#: Events that wait for a disk; a flood holds nothing new after so many.
_MOST_WAITING = 1000
#: A clock that is steered moves by 0.5 ms per second at most; more than this at once is a step.
_STEP_NS = 250_000_000
_STEERED = 0.002
#: Between two readings of one clock nothing else should take so long; else they are not compared.
_TOGETHER_NS = 50_000_000
_STALL_INTERVALS = 3.0
_STALL_SECONDS = 5.0
#: Bits of NVML's ``nvmlClocksEventReasons``. A power cap by software is how a GPU under load works: no event.
_REASONS = {
    0x8: "its hardware slows it down",
    0x20: "its temperature slows it down",
    0x40: "its temperature slows it down",
    0x80: "its power supply slows it down",
}

#: Quiet for so long, a GPU that is slowed down again is news.
_QUIET_NS = 60 * 10**9


class Journal:
    """The events of one recorder.

    Parameters
    ----------
    telemetry
        The run folder's ``telemetry``; it needn't be there yet.
    """

    def __init__(self, telemetry: Path, node: str, recorder: str, clock: Clock) -> None:
        self._path = events_file(telemetry, node, recorder)
        self._node = node
        self._clock = clock
        self._unpublished: list[Event] = []
        self._unwritten: list[Event] = []
        self._failing: set[str] = set()
        self._complained: set[str] = set()
        self._torn = False

    def note(self, kind: str, message: str, device: str = "", *, published: bool = True) -> None:
        """Note something that happens now.

        Parameters
        ----------
        published
            False for what is of interest afterwards alone: it goes into the file, not into the next tick.
        """
        self.add(Event(self._clock.time_ns(), self._node, kind, device, message), published=published)

    def add(self, event: Event, *, published: bool = True) -> None:
        """Note something that happened."""
        self._unwritten = [*self._unwritten, event][-_MOST_WAITING:]
        if published:
            self._unpublished = [*self._unpublished, event][-_MOST_WAITING:]
            log.warning(event.message)

    def trouble(self, what: str, kind: str, message: str) -> None:
        """Note the beginning of a trouble, once."""
        if what not in self._failing:
            self._failing.add(what)
            self.note(kind, message)

    def relief(self, what: str, kind: str, message: str) -> bool:
        """Note the end of a trouble, where there was one; whether there was."""
        if what not in self._failing:
            return False
        self._failing.discard(what)
        self.note(kind, message)
        return True

    @contextmanager
    def suppressed(self, what: str) -> Iterator[None]:
        """Run a block whose errors must not end the recording: one line of the log, once."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the samples go on whatever it was
            if what not in self._complained:
                self._complained.add(what)
                log.warning("The %s can't be had: %s", what, error)

    def take(self) -> tuple[Event, ...]:
        """Return the events that were not published yet."""
        unpublished, self._unpublished = tuple(self._unpublished), []
        return unpublished

    def write(self) -> None:
        """Append what isn't written yet; what the disk refuses waits for the next call."""
        if not self._unwritten:
            return
        lines = "".join(json.dumps(event.to_json()) + "\n" for event in self._unwritten).encode()
        if self._torn:
            lines = b"\n" + lines
        try:
            handle = open_log(self._path)
        except OSError:
            return
        written = -1
        with suppress(OSError):
            written = os.write(handle, lines)
        os.close(handle)
        self._torn = 0 < written < len(lines) or (self._torn and written <= 0)
        if written == len(lines):
            self._unwritten = []


class ClockWatch:
    """Detector of steps of the wall clock, and of ticks that came much too late."""

    def __init__(self, clock: Clock, interval: float, journal: Journal) -> None:
        self._clock = clock
        self._late_ns = int(max(_STALL_INTERVALS * interval, interval + _STALL_SECONDS) * 1e9)
        self._journal = journal
        self._before: tuple[int, int] | None = None

    def check(self) -> bool:
        """Compare the clocks; return whether the wall clock was set since the last call."""
        first_ns, wall_ns, second_ns = (
            self._clock.monotonic_ns(),
            self._clock.time_ns(),
            self._clock.monotonic_ns(),
        )
        if second_ns - first_ns > _TOGETHER_NS:
            return False
        before, self._before = self._before, (wall_ns, first_ns)
        if before is None:
            return False
        passed_ns = first_ns - before[1]
        if passed_ns > self._late_ns:
            seconds = passed_ns / 1e9
            self._journal.note(
                "recorder_stalled",
                f"The recorder stalled for {seconds:.1f} s; these samples are missing.",
            )
        step_ns = wall_ns - before[0] - passed_ns
        if abs(step_ns) <= _STEP_NS + _STEERED * passed_ns:
            return False
        way = "forward" if step_ns > 0 else "back"
        self._journal.note("clock_step", f"The clock was set {way} by {abs(step_ns) / 1e9:.1f} s.")
        return True


class Throttling:
    """Detector of throttled GPUs: one event for each GPU and reason."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last_ns: dict[tuple[str, str], int] = {}

    def check(self, samples: Iterable[Sample]) -> None:
        """Look at the newest samples."""
        for sample in samples:
            bits = int(sample.values.get("CLOCKS_EVENT_REASONS") or 0)
            for reason in {reason for bit, reason in _REASONS.items() if bits & bit}:
                key = (sample.device, reason)
                quiet_since = self._last_ns.get(key)
                if quiet_since is None or sample.monotonic_ns - quiet_since > _QUIET_NS:
                    self._journal.note(
                        "throttle", f"The GPU doesn't run at full speed: {reason}.", sample.device
                    )
                self._last_ns[key] = sample.monotonic_ns
