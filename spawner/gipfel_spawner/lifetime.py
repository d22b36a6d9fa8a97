"""Server lifetime: activity reports, time extension, culling, audit log.

A running server sends an `ActivityReport` every 30 s and gets a `LifetimeStatus` in return; `ServerLifetime`
stores both for one server.
"""

import time
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

from pydantic import Field, StrictBool, StrictInt, field_validator

from gipfel_cluster.model import Frozen, GipfelError, OneLine
from gipfel_cluster.scheduler.notation import parse_duration
from gipfel_cluster.scheduler.protocol import JobStatus

from .cluster.watcher import NOT_POLLED
from .history import AuditEvent, AuditLog, Event, SessionEnd, SessionHistory
from .start.placement import ServerPlacement
from .start.spawn_options import SpawnOptions
from .start.traits import SpawnerTraits

#: Seconds after which a report is ignored: a server that stopped reporting is not necessarily idle.
FRESH_S = 300.0
#: Longest job that is assumed for GPU hours if no time limit was requested.
_MAX_JOB_S = 30 * 86400

_Seconds = Annotated[StrictInt, Field(ge=0, le=10**9)]


class ActivityReport(Frozen):
    """Activity of a server, reported by the server itself.

    ``idle_s`` is the number of seconds without activity, 0 while there is any; ``busy_with`` names the
    current activity; ``warned_s`` is the number of seconds since the user was first warned that the server
    will be stopped, None without a warning; ``ends`` is the end of the job's time limit, as known on its node
    when the job started, in seconds since 1970.
    """

    idle_s: _Seconds
    busy_with: Annotated[tuple[Annotated[OneLine, Field(max_length=60)], ...], Field(max_length=6)] = ()
    warned_s: _Seconds | None = None
    ends: Annotated[StrictInt, Field(ge=0, le=10**11)] | None = None


class LifetimeStatus(Frozen):
    """Answer of the hub to an activity report.

    ``ends`` is the end of the job's time limit in seconds since 1970, None if it is unknown; ``extend_s`` is
    by how many seconds the user can extend it, 0 for not at all; ``idle_limit_s`` is the idle time after
    which a server is stopped, 0 if idle servers keep running; ``idle_warning_s`` is for how long a user is
    warned before that.
    """

    ends: int | None = None
    extend_s: int = 0
    idle_limit_s: int = 0
    idle_warning_s: int = 0


class ExtendRequest(Frozen):
    """Request for more time; the amount is the site's ``extend_by``."""

    extend: StrictBool

    @field_validator("extend")
    @classmethod
    def _is_true(cls, value: bool) -> bool:  # noqa: FBT001
        if not value:
            raise ValueError("must be true")
        return value


@dataclass
class ServerActivity:
    """Last activity report of one server and the time of its arrival."""

    report: ActivityReport | None = None
    received: float = field(default=0.0)

    def set(self, report: ActivityReport) -> None:
        """Store a report."""
        self.report, self.received = report, time.monotonic()

    @property
    def fresh(self) -> ActivityReport | None:
        """Last report; None if it is older than `FRESH_S`."""
        return self.report if time.monotonic() - self.received < FRESH_S else None

    def cull_due(self, idle_limit_s: int, idle_warning_s: int) -> bool:
        """Return whether the server has been idle, and its user warned, for the configured times."""
        report = self.fresh
        if report is None or idle_limit_s <= 0 or report.warned_s is None:
            return False
        return report.idle_s >= idle_limit_s and report.warned_s >= idle_warning_s


@runtime_checkable
class TimeExtender(Protocol):
    """A scheduler that can give a running job more time."""

    async def extend(self, job_id: str, minutes: int) -> None:
        """Add minutes to the job's limit, as the hub's own user.

        Raises
        ------
        GipfelError
            The scheduler refused (its message is included) or did not answer in time.
        """


class StopOrder(Frozen):
    """Request to stop a server, as the audit log records it: event, who requested it, and why.

    ``by`` is empty if the user did. ``gpu_hours_saved`` are the GPU hours left until the time limit if an
    idle server is culled; else None.
    """

    event: Event = "stop"
    by: str = ""
    reason: str = ""
    gpu_hours_saved: float | None = None


