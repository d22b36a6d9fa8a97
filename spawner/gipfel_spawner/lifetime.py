"""Server lifetime: activity reports, time extension, culling, audit log.

`ActivityReport` is what a running server reports every half minute and `LifetimeStatus` the hub's answer;
`ServerLifetime` keeps both for one server.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

from pydantic import Field, StrictBool, StrictInt, field_validator

from gipfel_cluster.model import Frozen, GipfelError, Line
from gipfel_cluster.scheduler.notation import parse_duration
from gipfel_cluster.scheduler.protocol import JobStatus

from .audit import AuditEvent, AuditLog, Event
from .cluster.watcher import UNSEEN
from .start.placement import ServerPlacement
from .start.spawn_options import SpawnOptions
from .start.traits import SpawnerTraits

#: Seconds after which a report counts no longer: a silent server is not an idle one.
FRESH_S = 300.0
_LONGEST_JOB_S = 30 * 86400

_Seconds = Annotated[StrictInt, Field(ge=0, le=10**9)]


class ActivityReport(Frozen):
    """Use of a server as it reports it itself.

    ``idle_s`` is for how long nothing was used, 0 while something is; ``busy_with`` names what is in use;
    ``warned_s`` is for how long its user has been warned that it will be stopped, None before; ``ends`` is
    when the job's time was to end as its node learned it, in seconds since 1970.
    """

    idle_s: _Seconds
    busy_with: Annotated[tuple[Annotated[Line, Field(max_length=60)], ...], Field(max_length=6)] = ()
    warned_s: _Seconds | None = None
    ends: Annotated[StrictInt, Field(ge=0, le=10**11)] | None = None


class LifetimeStatus(Frozen):
    """End of a server's time as the hub answers it: seconds since 1970; 0 means not at all."""

    ends: int | None = None
    extend_s: int = 0
    idle_limit_s: int = 0
    idle_warning_s: int = 0


class ExtendRequest(Frozen):
    """Request for more time; the site's configuration says how much."""

    extend: StrictBool

    @field_validator("extend")
    @classmethod
    def _is_true(cls, value: bool) -> bool:  # noqa: FBT001
        if not value:
            raise ValueError("give true")
        return value


@dataclass
class ServerActivity:
    """Last report of one server, and when it came."""

    report: ActivityReport | None = None
    received: float = field(default=0.0)

    def set(self, report: ActivityReport) -> None:
        """Keep a report."""
        self.report, self.received = report, time.monotonic()

    @property
    def fresh(self) -> ActivityReport | None:
        """Last report, None where it is too old to count."""
        return self.report if time.monotonic() - self.received < FRESH_S else None

    def cull_due(self, idle_limit_s: int, idle_warning_s: int) -> bool:
        """Return whether the server has been idle, and its user warned, for as long as the site wants."""
        report = self.fresh
        if report is None or idle_limit_s <= 0 or report.warned_s is None:
            return False
        return report.idle_s >= idle_limit_s and report.warned_s >= idle_warning_s


@runtime_checkable
class TimeGiver(Protocol):
    """A scheduler that can give a running job more time."""

    async def extend(self, job_id: str, minutes: int) -> None:
        """Add minutes to the job's limit, as the hub's own user.

        Raises
        ------
        GipfelError
            The scheduler refused, in its own words, or did not answer in time.
        """


class StopOrder(Frozen):
    """Order to stop a server: by whom and why, as the audit log records it."""

    event: Event = "stop"
    by: str = ""
    reason: str = ""
    gpu_hours_saved: float | None = None


