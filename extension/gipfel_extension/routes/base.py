"""Base of all routes: authentication, authorization, and errors as one line of JSON; base of websockets."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import ApiPath, to_os_path
from pydantic import ValidationError
from tornado import web
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from gipfel_cluster.model import Frozen, GipfelError, first_problem

from ..server.telemetry import ServerTelemetry

#: Resource name of these routes for a Jupyter server authorizer.
AUTH_RESOURCE = "gipfel"
_MAX_ORIGIN = 300

_Method = Callable[..., Awaitable[None] | None]
_Body = TypeVar("_Body", bound=Frozen)


def route(method: _Method) -> _Method:
    """Require an authorized user for a handler's method, and respond to `GipfelError` with status 400."""

    @wraps(method)
    async def respond(self: "GipfelRouteHandler", *arguments: str) -> None:
        try:
            await ensure_async(method(self, *arguments))
        except GipfelError as error:
            self.set_status(400)
            self.finish({"message": str(error)})
        except StreamClosedError:
            # The client has aborted the download.
            return

    protected: _Method = web.authenticated(authorized(respond))
    return protected


class _Request(JupyterHandler):
    """Access of routes and websockets to the server's telemetry and the request's query."""

    auth_resource = AUTH_RESOURCE

    @property
    def telemetry(self) -> ServerTelemetry:
        """Run, recorders and feed of this server."""
        found: ServerTelemetry = self.settings["gipfel"]
        return found

    def query_as(self, model: type[_Body], **repeated: str) -> _Body:
        """Return the request's query as a frozen model; if a name repeats, the last value counts.

        Unknown names are ignored, because JupyterLab adds the time to the query to prevent caching.

        Parameters
        ----------
        repeated
            Fields of several values, each with the name that the query repeats for it.

        Raises
        ------
        GipfelError
            The query is not valid for the model.
        """
        given = self.request.query_arguments
        single = (model.model_fields.keys() & given.keys()) - repeated.keys()
        query: dict[str, Any] = {name: self.get_query_argument(name) for name in single}
        query |= {
            field: tuple(self.get_query_arguments(name)) for field, name in repeated.items() if name in given
        }
        try:
            return model.model_validate(query)
        except ValidationError as error:
            raise invalid("query", error) from error


class GipfelRouteHandler(_Request, APIHandler):
    """JSON route with access to the server's telemetry."""

    def body_as(self, model: type[_Body]) -> _Body:
        """Return the request's body as a frozen model.

        Raises
        ------
        GipfelError
            The body is not valid for the model.
        """
        try:
            return model.model_validate_json(self.request.body)
        except ValidationError as error:
            raise invalid("request", error) from error

    async def send_pieces(self, read: Callable[[], bytes], content_type: str, name: str = "") -> None:
        """Send what `read` returns, up to its first empty piece; with a name as a download."""
        self.set_header("Content-Type", content_type)
        if name:
            self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        while piece := await asyncio.to_thread(read):
            self.write(piece)
            await self.flush()
        self.finish(set_content_type=content_type)


class GipfelSocketHandler(WebSocketMixin, WebSocketHandler, _Request):
    """Websocket that sends the messages of a subclass to an authenticated and authorized user."""

    _sending: asyncio.Task[None] | None = None

    def set_default_headers(self) -> None:
        """Skip the HTML page headers on a websocket."""

    @ws_authenticated
    async def get(self, *arguments: Any, **keywords: Any) -> None:
        """Open the websocket."""
        allowed = self.authorizer.is_authorized(self, self.current_user, "read", AUTH_RESOURCE)
        if not await ensure_async(allowed):
            raise web.HTTPError(403)
        self.parse_query()
        await super().get(*arguments, **keywords)

    def parse_query(self) -> None:
        """Raise ``HTTPError(400)`` if the query is not valid."""

    def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages as JSON-serializable values."""
        raise NotImplementedError

    def open(self, *arguments: Any, **keywords: Any) -> None:
        """Start sending."""
        super().open(*arguments, **keywords)
        # Store the address through which the user's browser reaches this server, for links that commands in
        # its terminals print; a hub passes its public address to servers only if the site has configured it.
        # Jupyter Server has checked the origin.
        origin = self.request.headers.get("Origin", "")
        if urlsplit(origin).scheme in {"http", "https"} and len(origin) <= _MAX_ORIGIN:
            os.environ["GIPFEL_BROWSER_ORIGIN"] = origin
        self._sending = asyncio.ensure_future(self._send())

    def on_message(self, message: str | bytes) -> None:
        """Ignore messages from the page."""

    def on_close(self) -> None:
        """Stop sending."""
        if self._sending:
            self._sending.cancel()

    async def _send(self) -> None:
        try:
            async for message in self.messages():
                text = await asyncio.to_thread(json.dumps, message, allow_nan=False)
                await self.write_message(text)
        except WebSocketClosedError:
            return


def below_root(handler: JupyterHandler, path: str) -> Path:
    """Return the file or directory of an API path.

    Raises
    ------
    GipfelError
        The path is not below the server's root directory.
    """
    if "\0" in path or ".." in Path(path).parts:
        raise GipfelError(
            "This path is not below the server's root directory.", "Choose one in the file browser."
        )
    return Path(to_os_path(ApiPath(path), str(root_directory(handler))))


def root_directory(handler: JupyterHandler) -> Path:
    """Return the server's root directory."""
    contents: Any = handler.contents_manager
    return Path(getattr(contents, "root_dir", ".")).resolve()


def invalid(what: str, error: ValidationError) -> GipfelError:
    """Return the error of a query or body that is not valid."""
    return GipfelError(f"The {what} is not valid: {' '.join(first_problem(error))}.")
