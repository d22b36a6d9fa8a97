"""The one thing that a server tells the hub: its port."""

import json
from typing import Annotated

from jupyterhub.apihandlers import APIHandler
from pydantic import Field, StrictInt, ValidationError
from tornado import web

from gipfel_cluster.model import Frozen

from .spawner import EDFSpawner

_MOST_BYTES = 1000


class ServerReport(Frozen):
    """What a server may say of itself."""

    port: Annotated[StrictInt, Field(ge=1024, le=65535)]


class ServerRouteHandler(APIHandler):
    """``POST /hub/api/gipfel/server``, with the token of the server that starts; once for each start."""

    @web.authenticated
    def post(self) -> None:
        """Take the port of a server that starts; anything else is 400 or 403."""
        token = self.get_auth_token() or ""
        spawners = getattr(self.current_user, "spawners", {}).values()
        spawner = next((each for each in spawners if isinstance(each, EDFSpawner) and each.owns(token)), None)
        if spawner is None:
            raise web.HTTPError(403, "This token belongs to no server.")
        if len(self.request.body) > _MOST_BYTES:
            raise web.HTTPError(400, "Give a port and nothing else.")
        try:
            report = ServerReport.model_validate_json(self.request.body)
        except ValidationError:
            raise web.HTTPError(400, 'Give {"port": number}, from 1024 to 65535, and nothing else.') from None
        if not spawner.take_port(report.port):
            raise web.HTTPError(403, "This server is not being started, or has given its port already.")
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"port": report.port}))
