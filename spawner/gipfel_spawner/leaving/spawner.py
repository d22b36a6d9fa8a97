"""How a server's time ends: what it reports, what it is told, who stops it, and what is written down."""

import time
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from traitlets import Integer, TraitError, Unicode, default, observe, validate

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.ports import PORTS_VARIABLE, PortRange
from gipfel_cluster.scheduler.durations import parse_duration
from gipfel_cluster.scheduler.protocol import JobStatus

from ..cluster.watcher import UNSEEN
from ..form.choice import ChoosingSpawner
from ..form.options import UserOptions, read_options
from ..servers.audit import AuditEvent, AuditLog, Event
from .activity import ActivityReport, HubWord, ServerActivity

_AUDIT_FILE = "audit.jsonl"
_LONGEST_JOB_S = 30 * 86400

_Result = TypeVar("_Result")
_Self = TypeVar("_Self", bound="LeavingSpawner")


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
    """Who wanted a server stopped, and why; the audit log's words."""

    event: Event = "stop"
    by: str = ""
    reason: str = ""
    gpu_hours_saved: float | None = None


def audited_start(
    start: Callable[[_Self], Coroutine[Any, Any, _Result]],
) -> Callable[[_Self], Coroutine[Any, Any, _Result]]:
    """A ``start`` that is written into the audit log, and so is its failure."""

    @wraps(start)
    async def told(self: _Self) -> _Result:
        self.begin()
        try:
            return await start(self)
        except Exception as error:
            self.audit("failure", reason=getattr(error, "jupyterhub_message", "") or str(error))
            raise
        finally:
            self._begun = False

    return told


