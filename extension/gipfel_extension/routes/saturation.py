"""``gipfel/saturation``: figures, the stream of new points, consent to share the score, simulated sources."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from pydantic import ValidationError
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from gipfel_cluster.model import Frozen, GipfelError, Line, one_line
from gipfel_cluster.runs import runs_root

from ..server.analysis import Sharing, judged, read_sharing, shared_of, write_sharing
from ..server.broadcast import Page, absent
from ..server.current_activity import WINDOW_S, current_activity
from ..server.telemetry import ServerTelemetry
from ..server.views import View
from .base import AUTH_RESOURCE, GipfelRouteHandler, route

_MOST_BYTES = 16_384
_WINDOW_S = 600.0


def view_of(handler: JupyterHandler) -> View:
    """Return the view in a request's query.

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
    """``GET``: the figures as they are now."""

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
    """Websocket: the figures, then new points and scores as they come; a page sends what it shows."""

    auth_resource = AUTH_RESOURCE
    _sending: asyncio.Task[None] | None = None
    _page: Page

    def set_default_headers(self) -> None:
        """Skip the HTML page headers on a websocket."""

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
            self._page.set_view(View.model_validate_json(message))
        except ValidationError:
            self.close(1007, "The message is not a valid view.")

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


class SharingRouteHandler(GipfelRouteHandler):
    """``GET, POST``: consent of the user."""

    @route
    async def get(self) -> None:
        """Answer it."""
        sharing = await asyncio.to_thread(read_sharing, os.environ)
        self.finish(sharing.model_dump())

    @route
    async def post(self) -> None:
        """Give it, or take it back."""
        sharing = self.body_as(Sharing)
        try:
            await asyncio.to_thread(write_sharing, os.environ, sharing)
        except OSError as error:
            raise GipfelError(
                f"The choice can't be written down: {error.strerror}.", "Is your home full?"
            ) from error
        self.finish(sharing.model_dump())


class SharedSaturationRouteHandler(GipfelRouteHandler):
    """``GET``: score of the last ten minutes, for the hub's page of servers."""

    @route
    async def get(self) -> None:
        """Answer that nothing is shared, unless the user consented."""
        sharing = await asyncio.to_thread(read_sharing, os.environ)
        if not sharing.saturation:
            self.finish({"shared": False})
            return
        run, broadcast = await self.telemetry.started()
        table = await broadcast.table(_WINDOW_S)
        document = await asyncio.to_thread(judged, table, run.folder.telemetry)
        self.finish(shared_of(document, _WINDOW_S))


class SourceRequest(Frozen):
    """A source, ``synthetic:NAME`` or ``replay:FILE``; relative paths are below the server's root."""

    source: Line


class SourceRouteHandler(GipfelRouteHandler):
    """``POST, DELETE``: one simulated source per server, in a recorder process of its own."""

    @route
    async def post(self) -> None:
        """Start it, in place of one that runs; 201."""
        source = self.body_as(SourceRequest).source
        kind, _, name = source.partition(":")
        if kind == "replay":
            file = await asyncio.to_thread(own_file, name, self.settings["server_root_dir"])
            source = f"replay:{file}"
        elif kind != "synthetic" or not name:
            raise GipfelError(
                f"{source!r} is not a simulated source.",
                "Use synthetic:training, synthetic:idle or replay:FILE.",
            )
        await self.telemetry.simulate(source)
        self.set_status(201)
        await self._answer()

    @route
    async def delete(self) -> None:
        """End it; also when there is none."""
        await self.telemetry.stop_simulation()
        await self._answer()

    async def _answer(self) -> None:
        _, broadcast = await self.telemetry.started()
        self.finish(dict(broadcast.status))


def own_file(path: str, root_dir: str) -> Path:
    """Return the file, where it lies in one of the user's folders: server root, home, or run folders.

    Raises
    ------
    GipfelError
        It is elsewhere or not a file.
    """
    root = Path(root_dir).expanduser()
    try:
        file = (root / Path(path).expanduser()).resolve()
        found = file.is_file()
    except (OSError, RuntimeError) as error:  # a name too long; an unknown user
        raise GipfelError(f"{path[:80]} can't be a file's path.", "Give an absolute path.") from error
    folders = [root.resolve(), Path.home().resolve(), runs_root().resolve()]
    if not any(file.is_relative_to(folder) for folder in folders):
        raise GipfelError(f"{path} lies outside your folders.", f"Copy it below {folders[0]}.")
    if not found:
        raise GipfelError(f"There is no file {path}.", "Give the path of a recorded segment.")
    return file
