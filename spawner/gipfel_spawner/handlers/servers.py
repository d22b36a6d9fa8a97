"""Running servers for administrators: ``/hub/api/gipfel/servers`` as JSON, ``/hub/gipfel/servers`` as a page.

`running_servers` describes the servers from the hub's spawners and the last poll of the watcher,
`stop_server` stops one, and `orphan_jobs` finds jobs of this hub without a server, after its database was
restored or lost.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from jinja2 import ChoiceLoader, FileSystemLoader
from jupyterhub import orm
from jupyterhub.apihandlers import APIHandler
from jupyterhub.handlers import BaseHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.utils import url_path_join
from pydantic import Field, ValidationError
from tornado import web

from gipfel_cluster.model import Frozen, GipfelError, OneLine
from gipfel_cluster.scheduler.protocol import MarkedJob

from ..lifetime import StopOrder
from ..spawner import EDFSpawner
from .security import EndNetworkRequest, deletable_server, end_network, security_cache
from .usage import saturation_cache

#: Maximum size of a request's body.
_MAX_BYTES = 4000
_Body = TypeVar("_Body", bound=Frozen)
# Seconds that a cancelled start has to clean up, as in JupyterHub.
_CANCEL_S = 1.0
#: Templates of the hub's pages. If ``JupyterHub.template_paths`` contains it, the navigation has a link.
HUB_TEMPLATES = str(Path(__file__).parents[1] / "templates" / "hub")


class RunningServer(Frozen):
    """One server that is starting, running or stopping.

    ``state`` is the scheduler's state of the job, or the hub's pending action; ``since`` and ``ends`` are ISO
    times in UTC, ``ends`` None if unknown; ``gpus`` is the total over all nodes; ``idle_s`` is the number of
    seconds without activity, None if the server has not reported for five minutes; ``busy_with`` names its
    current activity. ``cull_due`` means that the culling service may stop it, ``pending`` that the hub is
    starting or stopping it.
    """

    user: str
    server: str
    job_id: str
    edf: str
    cluster: str
    partition: str
    nodes: tuple[str, ...]
    state: str
    since: str
    ends: str | None
    gpus: int
    idle_s: int | None
    busy_with: tuple[str, ...]
    cull_due: bool
    pending: bool


def running_servers(users: Iterable[Any]) -> tuple[tuple[EDFSpawner, RunningServer], ...]:
    """Return every active server of these hub users with its spawner, sorted by user and server name.

    A user whom the hub has not loaded since its start has no active server.
    """
    servers = [
        (spawner, describe_server(spawner))
        for user in users
        for spawner in user.spawners.values()
        if isinstance(spawner, EDFSpawner) and (spawner.active or spawner.pending)
    ]
    return tuple(sorted(servers, key=lambda pair: (pair[1].user, pair[1].server)))


def describe_server(spawner: EDFSpawner) -> RunningServer:
    """Return the description of one active server."""
    lifetime = spawner.lifetime
    options, status, report = spawner.options.with_defaults(), lifetime.last_status(), lifetime.activity.fresh
    started = spawner.orm_spawner.started
    pending = str(spawner.pending or "")
    return RunningServer(
        user=spawner.user.name,
        server=spawner.name,
        job_id=spawner.job_id,
        edf=options.edf,
        cluster=spawner.placement.cluster_label,
        partition=status.partition or options.partition,
        nodes=status.nodes,
        state="stopping" if pending == "stop" else status.state or pending or "running",
        since=_iso(started.replace(tzinfo=UTC)) if started else "",
        ends=_iso(datetime.fromtimestamp(lifetime.ends, UTC)) if lifetime.ends else None,
        gpus=(options.gpus or 0) * options.nodes,
        idle_s=report.idle_s if report else None,
        busy_with=report.busy_with if report else (),
        cull_due=lifetime.cull_due and not pending,
        pending=bool(pending),
    )


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


class StopRequest(Frozen):
    """Request to stop a server; with ``idle``, only if the hub considers it idle for long enough."""

    user: OneLine = Field(min_length=1, max_length=255)
    server: OneLine = Field("", max_length=255)
    idle: bool = False


def visible_servers(handler: Any) -> tuple[RunningServer, ...]:
    """Return the running servers that the request's scopes let it read."""
    allowed = handler.get_scope_filter("read:servers")
    return tuple(
        server
        for spawner, server in running_servers(handler.users.values())
        if allowed(spawner.orm_spawner, kind="server")
    )