class LeavingSpawner(ChoosingSpawner):
    """The ports, the activity, the extensions and the audit log of a spawner."""

    server_ports = Unicode(
        "",
        help="Ports that servers may listen on, such as '8400-8499', for sites whose nodes are behind a "
        "firewall; a server takes the first of them that it can bind, from a random one on. Default: any.",
    ).tag(config=True)
    audit_log = Unicode(
        help="The file that gets one line of JSON for each start, failure, stop, cull and extension. "
        "Default: audit.jsonl in the state folder. 'none' writes nothing."
    ).tag(config=True)
    idle_limit = Integer(
        0,
        help="Seconds without a busy kernel, GPU work, a running job step, CPU work or a saved file after "
        "which the culling service stops a server. Default: 0, never.",
    ).tag(config=True)
    idle_warning = Integer(
        600, help="Seconds for which the user is warned in the lab before an idle server is stopped."
    ).tag(config=True)
    extend_by = Unicode(
        "",
        help="How much a user may add to a running job's time with one press, such as '1:00:00'. The hub's "
        "user must be an operator of the cluster. Default: empty, nothing.",
    ).tag(config=True)
    extend_times = Integer(2, help="How often one job may be extended.").tag(config=True)

    _extended = 0
    _extending = False
    _failure_told = False
    _begun = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activity = ServerActivity()
        self.stop_order: StopOrder | None = None

    @default("audit_log")
    def _default_audit_log(self) -> str:
        return str(Path(self.state_folder) / _AUDIT_FILE)

    @validate("server_ports", "extend_by")
    def _can_be_read(self, proposal: dict[str, Any]) -> str:
        value, name = str(proposal["value"]), proposal["trait"].name
        try:
            read = PortRange.parse(value) if name == "server_ports" else parse_duration(value or "1")
        except (GipfelError, ValueError) as error:
            raise TraitError(f"EDFSpawner.{name}: {error}") from error
        if name == "extend_by" and not read:
            raise TraitError("EDFSpawner.extend_by needs a length, such as 1:00:00.")
        return value

    def get_env(self) -> dict[str, Any]:
        """JupyterHub's variables, and the ports where they are limited."""
        environment: dict[str, Any] = super().get_env()
        if self.server_ports:
            environment[PORTS_VARIABLE] = self.server_ports
        return environment

    def allows_port(self, port: int) -> bool:
        """Whether a server may listen there."""
        ports = PortRange.parse(self.server_ports)
        return ports is None or port in ports

    def begin(self) -> None:
        """Forget the activity of an earlier start."""
        self.activity, self.stop_order = ServerActivity(), None
        self._extended, self._failure_told, self._begun = 0, False, True

    @observe("job_id")
    def _note_submission(self, change: dict[str, Any]) -> None:
        # A job's number also changes where a hub that restarts reads its database.
        if self._begun and change["new"]:
            self.audit("start")

    def take_activity(self, report: ActivityReport) -> HubWord:
        """Keep what the server says of its use, and answer when its time ends."""
        self.activity.take(report)
        return self.word()

    def word(self) -> HubWord:
        """When this server's time ends, and whether it can be extended."""
        return HubWord(
            ends=self.ends,
            extend_s=self._extension_s if self._may_extend() else 0,
            idle_limit_s=max(self.idle_limit, 0),
            idle_warning_s=max(self.idle_warning, 0),
        )

    @property
    def ends(self) -> int | None:
        """When the job's time ends, in seconds since 1970; None before the server has said so."""
        report = self.activity.report
        return None if report is None or report.ends is None else report.ends + self._extended

    @property
    def _extension_s(self) -> int:
        # Slurm counts in minutes.
        return (parse_duration(self.extend_by) or 0) // 60 * 60 if self.extend_by else 0

    def _may_extend(self) -> bool:
        extension = self._extension_s
        return (
            extension > 0
            and self._extended < self.extend_times * extension
            and isinstance(self._cluster.scheduler, TimeGiver)
        )

    async def extend(self) -> HubWord:
        """Give the job more time, as much and as often as the site allows.

        Raises
        ------
        GipfelError
            It allows no more, or the scheduler refused.
        """
        scheduler = self._cluster.scheduler
        if self._extending or not self._may_extend() or not isinstance(scheduler, TimeGiver):
            raise GipfelError("This server's time can't be extended.", "Save your work before it ends.")
        self._extending = True
        try:
            await scheduler.extend(self.job_id, self._extension_s // 60)
            self._extended += self._extension_s
        finally:
            self._extending = False
        self.orm_spawner.state = self.get_state()
        self.audit("extend", reason=f"by {self.extend_by}")
        return self.word()

    @property
    def cull_due(self) -> bool:
        """Whether the culling service may stop this server now."""
        return self.activity.cull_due(self.idle_limit, self.idle_warning)

    def shown_options(self) -> UserOptions:
        """What the job was asked for, as far as it can be read."""
        try:
            options = read_options(self.user_options or {})
        except GipfelError:
            options = UserOptions()
        chosen = {
            "edf": options.edf or self.default_edf,
            "partition": options.partition or self.req_partition,
        }
        gpus = self.default_gpus if options.gpus is None else options.gpus
        return options.model_copy(update={**chosen, "gpus": gpus})

    def last_status(self) -> JobStatus:
        """The last that is known of the job."""
        if not self.job_id:
            return JobStatus(answer="unknown")
        return self._watcher.status(self.job_id)

    def gpu_hours_left(self) -> float:
        """GPU hours that the job still holds, 0 where its end is not known."""
        options = self.shown_options()
        # The server itself says when it ends: it may not claim more than it was given.
        most = parse_duration(options.time or self._defaults()[0].time or "UNLIMITED") or _LONGEST_JOB_S
        left = min(max((self.ends or 0) - time.time(), 0), most + self._extended)
        return round((options.gpus or 0) * options.nodes * left / 3600, 3)

    def audits(self) -> AuditLog | None:
        """The hub's audit log, None where there is none."""
        if self.audit_log in {"", "none"}:
            return None
        logs: dict[str, AuditLog] = self.user.settings.setdefault("gipfel_audit", {})
        return logs.setdefault(self.audit_log, AuditLog(Path(self.audit_log), self.log))

    def audit(self, event: Event, *, reason: str = "", order: StopOrder | None = None) -> None:
        """Write down what happened to this server."""
        log = self.audits()
        self._failure_told = event == "failure"
        if log is None:
            return
        options, status = self.shown_options(), self.last_status()
        said = "" if status is UNSEEN else status.reason
        log.write(
            AuditEvent(
                event=event,
                user=self.user.name,
                server=self.name,
                cluster=self.cluster_name or self.site.name,
                job_id=self.job_id,
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

    async def run_post_stop_hook(self) -> None:
        """Write down the end of a job, then do what the site's hook does."""
        if self.job_id and not self._failure_told:
            order = self.stop_order
            state = self.last_status().state
            by_itself: Event = "stop" if state in {"", "CANCELLED", "COMPLETING", "RUNNING"} else "end"
            self.audit(order.event if order else by_itself, order=order)
        self.stop_order = None
        hooked = super().run_post_stop_hook()
        if hooked is not None:
            await hooked

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up what another hub process knew."""
        super().load_state(state)
        self._extended = int(state.get("extended") or 0)

    def get_state(self) -> dict[str, Any]:
        """The state below, and by how many seconds the job was extended."""
        state: dict[str, Any] = super().get_state()
        if self.job_id and self._extended:
            state["extended"] = self._extended
        return state
