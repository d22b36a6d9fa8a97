"""``gipfel/saturation``: the figure, and the stream that keeps it moving."""

import asyncio
import json
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from pydantic import Field, ValidationError
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from gipfel_cluster.model import Frozen, GipfelError

from ..server.broadcast import LONGEST_WINDOW_S, absent
from ..server.telemetry import ServerTelemetry
from .base import AUTH_RESOURCE, GipfelRouteHandler, route


class View(Frozen):
    """What part of the samples is asked for, and for which page."""

    window: float = Field(600.0, ge=10, le=LONGEST_WINDOW_S, description="Seconds before now.")
    dark: bool = False


def view_of(handler: JupyterHandler) -> View:
    """The view in a request's query.

    Raises
    ------
    GipfelError
        A value is out of range or no number.
    """
    query = handler.request.query_arguments
    given = {name: handler.get_query_argument(name) for name in ("window", "dark") if name in query}
    try:
        return View.model_validate(given)
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise GipfelError(f"The query is not valid: {why}.", "Use window=600.") from error


class SaturationRouteHandler(GipfelRouteHandler):
    """The figure as it is now."""

    @route
    async def get(self) -> None:
        """Answer figure and status."""
        view = view_of(self)
        _, broadcast = await self.telemetry.started()
        figure = await broadcast.figure(view.window, dark=view.dark)
        self.finish({"figure": figure.content, "status": broadcast.status})


class SaturationStreamRouteHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """The figure once, then its new points as they are recorded."""

    auth_resource = AUTH_RESOURCE
    _sending: asyncio.Task[None] | None = None
    _view: View

    def set_default_headers(self) -> None:
        """None: those of a page make no sense here."""

    @ws_authenticated
    async def get(self, *arguments: Any, **keywords: Any) -> None:
        """Upgrade for a user who is logged in and allowed."""
        allowed = self.authorizer.is_authorized(self, self.current_user, "read", AUTH_RESOURCE)
        if not await ensure_async(allowed):
            raise web.HTTPError(403)
        try:
            self._view = view_of(self)
        except GipfelError as error:
            raise web.HTTPError(400, "%s", error) from error
        await super().get(*arguments, **keywords)

    def open(self, *arguments: Any, **keywords: Any) -> None:
        """Start sending."""
        super().open(*arguments, **keywords)
        self._sending = asyncio.ensure_future(self._send())

    def on_message(self, message: str | bytes) -> None:
        """Nothing is expected from the page."""

    def on_close(self) -> None:
        """Stop sending."""
        if self._sending:
            self._sending.cancel()

    async def _send(self) -> None:
        telemetry: ServerTelemetry = self.settings["gipfel"]
        try:
            _, broadcast = await telemetry.started()
            async for message in broadcast.messages(self._view.window, dark=self._view.dark):
                await self.write_message(json.dumps(message, allow_nan=False))
        except WebSocketClosedError:
            return
        except GipfelError as error:
            # Kept open: a page that comes back again and again would get the same answer.
            await self.write_message(json.dumps({"type": "status", "status": absent(str(error))}))