async def saved_gpu_hours(handler: Any) -> float | None:
    """Return the GPU hours that culling has saved; None if there is no audit log or it can't be read."""
    for user in handler.users.values():
        for spawner in user.spawners.values():
            if isinstance(spawner, EDFSpawner) and (log := spawner.lifetime.audit_log()):
                try:
                    return await asyncio.to_thread(log.saved_gpu_hours)
                except GipfelError as error:
                    handler.log.warning("%s", error)
                return None
    return None


async def stop_server(handler: Any, request: StopRequest) -> None:
    """Stop a server as JupyterHub's API does, and record who requested it.

    Raises
    ------
    HTTPError
        404: there is no such server, or the request's scopes don't include it; 409: it is not running, or not
        idle.
    """
    spawner = deletable_server(handler, request.user, request.server)
    if request.idle and not (spawner.ready and spawner.lifetime.cull_due):
        raise web.HTTPError(409, "This server is in use, or its user has not been warned.")
    if not (spawner.ready or spawner.pending == "spawn"):
        raise web.HTTPError(409, "This server is no longer running.")
    spawner.lifetime.stop_order = _order(spawner, handler.current_user.name, idle=request.idle)
    if spawner.pending:
        if starting := spawner._spawn_future:  # noqa: SLF001 - as JupyterHub's own route does
            starting.cancel()
        await asyncio.sleep(_CANCEL_S)
        if spawner.pending or not spawner.active:
            return
    await handler.stop_single_user(spawner.user, request.server)


def _order(spawner: EDFSpawner, by: str, *, idle: bool) -> StopOrder:
    if not idle:
        return StopOrder(by=by)
    report = spawner.lifetime.activity.report
    minutes = (report.idle_s if report else 0) // 60
    return StopOrder(
        event="cull",
        by=by,
        reason=f"idle for {minutes} min",
        gpu_hours_saved=spawner.lifetime.gpu_hours_left(),
    )


def _body_as(handler: APIHandler, model: type[_Body], advice: str) -> _Body:
    body = handler.request.body
    if len(body) > _MAX_BYTES:
        raise web.HTTPError(400, f"The body is longer than {_MAX_BYTES} bytes.")
    try:
        return model.model_validate_json(body)
    except ValidationError:
        raise web.HTTPError(400, advice) from None


class ServersRouteHandler(APIHandler):
    """``GET``: the running servers, for tokens that may list users and read their servers."""

    @needs_scope("list:users")
    async def get(self) -> None:
        """Return every server that the token's scopes let it read."""
        servers = [server.model_dump(mode="json") for server in visible_servers(self)]
        self.finish(json.dumps({"servers": servers, "saved_gpu_hours": await saved_gpu_hours(self)}))


class StopRouteHandler(APIHandler):
    """``POST``: stop one server, by an administrator's program or by the culling service."""

    @web.authenticated
    async def post(self) -> None:
        """Request the stop of a server and answer 202."""
        advice = 'Give {"user": name, "server": name} and nothing else.'
        await stop_server(self, _body_as(self, StopRequest, advice))
        self.set_status(202)
        self.finish("{}")


class EndNetworkRouteHandler(APIHandler):
    """``POST``: end the network of what runs behind gates in one server's job."""

    @web.authenticated
    async def post(self) -> None:
        """End the network and answer 202: the gates notice within two seconds."""
        advice = 'Give {"user": name, "server": name, "reason": text}.'
        await end_network(self, _body_as(self, EndNetworkRequest, advice))
        self.set_status(202)
        self.finish("{}")


@runtime_checkable
class MarkLister(Protocol):
    """Scheduler that lists jobs by their marks."""

    async def marked(self, prefix: str) -> tuple[MarkedJob, ...]:
        """Return the waiting and running jobs whose mark begins with ``prefix``.

        Raises
        ------
        GipfelError
            The scheduler does not answer.
        """


