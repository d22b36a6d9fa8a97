"""Reports of a launch to its user: the hang alarm, which its supervisor polls, and the launch's end."""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from gipfel_cluster.notify import Event
from gipfel_cluster.notify.journal import Reporter
from gipfel_cluster.workloads.directory import workload_id

from ...telemetry.events import report_failure, report_to_job
from ...telemetry.files import read_regular
from ..record import HangNotice, LaunchState
from .hang_cause import HangCause, find_cause

AlarmEvent = Literal["", "alarm", "resumed"]
#: CPU time per second above which a rank is at work.
_BUSY = 0.05
#: Default of `after_s`, for which `HangLimits` are made; for another value they are scaled in proportion.
DEFAULT_S = 300.0
_LOOK_S = 10.0
_MAX_RANKS = 100_000
_PROGRESS_BYTES = 4096
#: Samples of GPUs are read only after nothing else has shown work for this fraction of the limit.
_QUIET_PART = 0.3
_SAMPLES_NS = 60 * 10**9
#: Fractions of cycles with activity above which a GPU's pipe counts as computing.
_ACTIVE = {
    "PIPE_TENSOR_ACTIVE": 0.001,
    "PIPE_FP16_ACTIVE": 0.02,
    "PIPE_FP32_ACTIVE": 0.02,
    "PIPE_FP64_ACTIVE": 0.02,
}
#: A launch that completed within this time (ns) is not reported.
_SHORT_NS = 60 * 10**9


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
        CPU seconds per second; None if unknown.
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
        In checkpoints and evaluations: `factor` times the longest so far, and at least `phase_s`.
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
        Time when the ranks were started, on the clock of `observe`.
    alarm_s
        Time of the alarm; None while there is none.
    event
        Change by the last observation: ``alarm``, ``resumed``, or empty.
    longest_s, longest_phase_s
        Longest time without a step so far, outside of phases and in them.
    pause_s
        Seconds without a step before the ranks resumed last.
    """

    begin_s: float
    limits: HangLimits = HangLimits()
    alarm_s: float | None = None
    event: AlarmEvent = ""
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
        writes: bool = False,
    ) -> "HangAlarm":
        """Return the state after an observation.

        Parameters
        ----------
        reports
            The last report of each rank, however old it is.
        on_gpus
            Whether the ranks use GPUs.
        gpus_active
            Whether any of these GPUs computed since the last observation.
        writes
            Whether any rank wrote more than a log since then, as a checkpoint does.
        """
        steps = {rank: report.steps for rank, report in reports.items()}
        stepped = any(count != self._steps.get(rank, 0) for rank, count in steps.items())
        started = self._stepped_s is not None
        in_phase = any(report.phase for report in reports.values())
        now = replace(self, event="", _steps=steps)
        if stepped:
            now = now.stepped(now_s)
        elif writes or (gpus_active if on_gpus else _at_work(list(reports.values()), started=started)):
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
        """Return whether a step was seen; if not, the job may be starting, or its steps can't be observed."""
        return self._stepped_s is not None

    def quiet_s(self, now_s: float) -> float:
        """Return for how long nothing has shown that the ranks work."""
        return now_s - self._quiet_since_s

    @property
    def _quiet_since_s(self) -> float:
        """Time when the ranks last stepped, worked, or entered or left a phase."""
        times = (self._stepped_s, self._alive_s, self._phase_s)
        return max((self.begin_s, *(each for each in times if each is not None)))

    @property
    def limit_s(self) -> float:
        """Seconds without progress after which the job hangs, in its current phase."""
        limits = self.limits
        if self._in_phase:
            return max(limits.phase_s, limits.factor * self.longest_phase_s)
        if self._stepped_s is None:
            return limits.start_s
        return max(limits.least_s, limits.factor * self.longest_s)


