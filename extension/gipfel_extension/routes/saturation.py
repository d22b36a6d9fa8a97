"""``gipfel/saturation``: figures, the stream of new points, sharing of the score, and simulated sources."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tornado import web

from gipfel_cluster.model import Frozen, GipfelError, OneLine
from gipfel_cluster.runs import runs_root

from ..server.analysis import (
    Sharing,
    mean_activity,
    read_sharing,
    score_document,
    shared_score,
    write_sharing,
)
from ..server.broadcast import Page
from ..server.views import View
from ..telemetry.live.feed import absent_status
from .base import GipfelRouteHandler, GipfelSocketHandler, route

_MAX_BYTES = 16_384
_WINDOW_S = 600.0


class SaturationRouteHandler(GipfelRouteHandler):
    """``GET``: the current figures."""

    @route
    async def get(self) -> None:
        """Send figures and status."""
        view = self.query_as(View, gpus="gpu", gauges="gauge")
        _, broadcast = await self.telemetry.ensure_started()
        drawn = await broadcast.draw(view)
        self.finish({"figures": drawn.figures, "status": broadcast.status})


class SaturationStreamRouteHandler(GipfelSocketHandler):
    """Websocket that sends figures, then new points and scores; a page sends its view."""

    _page: Page

    def parse_query(self) -> None:
        """Parse the first view."""
        try:
            self._page = Page(self.query_as(View, gpus="gpu", gauges="gauge"))
        except GipfelError as error:
            raise web.HTTPError(400, "%s", error) from error

    def on_message(self, message: str | bytes) -> None:
        """Change the page's view; close the websocket if the message is not a valid view."""
        if len(message) > _MAX_BYTES:
            self.close(1009, "The message is too long.")
            return
        try:
            self._page.set_view(View.model_validate_json(message))
        except ValidationError:
            self.close(1007, "The message is not a valid view.")

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of the broadcast."""
        try:
            _, broadcast = await self.telemetry.ensure_started()
            async for message in broadcast.messages(self._page):
                yield message
        except GipfelError as error:
            # The websocket stays open: otherwise the page would reconnect and get the same error.
            yield {"type": "status", "status": asdict(absent_status(str(error)))}


class SharingRouteHandler(GipfelRouteHandler):
    """``GET, POST``: consent of the user to share the score."""

    @route
    async def get(self) -> None:
        """Send the saved consent."""
        sharing = await asyncio.to_thread(read_sharing, os.environ)
        self.finish(sharing.model_dump())

    @route
    async def post(self) -> None:
        """Save or withdraw the consent."""
        sharing = self.body_as(Sharing)
        try:
            await asyncio.to_thread(write_sharing, os.environ, sharing)
        except OSError as error:
            raise GipfelError(
                f"The choice can't be saved: {error.strerror}.",
                "Check the quota and permissions of your home directory.",
            ) from error
        self.finish(sharing.model_dump())


class SharedSaturationRouteHandler(GipfelRouteHandler):
    """``GET``: score and mean SM activity of the last ten minutes, for the hub's pages."""

    @route
    async def get(self) -> None:
        """Send the score if the user has consented to share it."""
        sharing = await asyncio.to_thread(read_sharing, os.environ)
        if not sharing.saturation:
            self.finish({"shared": False})
            return
        run, broadcast = await self.telemetry.ensure_started()
        table = await broadcast.table(_WINDOW_S)
        document = await asyncio.to_thread(score_document, table, run.folder.telemetry)
        activity = await asyncio.to_thread(mean_activity, table, _WINDOW_S)
        self.finish(shared_score(document, _WINDOW_S, activity))


class SourceRequest(Frozen):
    """Simulated source: ``synthetic:NAME`` or ``replay:FILE``; relative paths start at the server's root."""

    source: OneLine


class SourceRouteHandler(GipfelRouteHandler):
    """``POST, DELETE``: the simulated source of this server; it has its own recorder process."""

    @route
    async def post(self) -> None:
        """Start a simulated source and stop an earlier one."""
        source = self.body_as(SourceRequest).source
        kind, _, name = source.partition(":")
        if kind == "replay":
            file = await asyncio.to_thread(user_file, name, self.settings["server_root_dir"])
            source = f"replay:{file}"
        elif kind != "synthetic" or not name:
            raise GipfelError(
                f"{source!r} is not a simulated source.",
                "Use synthetic:training, synthetic:idle or replay:FILE.",
            )
        await self.telemetry.simulate(source)
        self.set_status(201)
        await self._send_status()

    @route
    async def delete(self) -> None:
        """Stop the simulated source, if there is one."""
        await self.telemetry.stop_simulation()
        await self._send_status()

    async def _send_status(self) -> None:
        _, broadcast = await self.telemetry.ensure_started()
        self.finish(dict(broadcast.status))


def user_file(path: str, root_dir: str) -> Path:
    """Return a file below the server's root, the home directory or the runs directory of the user.

    Raises
    ------
    GipfelError
        The path is outside these directories or is not a file.
    """
    root = Path(root_dir).expanduser()
    try:
        file = (root / Path(path).expanduser()).resolve()
        found = file.is_file()
    except (OSError, RuntimeError) as error:  # the name is too long, or ~user is unknown
        raise GipfelError(f"{path[:80]} is not a valid path.", "Give an absolute path.") from error
    folders = [root.resolve(), Path.home().resolve(), runs_root().resolve()]
    if not any(file.is_relative_to(folder) for folder in folders):
        raise GipfelError(f"{path} is outside your directories.", f"Copy the file below {folders[0]}.")
    if not found:
        raise GipfelError(f"There is no file {path}.", "Give the path of a recorded segment.")
    return file
