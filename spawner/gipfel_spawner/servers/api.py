"""``/hub/api/gipfel/servers``: the running servers as JSON, and the end of one of them."""

import asyncio
import json
from typing import Any

from jupyterhub.apihandlers import APIHandler
from jupyterhub.scopes import needs_scope
from pydantic import Field, ValidationError
from tornado import web

from gipfel_cluster.model import Frozen, GipfelError, Line

from ..leaving.spawner import StopOrder
from ..spawner import EDFSpawner
from .table import RunningServer, running_servers

_MOST_BYTES = 4000
# As long as JupyterHub lets a cancelled start tidy up.
_CANCEL_S = 1.0


class StopRequest(Frozen):
    """Which server is to be stopped; ``idle`` only if the hub agrees that it is due."""

    user: Line = Field(min_length=1, max_length=255)
    server: Line = Field("", max_length=255)
    idle: bool = False


def visible_servers(handler: Any) -> tuple[RunningServer, ...]:
    """The running servers that the request's scopes let it read."""
    allowed = handler.get_scope_filter("read:servers")
    return tuple(
        server
        for spawner, server in running_servers(handler.users.values())
        if allowed(spawner.orm_spawner, kind="server")
    )


async def saved_gpu_hours(handler: Any) -> float | None:
    """What culling has saved according to the audit log; None where there is none or it can't be read."""
    for user in handler.users.values():
        for spawner in user.spawners.values():
            if isinstance(spawner, EDFSpawner) and (log := spawner.audits()):
                try:
                    return await asyncio.to_thread(log.saved_gpu_hours)
                except GipfelError as error:
                    handler.log.warning("%s", error)
                return None
    return None


async def stop_server(handler: Any, request: StopRequest) -> None:
    """Stop a server as the hub's own API does, and note who asked for it.

    Raises
    ------
    HTTPError
        404: there is no such server, or the request's scopes don't reach it; 409: it does not run, or is not
        idle.
    """
    user = handler.find_user(request.user)
    spawner = user.spawners.get(request.server) if user and request.server in user.spawners else None
    allowed = handler.get_scope_filter("delete:servers")
    if not isinstance(spawner, EDFSpawner) or not allowed(spawner.orm_spawner, kind="server"):
        raise web.HTTPError(404, "There is no such server, or you may not stop it.")
    if request.idle and not (spawner.ready and spawner.cull_due):
        raise web.HTTPError(409, "This server is in use, or its user has not been warned.")
    if not (spawner.ready or spawner.pending == "spawn"):
        raise web.HTTPError(409, "This server does not run any more.")
    spawner.stop_order = _order(spawner, handler.current_user.name, idle=request.idle)
    if spawner.pending:
        if starting := spawner._spawn_future:  # noqa: SLF001 - as JupyterHub's own route does
            starting.cancel()
        await asyncio.sleep(_CANCEL_S)
        if spawner.pending or not spawner.active:
            return
    await handler.stop_single_user(user, request.server)


def _order(spawner: EDFSpawner, by: str, *, idle: bool) -> StopOrder:
    if not idle:
        return StopOrder(by=by)
    report = spawner.activity.report
    minutes = (report.idle_s if report else 0) // 60
    return StopOrder(
        event="cull", by=by, reason=f"idle for {minutes} min", gpu_hours_saved=spawner.gpu_hours_left()
    )


class ServersRouteHandler(APIHandler):
    """The running servers, for who may list users and read their servers."""

    @needs_scope("list:users")
    async def get(self) -> None:
        """Answer every server that the token's scopes let it read."""
        servers = [server.model_dump(mode="json") for server in visible_servers(self)]
        content = {"servers": servers, "saved_gpu_hours": await saved_gpu_hours(self)}
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(content))


class StopRouteHandler(APIHandler):
    """The end of one server, by an administrator's program or by the culling service."""

    @web.authenticated
    async def post(self) -> None:
        """Stop it; 202 while that takes its time."""
        if len(self.request.body) > _MOST_BYTES:
            raise web.HTTPError(400, f"The body is longer than {_MOST_BYTES} bytes.")
        try:
            request = StopRequest.model_validate_json(self.request.body)
        except ValidationError:
            raise web.HTTPError(400, 'Give {"user": name, "server": name} and nothing else.') from None
        await stop_server(self, request)
        self.set_status(202)
        self.finish("{}")