def _at_work(reports: Sequence[RankProgress], *, started: bool) -> bool:
    """Return whether ranks on CPUs work although none of them has ended a step.

    More than half must be busy, since a single busy rank may be in an endless loop; before the first step one
    is enough, because it may prepare data for the others. On GPUs this says nothing: a rank that waits for
    NCCL keeps its core busy.
    """
    busy = sum(1 for report in reports if report.busy is not None and report.busy > _BUSY)
    return busy > len(reports) / 2 if started else busy > 0


class HangWatch:
    """Alarm of one launch.

    Parameters
    ----------
    after_s
        Seconds between steps after which a job hangs, at least; 0 for no alarm.
    clock
        Monotonic clock in seconds.
    cause
        Function that finds the cause; it may take a minute, and is called in a thread of its own.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        after_s: float = DEFAULT_S,
        *,
        clock: Callable[[], float] = time.monotonic,
        cause: Callable[[Path], HangCause] = find_cause,
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._limits = HangLimits().scaled(after_s / DEFAULT_S)
        self._after_s = after_s
        self._clock = clock
        self._cause = cause
        self._has_gpus = any(Path(each).exists() for each in ("/dev/nvidiactl", "/dev/kfd"))
        self._look_s = min(_LOOK_S, after_s / 10)
        self._next_s = 0.0
        self._start: tuple[int, int] | None = None
        self._since_ns = 0
        self._written_ns: dict[str, int] = {}
        self._alarm = HangAlarm(0.0)
        self._finding: threading.Thread | None = None
        self._found: HangNotice | None = None

    def poll(self, state: LaunchState) -> HangNotice | None:
        """Return the notice for the launch's state: the last, a new, or an ended one; None without any."""
        now = self._clock()
        if not self._after_s or now < self._next_s:
            return state.hang
        self._next_s = now + self._look_s
        start = state.attempt, state.restarts
        if start != self._start:
            self._start, self._alarm = start, HangAlarm(now, self._limits)
            self._since_ns = time.time_ns()
            self._found = None
            return _ended(state.hang)
        on_gpus = bool(state.gpus) and self._has_gpus
        quiet = self._alarm.quiet_s(now) > _QUIET_PART * self._alarm.limit_s
        active = on_gpus and quiet and gpus_active(state)
        self._alarm = self._alarm.observe(
            now, self._progress(), on_gpus=on_gpus, gpus_active=active, writes=self._ranks_write()
        )
        if self._alarm.event == "alarm":
            seconds = round(self._alarm.quiet_s(now))
            self._finding = threading.Thread(target=self._find, args=(state, seconds), daemon=True)
            self._finding.start()
        elif self._alarm.event == "resumed":
            self._found = None
            self._report(state, "hang_over", f"the ranks continue after {self._alarm.pause_s:.0f} s.")
            return _ended(state.hang)
        return self._found or state.hang

    def _progress(self) -> dict[int, RankProgress]:
        """Return the last report of each rank since this start of the ranks."""
        found = {}
        with suppress(OSError):
            for entry in islice(os.scandir(self._folder / "progress"), _MAX_RANKS):
                # A file that is being written is read next time.
                with suppress(OSError, ValueError, KeyError, TypeError):
                    content = json.loads(read_regular(Path(entry.path), _PROGRESS_BYTES))
                    if int(content["time_ns"]) >= self._since_ns:
                        busy = content.get("busy")
                        found[int(content["rank"])] = RankProgress(
                            int(content["steps"]),
                            str(content.get("phase") or "")[:20],
                            None if busy is None else float(busy),
                        )
        return found

    def _ranks_write(self) -> bool:
        """Return whether a rank has touched its file since the last time; clocks of nodes may differ."""
        before, self._written_ns = self._written_ns, {}
        with suppress(OSError):
            for entry in islice(os.scandir(self._folder / "writing"), _MAX_RANKS):
                with suppress(OSError):
                    self._written_ns[entry.name] = entry.stat(follow_symlinks=False).st_mtime_ns
        return any(before.get(name) != time_ns for name, time_ns in self._written_ns.items())

    def _find(self, state: LaunchState, seconds: int) -> None:
        """Find the cause, and report it to the run, to the user, and for the state."""
        time_ns = time.time_ns()
        try:
            found = self._cause(self._folder)
        except Exception as error:  # noqa: BLE001 - the launch must not depend on it
            why = f"{type(error).__name__}: {error}"
            found = HangCause(message=f"Cannot tell, because the search failed ({why}).")
        if self._alarm.can_tell or found.ranks:
            message = f"No rank has ended a step for {seconds} s. {found.message}"
        else:
            message = (
                f"Cannot tell whether the launch hangs: it has shown no step for {seconds} s. Its ranks "
                f"prepare something, wait for each other, or don't log steps: log(step=…). {found.message}"
            )
        if self._alarm.alarm_s is None:
            return  # the ranks have continued meanwhile
        self._found = HangNotice(time_ns=time_ns, message=message, ranks=found.ranks)
        self._report(state, "hang", message)
        identifier = workload_id(self._folder)
        event = Event.of(
            "hang",
            f"launch {state.name} ({identifier})",
            message,
            run=Path(state.run).name,
            workload=f"launch:{identifier}",
            occurrence=str(time_ns),
        )
        reporter = Reporter(self._environment)
        reporter.report(event)
        reporter.finish()

    def _report(self, state: LaunchState, kind: str, message: str) -> None:
        name = f"Launch {self._folder.name}: "
        report_to_job({**self._environment, "GIPFEL_RUN": state.run}, kind, name + message, "hangs")