class ServerLifetime:
    """Activity, extensions, stop order and audit events of one server.

    Parameters
    ----------
    spawner
        Provides the configuration (``idle_limit``, ``extend_by``, ``audit_log`` …) and the job.
    placement, options
        The server's cluster with its job watcher, and the options that the user requested.
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
        """Reset the state of an earlier start."""
        self.activity, self.stop_order = ServerActivity(), None
        self.extended, self._failure_noted, self._starting = 0, False, True

    def on_submitted(self) -> None:
        """Record a start in history and audit log, now that the job's ID is set.

        Does nothing outside of a start: a restarted hub sets the ID that it reads from its database.
        """
        if self._starting:
            self.audit("start")
            self.history().begin(
                self._spawner.user.name,
                self._spawner.name,
                cluster=self._placement.cluster_label,
                job_id=self._spawner.job_id,
                options=self._options.with_defaults(),
            )

    def on_running(self) -> None:
        """Record in the history that the job's server has reported."""
        if self._spawner.job_id:
            self.history().on_running(self._spawner.user.name, self._spawner.name, self._spawner.job_id)

    def on_successor(self, job_id: str) -> None:
        """Record that ``job_id``, the next job of a service, has taken over from the current one."""
        earlier = self._spawner.job_id
        self._end_session("ended", f"Job {job_id} has taken over.")
        self.activity, self.extended = ServerActivity(), 0
        # Setting the ID calls `on_submitted`, which records it only during a start.
        self._starting = True
        self._spawner.job_id = job_id
        self._starting = False
        self._spawner.log.info("Job %s has taken over from job %s.", job_id, earlier)

    def on_start_failed(self, error: Exception) -> None:
        """Record in history and audit log why a start failed."""
        reason = getattr(error, "jupyterhub_message", "") or str(error)
        self.audit("failure", reason=reason)
        self._end_session("failed", reason)

    def end_start(self) -> None:
        """Stop recording new job IDs as starts."""
        self._starting = False

    def on_activity(self, report: ActivityReport) -> LifetimeStatus:
        """Store a server's report, and return the server's `LifetimeStatus`."""
        self.activity.set(report)
        return self.status()

    def status(self) -> LifetimeStatus:
        """Return when this server's time limit ends, and by how much it can be extended."""
        return LifetimeStatus(
            ends=self.ends,
            extend_s=self._extension_s if self._may_extend() else 0,
            idle_limit_s=max(self._spawner.idle_limit, 0),
            idle_warning_s=max(self._spawner.idle_warning, 0),
        )

    @property
    def ends(self) -> int | None:
        """End of the job's time limit in seconds since 1970; None before the server has reported it."""
        report = self.activity.report
        return None if report is None or report.ends is None else report.ends + self.extended

    @property
    def _extension_s(self) -> int:
        # Rounded down, because Slurm's time limits are whole minutes.
        extend_by = self._spawner.extend_by
        return (parse_duration(extend_by) or 0) // 60 * 60 if extend_by else 0

    def _may_extend(self) -> bool:
        extension = self._extension_s
        return (
            extension > 0
            and self.extended < self._spawner.extend_times * extension
            and isinstance(self._placement.cluster.scheduler, TimeExtender)
        )

    async def extend(self) -> LifetimeStatus:
        """Extend the job's time limit by the site's ``extend_by``.

        Raises
        ------
        GipfelError
            The site allows no further extension, or the scheduler refused.
        """
        spawner, scheduler = self._spawner, self._placement.cluster.scheduler
        if self._extending or not self._may_extend() or not isinstance(scheduler, TimeExtender):
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
        """True if the culling service may stop this server now."""
        return self.activity.cull_due(self._spawner.idle_limit, self._spawner.idle_warning)

    def last_status(self) -> JobStatus:
        """Return the last known status of the job."""
        job_id = self._spawner.job_id
        return self._placement.watcher.status(job_id) if job_id else JobStatus(answer="unknown")

    def gpu_hours_left(self) -> float:
        """Return the GPU hours until the job's time limit, 0 if its end is unknown."""
        options = self._options.with_defaults()
        limit = options.time or self._options.defaults()[0].time or "UNLIMITED"
        # The end is reported by a process of the user, so it is limited to the requested time.
        max_seconds = parse_duration(limit) or _MAX_JOB_S
        seconds = min(max((self.ends or 0) - time.time(), 0), max_seconds + self.extended)
        return round((options.gpus or 0) * options.nodes * seconds / 3600, 3)

    def history(self) -> SessionHistory:
        """Return the hub's session history, created at the first call."""
        path = Path(self._spawner.state_folder) / "sessions.sqlite"
        settings: dict[str, SessionHistory] = self._spawner.user.settings
        return settings.setdefault("gipfel_sessions", SessionHistory(path, self._spawner.log))

    @property
    def user_created(self) -> float:
        """Return when the hub created the user, in seconds since 1970; 0 if it is unknown.

        Earlier sessions in the history belong to a deleted user of the same name.
        """
        created = self._spawner.user.orm_user.created
        # JupyterHub stores UTC without a zone.
        return created.replace(tzinfo=UTC).timestamp() if created else 0.0

    def _end_session(self, how: SessionEnd, reason: str) -> None:
        spawner = self._spawner
        if spawner.job_id:
            self.history().end(spawner.user.name, spawner.name, spawner.job_id, how, reason)

    def audit_log(self) -> AuditLog | None:
        """Return the hub's audit log, None if it is disabled."""
        path = self._spawner.audit_log
        if path in {"", "none"}:
            return None
        logs: dict[str, AuditLog] = self._spawner.user.settings.setdefault("gipfel_audit", {})
        return logs.setdefault(path, AuditLog(Path(path), self._spawner.log))

    def audit(self, event: Event, *, reason: str = "", order: StopOrder | None = None) -> None:
        """Write an event of this server to the audit log."""
        log = self.audit_log()
        self._failure_noted = event == "failure"
        if log is None:
            return
        options, status = self._options.with_defaults(), self.last_status()
        status_reason = "" if status is NOT_POLLED else status.reason
        log.write(
            AuditEvent(
                event=event,
                user=self._spawner.user.name,
                server=self._spawner.name,
                cluster=self._placement.cluster_label,
                job_id=self._spawner.job_id,
                edf=options.edf,
                partition=status.partition or options.partition,
                nodes=status.nodes,
                gpus=(options.gpus or 0) * options.nodes,
                state=status.state,
                reason=reason or (order.reason if order else "") or status_reason,
                by=order.by if order else "",
                gpu_hours_saved=order.gpu_hours_saved if order else None,
            )
        )

    def on_stopped(self) -> None:
        """Record the end of the job and who requested it, unless its failure is already in the audit log."""
        if self._spawner.job_id and not self._failure_noted:
            order = self.stop_order
            state = self.last_status().state
            event: Event = "stop" if state in {"", "CANCELLED", "COMPLETING", "RUNNING"} else "end"
            self.audit(order.event if order else event, order=order)
            how: SessionEnd = "ended" if event == "end" else "stopped"
            culled = order is not None and order.event == "cull"
            self._end_session("culled" if culled else how, order.reason if order else "")
        self.stop_order = None
