"""Base of all routes: authenticate, authorize, and answer errors in one line of JSON."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from pydantic import ValidationError
from tornado import web
from tornado.iostream import StreamClosedError

from gipfel_cluster.model import Frozen, GipfelError, one_line

from ..server.telemetry import ServerTelemetry

#: The name under which an administrator's authorizer sees these routes.
AUTH_RESOURCE = "gipfel"

_Method = Callable[..., Awaitable[None] | None]
_Body = TypeVar("_Body", bound=Frozen)


def route(method: _Method) -> _Method:
    """Restrict a handler's method to users who are logged in and allowed; a `GipfelError` becomes a 400."""

    @wraps(method)
    async def answer(self: "GipfelRouteHandler", *arguments: str) -> None:
        try:
            await ensure_async(method(self, *arguments))
        except GipfelError as error:
            self.set_status(400)
            self.finish({"message": str(error)})
        except StreamClosedError:
            # An aborted download awaits no answer.
            return

    guarded: _Method = web.authenticated(authorized(answer))
    return guarded


class GipfelRouteHandler(APIHandler):
    """A JSON route with the server's telemetry at hand."""

    auth_resource = AUTH_RESOURCE

    @property
    def telemetry(self) -> ServerTelemetry:
        """Run, recorders and feed of this server."""
        found: ServerTelemetry = self.settings["gipfel"]
        return found

    def body_as(self, model: type[_Body]) -> _Body:
        """Return the request's body as a frozen model.

        Raises
        ------
        GipfelError
            It is not a JSON object of that form.
        """
        try:
            return model.model_validate_json(self.request.body)
        except ValidationError as error:
            first: dict[str, Any] = dict(error.errors()[0])
            where = ".".join(str(part) for part in first["loc"])
            raise GipfelError(one_line(f"The request is not valid: {where} {first['msg']}.")) from error
