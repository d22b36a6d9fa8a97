"""``gipfel/leaving``: when this server ends, more time, and a word that it is still wanted."""

from ..server.leaving import Leaving
from .base import GipfelRouteHandler, route


class LeavingRouteHandler(GipfelRouteHandler):
    """What the lab asks every half minute, which is no use of this server."""

    _track_activity = False

    @property
    def leaving(self) -> Leaving:
        """How this server ends."""
        found: Leaving = self.settings["gipfel_leaving"]
        return found

    @route
    async def get(self) -> None:
        """Answer the end of the job's time, the notices before it, and a pending stop for idleness."""
        self.finish(self.leaving.describe())


class ExtendRouteHandler(LeavingRouteHandler):
    """More time."""

    @route
    async def post(self) -> None:
        """Ask for as much as the site gives, and answer as `LeavingRouteHandler`."""
        await self.leaving.extend()
        self.finish(self.leaving.describe())


class StayRouteHandler(LeavingRouteHandler):
    """A word against being stopped for idleness."""

    @route
    async def post(self) -> None:
        """Count this as use, and answer as `LeavingRouteHandler`."""
        await self.leaving.stay()
        self.finish(self.leaving.describe())