async def orphan_jobs(handler: Any) -> tuple[tuple[MarkedJob, ...], str]:
    """Return the jobs of this hub without a server, and an error message if they are unknown."""
    spawner = getattr(handler.current_user, "spawner", None)
    if not isinstance(spawner, EDFSpawner):
        return (), ""
    prefix, schedulers = spawner.submission.prefix, spawner.placement.all_schedulers()
    try:
        found = await asyncio.gather(
            *(each.marked(prefix) for each in schedulers if isinstance(each, MarkLister))
        )
    except GipfelError as error:
        return (), str(error)
    # Read after the jobs, so that a server that starts meanwhile is not listed.
    jobs, marks = _owned(handler)
    return tuple(
        each for some in found for each in some if each.job_id not in jobs and each.mark not in marks
    ), ""


def _owned(handler: Any) -> tuple[set[str], set[str]]:
    """Return job IDs and marks of all servers, including those that the hub has not loaded."""
    states: list[Mapping[str, Any]] = [state or {} for (state,) in handler.db.query(orm.Spawner.state)]
    for user in handler.users.values():
        states += [each.get_state() for each in user.spawners.values() if isinstance(each, EDFSpawner)]
    return {str(each.get("job_id")) for each in states}, {str(each.get("mark")) for each in states}


class ServersPageHandler(BaseHandler):
    """Page of the running servers; its script only sorts, filters and refreshes the table."""

    async def prepare(self) -> None:
        """Refuse users who may not list servers."""
        await super().prepare()
        if self.current_user and "list:users" not in self.parsed_scopes:
            raise web.HTTPError(
                403,
                "This page is for administrators only. The hub's operator sets them in GIPFEL_ADMINS.",
            )

    @web.authenticated
    @needs_scope("list:users")
    async def get(self) -> None:
        """Show the servers that this user may read."""
        servers = visible_servers(self)
        visible = {(server.user, server.server) for server in servers}
        spawners = [s for s, row in running_servers(self.users.values()) if (row.user, row.server) in visible]
        saturation = await saturation_cache(self.settings, self.log).read(spawners)
        security = await security_cache(self.settings, self.log).read(spawners)
        # Only for users who may stop every server.
        orphans, unknown = await orphan_jobs(self) if "delete:servers" in self.parsed_scopes else ((), "")
        self.finish(
            await self._page().render_async(
                **self.template_namespace,
                xsrf_token=self.xsrf_token.decode("ascii"),
                servers=servers,
                saturation={key: shared.text for key, shared in saturation.items()},
                security=security,
                orphans=orphans,
                orphans_unknown=unknown,
                several=self._has_clusters(),
                gpus=sum(each.gpus for each in servers if each.nodes),
                waiting_gpus=sum(each.gpus for each in servers if not each.nodes),
                users=len({each.user for each in servers}),
                saved=await saved_gpu_hours(self),
                may_stop="delete:servers" in self.parsed_scopes,
                format_span=format_span,
                now=datetime.now(UTC),
            )
        )

    @web.authenticated
    @needs_scope("list:users")
    async def post(self) -> None:
        """Stop the server named in the form, or end its network, and redirect to the page."""
        if len(self.request.body) > _MAX_BYTES:
            raise web.HTTPError(400, f"The form is longer than {_MAX_BYTES} bytes.")
        fields = {name: self.get_body_argument(name, "") for name in ("user", "server")}
        ends_network = self.get_body_argument("action", "") == "network"
        try:
            request = StopRequest.model_validate(fields)
        except ValidationError:
            raise web.HTTPError(400, "The form names no server.") from None
        if ends_network:
            await end_network(self, EndNetworkRequest(user=request.user, server=request.server))
        else:
            await stop_server(self, request)
        self.redirect(url_path_join(self.hub.base_url, "gipfel/servers"), status=303)

    def _has_clusters(self) -> bool:
        spawners = (each for user in self.users.values() for each in user.spawners.values())
        return any(isinstance(each, EDFSpawner) and each.clusters for each in spawners)

    def _page(self) -> Any:
        # The page also works if the site's JupyterHub.template_paths does not include these templates.
        hub = self.settings["jinja2_env"]
        loader = ChoiceLoader([hub.loader, FileSystemLoader(HUB_TEMPLATES)])
        return hub.overlay(loader=loader).get_template("gipfel-servers.html")


def format_span(seconds: float | None) -> str:
    """Return a duration in at most two units, such as ``1 h 12 min``; empty for None."""
    if seconds is None:
        return ""
    minutes = max(int(seconds), 0) // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
