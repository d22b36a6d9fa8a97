"""``gipfel/lifetime``: when this server ends, more time, and keeping an idle server."""

from ..server.lifetime import ServerLifetime
from .base import GipfelRouteHandler, route


class LifetimeRouteHandler(GipfelRouteHandler):
    """``GET``: end of this server, which the lab asks every half minute and which does not count as use."""

    _track_activity = False

    @property
    def lifetime(self) -> ServerLifetime:
        """End of this server."""
        found: ServerLifetime = self.settings["gipfel_lifetime"]
        return found

    @route
    async def get(self) -> None:
        """Answer the end of the job's time, the notices before it, and a pending stop for idleness."""
        self.finish(self.lifetime.describe())


class ExtendRouteHandler(LifetimeRouteHandler):
    """``POST``: more time."""

    @route
    async def post(self) -> None:
        """Request as much as the site gives, and answer as `LifetimeRouteHandler`."""
        await self.lifetime.extend()
        self.finish(self.lifetime.describe())


class StayRouteHandler(LifetimeRouteHandler):
    """``POST``: keep an idle server."""

    @route
    async def post(self) -> None:
        """Count this as use, and answer as `LifetimeRouteHandler`."""
        await self.lifetime.stay()
        self.finish(self.lifetime.describe())
