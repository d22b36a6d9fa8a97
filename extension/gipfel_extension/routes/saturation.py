"""``gipfel/saturation``: the figures, and the stream that keeps them moving."""

import asyncio
import json
import time
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from pydantic import ValidationError
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from gipfel_cluster.model import GipfelError, one_line

from ..server.broadcast import absent
from ..server.current_activity import WINDOW_S, current_activity
from ..server.page import Page
from ..server.telemetry import ServerTelemetry
from ..server.views import View
from .base import AUTH_RESOURCE, GipfelRouteHandler, route

_MOST_BYTES = 16_384


def view_of(handler: JupyterHandler) -> View:
    """The view in a request's query.

    Raises
    ------
    GipfelError
        A value is out of range or no number.
    """
    query = handler.request.query_arguments
    given: dict[str, Any] = {
        name: handler.get_query_argument(name) for name in ("window", "dark", "metric") if name in query
    }
    given["gpus"] = tuple(handler.get_query_arguments("gpu"))
    try:
        return View.model_validate(given)
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise GipfelError(one_line(f"The query is not valid: {why}."), "Use window=600.") from error


class SaturationRouteHandler(GipfelRouteHandler):
    """The figures as they are now."""

    @route
    async def get(self) -> None:
        """Answer figures and status."""
        view = view_of(self)
        _, broadcast = await self.telemetry.started()
        drawn = await broadcast.draw(view)
        self.finish({"figures": drawn.figures, "status": broadcast.status})


class ActivityRouteHandler(GipfelRouteHandler):
    """One number for the status bar, which asks every few seconds: that does not count as use of a server."""

    _track_activity = False

    @route
    async def get(self) -> None:
        """Answer how busy the GPUs are now."""
        _, broadcast = await self.telemetry.started()
        devices = await broadcast.devices()
        table = await broadcast.table(WINDOW_S)
        self.finish(await asyncio.to_thread(current_activity, table, devices, time.time_ns()))


class SaturationStreamRouteHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """The figures once, then new points as they are recorded, and the score; a page says what it looks at."""

    auth_resource = AUTH_RESOURCE
    _sending: asyncio.Task[None] | None = None
    _page: Page

    def set_default_headers(self) -> None:
        """None: those of a page make no sense here."""

    @ws_authenticated
    async def get(self, *arguments: Any, **keywords: Any) -> None:
        """Upgrade for a user who is logged in and allowed."""
        allowed = self.authorizer.is_authorized(self, self.current_user, "read", AUTH_RESOURCE)
        if not await ensure_async(allowed):
            raise web.HTTPError(403)
        try:
            self._page = Page(view_of(self))
        except GipfelError as error:
            raise web.HTTPError(400, "%s", error) from error
        await super().get(*arguments, **keywords)

    def open(self, *arguments: Any, **keywords: Any) -> None:
        """Start sending."""
        super().open(*arguments, **keywords)
        self._sending = asyncio.ensure_future(self._send())

    def on_message(self, message: str | bytes) -> None:
        """Look at what the page asks for; anything else ends the stream."""
        if len(message) > _MOST_BYTES:
            self.close(1009, "The message is too long.")
            return
        try:
            self._page.look(View.model_validate_json(message))
        except ValidationError:
            self.close(1007, "The message is no view.")

    def on_close(self) -> None:
        """Stop sending."""
        if self._sending:
            self._sending.cancel()

    async def _send(self) -> None:
        telemetry: ServerTelemetry = self.settings["gipfel"]
        try:
            _, broadcast = await telemetry.started()
            async for message in broadcast.messages(self._page):
                text = await asyncio.to_thread(json.dumps, message, allow_nan=False)
                await self.write_message(text)
        except WebSocketClosedError:
            return
        except GipfelError as error:
            # Kept open: a page that comes back again and again would get the same answer.
            await self.write_message(json.dumps({"type": "status", "status": absent(str(error))}))
