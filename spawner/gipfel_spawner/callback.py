"""What a server tells the hub at its start: its port, and before it how far a vetting is."""

import json
from collections.abc import Awaitable
from typing import Annotated, TypeVar

from batchspawner.api import BatchSpawnerAPIHandler
from jupyterhub.apihandlers import APIHandler
from pydantic import Field, StrictInt, ValidationError
from tornado import web

from gipfel_cluster.job.vetting import VettingProgress
from gipfel_cluster.model import Frozen

from .spawner import EDFSpawner

_Body = TypeVar("_Body", bound=Frozen)


@web.stream_request_body
class OwnServerHandler(APIHandler):
    """A route for a server's own token, whose body is bounded before any of it is read."""

    most_bytes = 1000
    _received = b""

    async def prepare(self) -> None:
        """Bound the body, then find out who asks; tornado reads nothing before this is over."""
        self.request.connection.set_max_body_size(self.most_bytes)
        await super().prepare()

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Keep what comes: less than the bound."""
        self._received += chunk
        return None

    def own_spawner(self) -> EDFSpawner:
        """The spawner whose server asks; its name is nowhere in the request but in the token.

        Raises
        ------
        HTTPError
            403: the token is no server's, or that of an earlier start.
        """
        token = self.get_auth_token() or ""
        for spawner in getattr(self.current_user, "spawners", {}).values():
            if isinstance(spawner, EDFSpawner) and spawner.owns(token):
                return spawner
        raise web.HTTPError(403, "This token belongs to no server.")

    def body_as(self, model: type[_Body], advice: str) -> _Body:
        """The body as a frozen model.

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
    """What a server may say of itself."""

    port: Annotated[StrictInt, Field(ge=1024, le=65535)]


class ServerRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server``, with the token of the server that starts; once for each start."""

    @web.authenticated
    def post(self) -> None:
        """Take the port of a server that starts; anything else is 400 or 403."""
        spawner = self.own_spawner()
        report = self.body_as(ServerReport, 'Give {"port": number}, from 1024 to 65535, and nothing else.')
        if not spawner.allows_port(report.port):
            raise web.HTTPError(400, f"The port must be one of {spawner.server_ports}.")
        if not spawner.take_port(report.port):
            raise web.HTTPError(403, "This server is not being started, or has given its port already.")
        self.answer(report)


class VettingRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server/vetting``: how far the vetting before a server's start is."""

    most_bytes = 32_000

    @web.authenticated
    def post(self) -> None:
        """Show it to those who wait; 403 where this server is not being started."""
        spawner = self.own_spawner()
        if not spawner.take_vetting(self.body_as(VettingProgress, "This is no progress of a vetting.")):
            raise web.HTTPError(403, "This server is not being started.")
        self.set_status(204)


class StockRouteHandler(BatchSpawnerAPIHandler):
    """batchspawner's own route, for hubs whose spawner is batchspawner's; for ours there is none."""

    async def prepare(self) -> None:
        """Answer 404 where the hub's spawner, or one of this user's, is ours."""
        await super().prepare()
        spawners = getattr(self.current_user, "spawners", {}).values()
        if issubclass(self.settings["spawner_class"], EDFSpawner) or any(
            isinstance(each, EDFSpawner) for each in spawners
        ):
            raise web.HTTPError(404)
