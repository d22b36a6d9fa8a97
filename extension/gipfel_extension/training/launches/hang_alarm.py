"""When a job that makes no progress hangs: one alarm, silent in checkpoints, evaluations and the start-up.

`HangAlarm.observe` is called with what the ranks last reported, about every ten seconds, and returns the next
state. It has no clock and no files: the caller gives the time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Event = Literal["", "alarm", "resumed"]
#: CPU time per second above which a rank is at work.
_BUSY = 0.05


@dataclass(frozen=True)
class RankProgress:
    """Last report of a rank about itself.

    Parameters
    ----------
    steps
        Number of steps since its program started.
    phase
        ``checkpoint``, ``evaluation``, or empty for any other time.
    busy
        CPU time per second; None where unknown.
    """

    steps: int = 0
    phase: str = ""
    busy: float | None = None


@dataclass(frozen=True)
class HangLimits:
    """Seconds without progress after which a job hangs.

    Parameters
    ----------
    least_s, factor
        Between steps: `factor` times the longest time without a step so far, and at least `least_s`.
    start_s
        Before the first step.
    phase_s
        In checkpoints and evaluations, at least; `factor` times the longest so far, if that is more.
    """

    least_s: float = 300.0
    factor: float = 5.0
    start_s: float = 1800.0
    phase_s: float = 1800.0

    def scaled(self, factor: float) -> "HangLimits":
        """Return limits that are `factor` times as long."""
        times = {name: getattr(self, name) * factor for name in ("least_s", "start_s", "phase_s")}
        return replace(self, **times)


@dataclass(frozen=True)
class HangAlarm:
    """State of the alarm of one start of a job's ranks.

    Parameters
    ----------
    begin_s
        When the ranks were started, on the clock of `observe`.
    alarm_s
        Time of the alarm; None while there is none.
    event
        What the last observation changed.
    longest_s, longest_phase_s
        Longest time without a step so far, outside of phases and in them.
    """

    begin_s: float
    limits: HangLimits = HangLimits()
    alarm_s: float | None = None
    event: Event = ""
    longest_s: float = 0.0
    longest_phase_s: float = 0.0
    pause_s: float = 0.0
    _steps: Mapping[int, int] = field(default_factory=dict)
    _stepped_s: float | None = None
    _alive_s: float | None = None
    _phase_s: float | None = None
    _in_phase: bool = False

    def observe(
        self,
        now_s: float,
        reports: Mapping[int, RankProgress],
        *,
        on_gpus: bool = False,
        gpus_active: bool = False,
    ) -> "HangAlarm":
        """Return the state after an observation.

        Parameters
        ----------
        reports
            The last report of each rank, however old it is.
        on_gpus
            Whether the ranks use GPUs.
        gpus_active
            Whether tensor cores of any of them were active since the last observation.
        """
        steps = {rank: report.steps for rank, report in reports.items()}
        stepped = any(count != self._steps.get(rank, 0) for rank, count in steps.items())
        started = self._stepped_s is not None
        in_phase = any(report.phase for report in reports.values())
        now = replace(self, event="", _steps=steps)
        if stepped:
            now = now.stepped(now_s)
        elif gpus_active if on_gpus else _at_work(list(reports.values()), started=started):
            now = replace(now, _alive_s=now_s)
        if in_phase != self._in_phase or (in_phase and stepped):
            now = replace(now, _in_phase=in_phase, _phase_s=now_s)
        if now.alarm_s is None and now.quiet_s(now_s) >= now.limit_s:
            now = replace(now, alarm_s=now_s, event="alarm")
        return now

    def stepped(self, now_s: float) -> "HangAlarm":
        """Return the state after a step, which ends an alarm."""
        changes: dict[str, object] = {"_stepped_s": now_s}
        if self._stepped_s is not None:
            pause_s = now_s - self._stepped_s
            # A phase that has ended since the last step explains the pause.
            name = "longest_phase_s" if self._phase_since(self._stepped_s) else "longest_s"
            changes[name] = max(getattr(self, name), pause_s)
        if self.alarm_s is not None:
            pause_s = now_s - (self.begin_s if self._stepped_s is None else self._stepped_s)
            changes |= {"alarm_s": None, "event": "resumed", "pause_s": pause_s}
        return replace(self, **changes)  # type: ignore[arg-type]

    def _phase_since(self, time_s: float) -> bool:
        return self._in_phase or (self._phase_s is not None and self._phase_s >= time_s)

    @property
    def can_tell(self) -> bool:
        """Return whether a step was seen: before the first one, it may be starting, or invisible."""
        return self._stepped_s is not None

    def quiet_s(self, now_s: float) -> float:
        """Return for how long nothing has shown that the ranks work."""
        return now_s - self._quiet_since_s

    @property
    def _quiet_since_s(self) -> float:
        """When the ranks last stepped, worked, or entered or left a phase."""
        times = (self._stepped_s, self._alive_s, self._phase_s)
        return max((self.begin_s, *(each for each in times if each is not None)))

    @property
    def limit_s(self) -> float:
        """Seconds without progress after which the job hangs, as it is now."""
        limits = self.limits
        if self._in_phase:
            return max(limits.phase_s, limits.factor * self.longest_phase_s)
        if self._stepped_s is None:
            return limits.start_s
        return max(limits.least_s, limits.factor * self.longest_s)


def _at_work(reports: Sequence[RankProgress], *, started: bool) -> bool:
    """Return whether ranks on CPUs work although none of them has ended a step.

    Most must be busy, since one that loops forever would be, too; before the first step one of them is
    enough, which may prepare data for the others. On GPUs this says nothing: a rank that waits for NCCL keeps
    its core busy.
    """
    busy = sum(1 for report in reports if report.busy is not None and report.busy > _BUSY)
    return busy > len(reports) / 2 if started else busy > 0
