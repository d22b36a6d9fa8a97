"""Handlers of the hub's home page and of the buttons on its session cards.

`HomePageHandler` is JupyterHub's home page with `HomeContent`, `RepeatHandler` opens the form with the
options of an earlier session, `ExtendServerHandler` and `ServerLogHandler` answer a card's buttons. A job's
log is read as its user.
"""

from typing import Any

from jupyterhub.handlers.pages import HomeHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.utils import url_path_join
from pydantic import Field, ValidationError
from tornado import web
from tornado.httputil import url_concat

from gipfel_cluster.model import Frozen, GipfelError, OneLine

from ..spawner import EDFSpawner
from .form import REPEAT_PARAMETER, FormHandler, RateLimiter, free_name
from .session_cards import HomeContent, home_content


class HomePageHandler(HomeHandler):
    """JupyterHub's home page; with `EDFSpawner` its template finds `HomeContent` as ``gipfel_home``."""

    _content: HomeContent | None = None

    @web.authenticated
    async def get(self) -> None:
        """Show the page."""
        if isinstance(self.current_user.spawner, EDFSpawner):
            self._content = await home_content(self.current_user, self.settings, self.log)
        await super().get()

    @property
    def template_namespace(self) -> dict[str, Any]:
        """JupyterHub's namespace with the page's content."""
        return {**super().template_namespace, "gipfel_home": self._content}


class RepeatHandler(HomeHandler):
    """``GET …/repeat/ID``: the form with the options of one of the user's own earlier sessions."""

    @web.authenticated
    async def get(self, number: str) -> None:
        """Redirect to the form; nothing is changed, because another site's page may cause this request."""
        user = self.current_user
        if not isinstance(user.spawner, EDFSpawner):
            raise web.HTTPError(404)
        lifetime = user.spawner.lifetime
        session = await lifetime.history().get(user.name, int(number), since=lifetime.user_created)
        if session is None:
            raise web.HTTPError(404, "This session is not in the history any more.")
        name = free_name(session.server, {each.name for each in user.spawners.values() if each.active})
        if name and not self.allow_named_servers:
            raise web.HTTPError(409, "Your server is running. Stop it first, then start it again.")
        form = url_path_join(self.hub.base_url, "spawn", user.escaped_name, name)
        self.redirect(url_concat(form, {REPEAT_PARAMETER: number}))


class NamedServer(Frozen):
    """Request about one of the user's servers; empty for the default one."""

    server: OneLine = Field("", max_length=255)


class ServerActionHandler(FormHandler):
    """Base of the handlers for the buttons of a card, with the server's name in the body."""

    def own_server(self, spawner: EDFSpawner, content: dict[str, Any]) -> EDFSpawner:
        """Return the running server that the request names.

        Raises
        ------
        GipfelError
            There is no such server, or it does not run.
        """
        try:
            name = NamedServer.model_validate(content).server
        except ValidationError:
            raise web.HTTPError(400, 'Give {"server": name} and nothing else.') from None
        spawners = spawner.user.spawners
        found = spawners.get(name)
        if not isinstance(found, EDFSpawner) or not found.active or not found.job_id:
            raise GipfelError("This server is not running.", "Reload the page.")
        return found


class ExtendServerHandler(ServerActionHandler):
    """``POST …/extend`` with ``server``: extend its job by the site's ``extend_by``."""

    rate = RateLimiter(20, 60.0)

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return ``ends``, the new end in seconds since 1970, or the problem."""
        status = await self.own_server(spawner, content).lifetime.extend()
        return {"ends": status.ends}


class ServerLogHandler(ServerActionHandler):
    """``POST …/log`` with ``server``: the end of its job's log, for the user alone."""

    rate = RateLimiter(20, 60.0)

    @needs_scope("servers")
    async def post(self, user_name: str) -> None:
        """Answer the user's own request; 403 for an administrator's."""
        if self.current_user.kind != "user" or self.current_user.name != user_name:
            raise web.HTTPError(403, "Only users themselves can read their logs.")
        await super().post(user_name)

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return ``text``, the last lines of the log."""
        log = await self.own_server(spawner, content).follower.read_log()
        return {"text": log.text}