class ServerLifetime:
    """Activity, extensions, stop order and audit events of one server.

    Parameters
    ----------
    spawner
        Its configuration (``idle_limit``, ``extend_by``, ``audit_log`` …) and its job.
    """

    def __init__(self, spawner: SpawnerTraits, placement: ServerPlacement, options: SpawnOptions) -> None:
        self._spawner = spawner
        self._placement = placement
        self._options = options
        self.activity = ServerActivity()
        self.stop_order: StopOrder | None = None
        #: Seconds by which the job was extended.
        self.extended = 0
        self._extending = False
        self._starting = False
        self._failure_noted = False

    def begin(self) -> None:
        """Forget the activity of an earlier start."""
        self.activity, self.stop_order = ServerActivity(), None
        self.extended, self._failure_noted, self._starting = 0, False, True

    def on_submitted(self) -> None:
        """Record a start in the audit log, unless the job's number was read from the hub's database."""
        if self._starting:
            self.audit("start")

    def on_start_failed(self, error: Exception) -> None:
        """Record why a start failed."""
        self.audit("failure", reason=getattr(error, "jupyterhub_message", "") or str(error))

    def end_start(self) -> None:
        """Record no further job numbers as starts."""
        self._starting = False

    def on_activity(self, report: ActivityReport) -> LifetimeStatus:
        """Keep a server's report, and return when its time ends."""
        self.activity.set(report)
        return self.status()

    def status(self) -> LifetimeStatus:
        """Return when this server's time ends, and by how much it can be extended."""
        return LifetimeStatus(
            ends=self.ends,
            extend_s=self._extension_s if self._may_extend() else 0,
            idle_limit_s=max(self._spawner.idle_limit, 0),
            idle_warning_s=max(self._spawner.idle_warning, 0),
        )

    @property
    def ends(self) -> int | None:
        """End of the job's time in seconds since 1970; None before the server has reported it."""
        report = self.activity.report
        return None if report is None or report.ends is None else report.ends + self.extended

    @property
    def _extension_s(self) -> int:
        # Slurm counts in minutes.
        extend_by = self._spawner.extend_by
        return (parse_duration(extend_by) or 0) // 60 * 60 if extend_by else 0

    def _may_extend(self) -> bool:
        extension = self._extension_s
        return (
            extension > 0
            and self.extended < self._spawner.extend_times * extension
            and isinstance(self._placement.cluster.scheduler, TimeGiver)
        )

    async def extend(self) -> LifetimeStatus:
        """Give the job more time, as much and as often as the site allows.

        Raises
        ------
        GipfelError
            It allows no more, or the scheduler refused.
        """
        spawner, scheduler = self._spawner, self._placement.cluster.scheduler
        if self._extending or not self._may_extend() or not isinstance(scheduler, TimeGiver):
            raise GipfelError("This server's time can't be extended.", "Save your work before it ends.")
        self._extending = True
        try:
            await scheduler.extend(spawner.job_id, self._extension_s // 60)
            self.extended += self._extension_s
        finally:
            self._extending = False
        spawner.orm_spawner.state = spawner.get_state()
        self.audit("extend", reason=f"by {spawner.extend_by}")
        return self.status()

    @property
    def cull_due(self) -> bool:
        """True where the culling service may stop this server now."""
        return self.activity.cull_due(self._spawner.idle_limit, self._spawner.idle_warning)

    def last_status(self) -> JobStatus:
        """Return the last that is known of the job."""
        if not self._spawner.job_id:
            return JobStatus(answer="unknown")
        return self._placement.watcher.status(self._spawner.job_id)

    def gpu_hours_left(self) -> float:
        """Return the GPU hours that the job still holds, 0 where its end is not known."""
        options = self._options.shown()
        limit = options.time or self._options.defaults()[0].time or "UNLIMITED"
        # The server itself reports when it ends: it may not claim more than it was given.
        most = parse_duration(limit) or _LONGEST_JOB_S
        left = min(max((self.ends or 0) - time.time(), 0), most + self.extended)
        return round((options.gpus or 0) * options.nodes * left / 3600, 3)

    def audit_log(self) -> AuditLog | None:
        """Return the hub's audit log, None where it keeps none."""
        path = self._spawner.audit_log
        if path in {"", "none"}:
            return None
        logs: dict[str, AuditLog] = self._spawner.user.settings.setdefault("gipfel_audit", {})
        return logs.setdefault(path, AuditLog(Path(path), self._spawner.log))

    def audit(self, event: Event, *, reason: str = "", order: StopOrder | None = None) -> None:
        """Record in the audit log what happened to this server."""
        log = self.audit_log()
        self._failure_noted = event == "failure"
        if log is None:
            return
        options, status = self._options.shown(), self.last_status()
        said = "" if status is UNSEEN else status.reason
        log.write(
            AuditEvent(
                event=event,
                user=self._spawner.user.name,
                server=self._spawner.name,
                cluster=self._placement.shown_name,
                job_id=self._spawner.job_id,
                edf=options.edf,
                partition=status.partition or options.partition,
                nodes=status.nodes,
                gpus=(options.gpus or 0) * options.nodes,
                state=status.state,
                reason=reason or (order.reason if order else "") or said,
                by=order.by if order else "",
                gpu_hours_saved=order.gpu_hours_saved if order else None,
            )
        )

    def on_stopped(self) -> None:
        """Record the end of a job in the audit log, with who asked for it."""
        if self._spawner.job_id and not self._failure_noted:
            order = self.stop_order
            state = self.last_status().state
            by_itself: Event = "stop" if state in {"", "CANCELLED", "COMPLETING", "RUNNING"} else "end"
            self.audit(order.event if order else by_itself, order=order)
        self.stop_order = None
