"""The recorder's pace, and what the clocks say of it: deadlines that don't drift, steps, and standstills."""

import threading
from collections.abc import Callable

from ..sources import Clock
from .journal import Journal

#: How often a recorder looks whether who started it is still there, whatever its interval.
_GLANCE_SECONDS = 1.0
#: A clock that is steered moves by 0.5 ms per second at most; more than this at once is a step.
_STEP_NS = 250_000_000
_STEERED = 0.002
#: Between two readings of one clock nothing else should take so long; else they say nothing.
_TOGETHER_NS = 50_000_000
_STALL_INTERVALS = 3.0
_STALL_SECONDS = 5.0


class Beat:
    """Ticks at multiples of an interval since the beginning, on the monotonic clock."""

    def __init__(self, clock: Clock, interval: float) -> None:
        self._clock = clock
        self._step_ns = round(interval * 1e9)
        self._started_ns = clock.monotonic_ns()
        self._number = 0

    def wait(self, ended: threading.Event, goes_on: Callable[[], bool]) -> None:
        """Wait for the next beat, or until the event is set or there is no reason to go on.

        Beats that were missed are left out rather than made up for.
        """
        passed = self._clock.monotonic_ns() - self._started_ns
        self._number = max(self._number + 1, passed // self._step_ns + 1)
        deadline_ns = self._started_ns + self._number * self._step_ns
        while not ended.is_set() and goes_on():
            left = (deadline_ns - self._clock.monotonic_ns()) / 1e9
            if left <= 0:
                return
            self._clock.wait(min(left, _GLANCE_SECONDS), ended)


class ClockWatch:
    """Notes steps of the wall clock, and ticks that came much too late."""

    def __init__(self, clock: Clock, interval: float, journal: Journal) -> None:
        self._clock = clock
        self._late_ns = int(max(_STALL_INTERVALS * interval, interval + _STALL_SECONDS) * 1e9)
        self._journal = journal
        self._before: tuple[int, int] | None = None

    def look(self) -> bool:
        """Compare the clocks; whether the wall clock was set since the last look."""
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
                f"The recorder stood still for {seconds:.1f} s; these samples are missing.",
            )
        step_ns = wall_ns - before[0] - passed_ns
        if abs(step_ns) <= _STEP_NS + _STEERED * passed_ns:
            return False
        way = "forward" if step_ns > 0 else "back"
        self._journal.note("clock_step", f"The clock was set {way} by {abs(step_ns) / 1e9:.1f} s.")
        return True
