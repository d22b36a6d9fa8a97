"""Reports of a launch to its user: the hang alarm, which its supervisor polls, and the launch's end."""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from gipfel_cluster.notify.event import Event
from gipfel_cluster.notify.reporter import Reporter
from gipfel_cluster.workloads.directory import workload_id

from ...telemetry.events import report_failure, report_to_job
from ...telemetry.files import read_regular
from ..record.state import HangNotice, LaunchState
from .hang_alarm import HangAlarm, HangLimits, RankProgress
from .hang_cause import HangCause, find_cause

#: The limits of `HangLimits` are for this time; others are longer or shorter in proportion.
DEFAULT_S = 300.0
_LOOK_S = 10.0
_MAX_RANKS = 100_000
_PROGRESS_BYTES = 4096
#: GPUs are only looked at once nothing else has shown work for this part of the limit.
_QUIET_PART = 0.3
_SAMPLES_NS = 60 * 10**9
_ACTIVE = 0.001
#: A launch that completed within this time is not reported.
_SHORT_NS = 60 * 10**9


class HangWatch:
    """Alarm of one launch.

    Parameters
    ----------
    after_s
        Seconds between steps after which a job hangs, at least; 0 for no alarm.
    clock
        Seconds that never go back.
    cause
        Finds the cause; it may take a minute, and runs in a thread of its own.
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
        self._alarm = HangAlarm(0.0)
        self._finding: threading.Thread | None = None
        self._found: HangNotice | None = None

    def poll(self, state: LaunchState) -> HangNotice | None:
        """Return the notice to write: the last one, a new one, or one that has ended."""
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
        self._alarm = self._alarm.observe(now, self._progress(), on_gpus=on_gpus, gpus_active=active)
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
                # A rank that is being written to is read the next time.
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
    """Return whether tensor cores of a GPU of the launch's ranks were active in the last minute."""
    import numpy as np  # noqa: PLC0415 - rarely needed, and slow to import

    from ...telemetry.ranks import gpu_uuids_by_rank, read_ranks  # noqa: PLC0415
    from ...telemetry.store.segments import read_samples  # noqa: PLC0415

    telemetry, metric = Path(state.run, "telemetry"), "PIPE_TENSOR_ACTIVE"
    with suppress(OSError, ValueError):
        since_ns = time.time_ns() - _SAMPLES_NS
        table = read_samples(telemetry, since_ns=since_ns, simulated=False, metrics=(metric,))
        own = {uuid for uuids in gpu_uuids_by_rank(read_ranks(telemetry)).values() for uuid in uuids}
        columns = [table[each.uuid] for each in table.gpus if each.uuid in own or not own]
        return any(bool((np.nan_to_num(each[metric]) > _ACTIVE).any()) for each in columns if metric in each)
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
