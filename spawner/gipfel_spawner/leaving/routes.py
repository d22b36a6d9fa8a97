"""What a running server tells and asks with its own token: how it is used, and more time."""

from tornado import web

from gipfel_cluster.model import GipfelError

from ..callback import OwnServerHandler
from .activity import ActivityReport, ExtendRequest


class ActivityRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server/activity``: a report, answered with when the server's time ends."""

    @web.authenticated
    def post(self) -> None:
        """Take the report; a token that the hub does not know is 403, which a server may end on."""
        spawner = self.own_spawner()
        self.answer(spawner.take_activity(self.body_as(ActivityReport, "This is no report of activity.")))


class ExtendRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server/extend``: more time, as much as the site allows."""

    @web.authenticated
    async def post(self) -> None:
        """Extend the job; 409 with one line where it can't be."""
        spawner = self.own_spawner()
        self.body_as(ExtendRequest, 'Give {"extend": true} and nothing else.')
        try:
            self.answer(await spawner.extend())
        except GipfelError as error:
            raise web.HTTPError(409, "%s", str(error)) from error
