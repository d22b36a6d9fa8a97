"""Events of a recorder, which are written to its events file and published with the next tick.

:class:`ClockWatch` detects clock steps and stalls, :class:`ThrottleWatch` detects throttled GPUs.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from ..telemetry.events import Event, events_file
from ..telemetry.files import open_log
from ..telemetry.sample import Sample
from ..telemetry.sources import Clock

log = logging.getLogger("gipfel.recorder")

#: Maximum number of events that wait for the disk.
_MAX_WAITING = 1000
#: A clock that is slewed gains or loses at most 0.5 ms per second. A change of more than `_STEP_NS` plus
#: `_MAX_SLEW` of the elapsed time is a step.
_STEP_NS = 250_000_000
_MAX_SLEW = 0.002
#: If reading the clocks took longer than this, they are not compared: the process was interrupted.
_MAX_READ_NS = 50_000_000
#: The recorder stalled if the time since the last check exceeds this many intervals, and also one interval
#: plus this many seconds.
_STALL_INTERVALS = 3.0
_STALL_SECONDS = 5.0
#: Texts by bit of NVML's ``nvmlClocksEventReasons``, without the software power cap: it is normal under load.
_REASONS = {
    0x8: "its hardware reduces its clock",
    0x20: "its temperature is too high",
    0x40: "its temperature is too high",
    0x80: "its power supply is limited",
}

#: When a GPU is throttled again after this long without, that is a new event.
_QUIET_NS = 60 * 10**9


class Journal:
    """Event log of one recorder.

    Parameters
    ----------
    telemetry
        The run folder's ``telemetry``, which may not exist yet.
    """

    def __init__(self, telemetry: Path, node: str, recorder: str, clock: Clock) -> None:
        self._path = events_file(telemetry, node, recorder)
        self._node = node
        self._clock = clock
        self._unpublished: list[Event] = []
        self._unwritten: list[Event] = []
        self._failing: set[str] = set()
        self._logged: set[str] = set()
        self._partial_line = False

    def note(self, kind: str, message: str, device: str = "", *, published: bool = True) -> None:
        """Add an event with the current time.

        Parameters
        ----------
        published
            False for events that are only written to the file and not published with the next tick.
        """
        self.add(Event(self._clock.time_ns(), self._node, kind, device, message), published=published)

    def add(self, event: Event, *, published: bool = True) -> None:
        """Add an event."""
        self._unwritten = [*self._unwritten, event][-_MAX_WAITING:]
        if published:
            self._unpublished = [*self._unpublished, event][-_MAX_WAITING:]
            log.warning(event.message)

    def report_problem(self, problem: str, kind: str, message: str) -> None:
        """Add an event when a problem begins; do nothing while it lasts."""
        if problem not in self._failing:
            self._failing.add(problem)
            self.note(kind, message)

    def report_recovery(self, problem: str, kind: str, message: str) -> None:
        """Add an event if a reported problem ends."""
        if problem in self._failing:
            self._failing.discard(problem)
            self.note(kind, message)

    @contextmanager
    def log_errors(self, task: str) -> Iterator[None]:
        """Run a block whose errors must not end the recording; log the first error of each task."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - recording continues after any error
            if task not in self._logged:
                self._logged.add(task)
                log.warning("Cannot read the %s: %s", task, error)

    def drain(self) -> tuple[Event, ...]:
        """Return the events that have not been published yet, and mark them as published."""
        unpublished, self._unpublished = tuple(self._unpublished), []
        return unpublished

    def write(self) -> None:
        """Append the unwritten events to the file; after an error they wait for the next call."""
        if not self._unwritten:
            return
        lines = "".join(json.dumps(asdict(event)) + "\n" for event in self._unwritten).encode()
        if self._partial_line:
            lines = b"\n" + lines
        try:
            handle = open_log(self._path)
        except OSError:
            return
        written = -1
        with suppress(OSError):
            written = os.write(handle, lines)
        os.close(handle)
        self._partial_line = 0 < written < len(lines) or (self._partial_line and written <= 0)
        if written == len(lines):
            self._unwritten = []


class ClockWatch:
    """Detector of wall clock steps and of stalls of the recorder."""

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
        if second_ns - first_ns > _MAX_READ_NS:
            return False
        before, self._before = self._before, (wall_ns, first_ns)
        if before is None:
            return False
        passed_ns = first_ns - before[1]
        if passed_ns > self._late_ns:
            seconds = passed_ns / 1e9
            self._journal.note(
                "recorder_stalled",
                f"The recorder stalled for {seconds:.1f} s; the samples of this time are missing.",
            )
        step_ns = wall_ns - before[0] - passed_ns
        if abs(step_ns) <= _STEP_NS + _MAX_SLEW * passed_ns:
            return False
        direction = "forward" if step_ns > 0 else "back"
        self._journal.note("clock_step", f"The clock was set {direction} by {abs(step_ns) / 1e9:.1f} s.")
        return True


class ThrottleWatch:
    """Detector of throttled GPUs; adds one event for each GPU and reason."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last_ns: dict[tuple[str, str], int] = {}

    def check(self, samples: Iterable[Sample]) -> None:
        """Check the newest samples."""
        for sample in samples:
            bits = int(sample.values.get("CLOCKS_EVENT_REASONS") or 0)
            for reason in {reason for bit, reason in _REASONS.items() if bits & bit}:
                key = (sample.device, reason)
                last_ns = self._last_ns.get(key)
                if last_ns is None or sample.monotonic_ns - last_ns > _QUIET_NS:
                    self._journal.note("throttle", f"The GPU is throttled: {reason}.", sample.device)
                self._last_ns[key] = sample.monotonic_ns
