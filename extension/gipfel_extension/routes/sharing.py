"""``gipfel/sharing``: what administrators may see, and what they see then."""

import asyncio
import os

from gipfel_cluster.model import GipfelError

from ..server.analysis import judged
from ..server.sharing import Sharing, read_sharing, shared_of, write_sharing
from .base import GipfelRouteHandler, route

_WINDOW_S = 600.0


class SharingRouteHandler(GipfelRouteHandler):
    """The user's consent."""

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
    """The score of the last ten minutes, for the hub's page of servers."""

    @route
    async def get(self) -> None:
        """Answer no more than that nothing is shared, unless the user said otherwise."""
        sharing = await asyncio.to_thread(read_sharing, os.environ)
        if not sharing.saturation:
            self.finish({"shared": False})
            return
        run, broadcast = await self.telemetry.started()
        table = await broadcast.table(_WINDOW_S)
        document = await asyncio.to_thread(judged, table, run.folder.telemetry)
        self.finish(shared_of(document, _WINDOW_S))
