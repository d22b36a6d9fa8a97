"""Handlers for a server's own token: its port and vetting at the start, then its activity and extensions."""

import json
from collections.abc import Awaitable
from typing import Annotated, TypeVar

from batchspawner.api import BatchSpawnerAPIHandler
from jupyterhub.apihandlers import APIHandler
from pydantic import Field, StrictInt, ValidationError
from tornado import web

from gipfel_cluster.job.spec import VettingProgress
from gipfel_cluster.model import Frozen, GipfelError

from ..lifetime import ActivityReport, ExtendRequest
from ..spawner import EDFSpawner

_Body = TypeVar("_Body", bound=Frozen)


@web.stream_request_body
class OwnServerHandler(APIHandler):
    """A route for a server's own token, whose body is bounded before any of it is read."""

    most_bytes = 1000
    _received = b""

    async def prepare(self) -> None:
        """Bound the body, then authenticate; tornado reads nothing before this is over."""
        self.request.connection.set_max_body_size(self.most_bytes)
        await super().prepare()

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Append a piece of the body, which stays within the bound."""
        self._received += chunk
        return None

    def own_spawner(self) -> EDFSpawner:
        """Return the spawner of the server that asks, which is named by its token alone.

        Raises
        ------
        HTTPError
            403: the token is not a server's, or that of an earlier start.
        """
        token = self.get_auth_token() or ""
        for spawner in getattr(self.current_user, "spawners", {}).values():
            if isinstance(spawner, EDFSpawner) and spawner.owns(token):
                return spawner
        raise web.HTTPError(403, "This token belongs to no server.")

    def body_as(self, model: type[_Body], advice: str) -> _Body:
        """Return the body as a frozen model.

        Raises
        ------
        HTTPError
            400: it is anything else.
        """
        try:
            return model.model_validate_json(self._received)
        except ValidationError:
            raise web.HTTPError(400, advice) from None

    def answer(self, content: Frozen) -> None:
        """Answer with a model as JSON."""
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(content.model_dump(mode="json")))


class ServerReport(Frozen):
    """Report of a server that has started."""

    port: Annotated[StrictInt, Field(ge=1024, le=65535)]


class ServerRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server``, with the token of the server that starts; once for each start."""

    @web.authenticated
    def post(self) -> None:
        """Record the port of a server that starts; anything else is 400 or 403."""
        spawner = self.own_spawner()
        report = self.body_as(ServerReport, 'Give {"port": number}, from 1024 to 65535, and nothing else.')
        if not spawner.allows_port(report.port):
            raise web.HTTPError(400, f"The port must be one of {spawner.server_ports}.")
        if not spawner.set_port(report.port):
            raise web.HTTPError(403, "This server is not being started, or has given its port already.")
        self.answer(report)


class VettingRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server/vetting``: progress of the vetting before a server's start."""

    most_bytes = 32_000

    @web.authenticated
    def post(self) -> None:
        """Show the progress on the waiting page; 403 where this server is not being started."""
        spawner = self.own_spawner()
        if not spawner.on_vetting(self.body_as(VettingProgress, "This is not the progress of a vetting.")):
            raise web.HTTPError(403, "This server is not being started.")
        self.set_status(204)


class ActivityRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server/activity``: a report, answered with when the server's time ends."""

    @web.authenticated
    def post(self) -> None:
        """Record the report; an unknown token is 403, after which a server may end itself."""
        spawner = self.own_spawner()
        self.answer(
            spawner.lifetime.on_activity(self.body_as(ActivityReport, "This is not a report of activity."))
        )


class ExtendRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server/extend``: more time, as much as the site allows."""

    @web.authenticated
    async def post(self) -> None:
        """Extend the job; 409 with one line where it can't be."""
        spawner = self.own_spawner()
        self.body_as(ExtendRequest, 'Give {"extend": true} and nothing else.')
        try:
            self.answer(await spawner.lifetime.extend())
        except GipfelError as error:
            raise web.HTTPError(409, "%s", str(error)) from error


class StockRouteHandler(BatchSpawnerAPIHandler):
    """batchspawner's own route, for hubs whose spawner is batchspawner's; 404 with ours."""

    async def prepare(self) -> None:
        """Answer 404 where the hub's spawner, or one of this user's, is ours."""
        await super().prepare()
        spawners = getattr(self.current_user, "spawners", {}).values()
        if issubclass(self.settings["spawner_class"], EDFSpawner) or any(
            isinstance(each, EDFSpawner) for each in spawners
        ):
            raise web.HTTPError(404)