def _ended(notice: HangNotice | None) -> HangNotice | None:
    if notice is None or notice.ended_ns is not None:
        return notice
    return notice.model_copy(update={"ended_ns": time.time_ns()})


def gpus_active(state: LaunchState) -> bool:
    """Return whether a pipe of a GPU of the launch's ranks computed in the last minute.

    A rank that waits for NCCL keeps its GPU busy, but not with arithmetic: tensor cores are idle then, and
    other pipes do little more than compute addresses (an assumption, not measured).
    """
    import numpy as np  # noqa: PLC0415 - rarely needed, and slow to import

    from ...telemetry.ranks import gpu_uuids_by_rank, read_ranks  # noqa: PLC0415
    from ...telemetry.store.segments import read_samples  # noqa: PLC0415

    telemetry = Path(state.run, "telemetry")
    with suppress(OSError, ValueError):
        since_ns = time.time_ns() - _SAMPLES_NS
        table = read_samples(telemetry, since_ns=since_ns, simulated=False, metrics=tuple(_ACTIVE))
        own = {uuid for uuids in gpu_uuids_by_rank(read_ranks(telemetry)).values() for uuid in uuids}
        columns = [table[each.uuid] for each in table.gpus if each.uuid in own or not own]
        return any(
            bool((np.nan_to_num(each[metric]) > least).any())
            for each in columns
            for metric, least in _ACTIVE.items()
            if metric in each
        )
    return False


def report_end(folder: Path, state: LaunchState, environment: Mapping[str, str]) -> None:
    """Report the end of a launch; it never raises, and waits a few seconds at most.

    A launch in a job of its own leaves only the reason of its failure in the run folder: its job reports the
    end. A launch that completed within a minute is not reported: its user is still looking at it.
    """
    failed = state.outcome not in {"completed", "stopped"}
    if not state.in_job:
        if failed:
            report_failure({**environment, "GIPFEL_RUN": state.run}, state.reason)
        return
    if not failed and (state.ended_ns or 0) - (state.started_ns or 0) < _SHORT_NS:
        return
    identifier = workload_id(folder)
    event = Event.of(
        "failed" if failed else "ended",
        f"Launch {state.name} ({identifier})",
        state.reason or f"Its outcome: {state.outcome}.",
        run=Path(state.run).name,
        workload=f"launch:{identifier}",
    )
    reporter = Reporter(environment)
    reporter.report(event)
    reporter.finish()
