"""``/hub/gipfel/servers``: who runs what where, with a button to stop it, for administrators."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, FileSystemLoader
from jupyterhub.handlers import BaseHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.utils import url_path_join
from pydantic import ValidationError
from tornado import web

from ..spawner import EDFSpawner
from .api import StopRequest, saved_gpu_hours, stop_server, visible_servers
from .orphans import orphan_jobs
from .saturation import board_of
from .table import running_servers

#: Templates of the hub's pages; with it in ``JupyterHub.template_paths`` the navigation links to the page.
HUB_TEMPLATES = str(Path(__file__).parents[1] / "templates" / "hub")

_MOST_BYTES = 4000


class ServersPageHandler(BaseHandler):
    """The page; it needs no script, which only sorts, filters and refreshes it."""

    async def prepare(self) -> None:
        """Refuse who may not see the servers, and say who may."""
        await super().prepare()
        if self.current_user and "list:users" not in self.parsed_scopes:
            raise web.HTTPError(
                403,
                "Only administrators see this page. Who starts the hub names them in GIPFEL_ADMINS.",
            )

    @web.authenticated
    @needs_scope("list:users")
    async def get(self) -> None:
        """Show the servers that this administrator may read."""
        await self._show()

    @web.authenticated
    @needs_scope("list:users")
    async def post(self) -> None:
        """Stop the server of the form's two fields, and show the page again."""
        if len(self.request.body) > _MOST_BYTES:
            raise web.HTTPError(400, f"The form is longer than {_MOST_BYTES} bytes.")
        fields = {name: self.get_body_argument(name, "") for name in ("user", "server")}
        try:
            request = StopRequest.model_validate(fields)
        except ValidationError:
            raise web.HTTPError(400, "The form names no server.") from None
        await stop_server(self, request)
        self.redirect(url_path_join(self.hub.base_url, "gipfel/servers"), status=303)

    async def _show(self) -> None:
        servers = visible_servers(self)
        seen = {(server.user, server.server) for server in servers}
        spawners = [s for s, row in running_servers(self.users.values()) if (row.user, row.server) in seen]
        saturation = await board_of(self.settings, self.log).look(spawners)
        # Theirs whose scopes reach every server.
        orphans, unknown = await orphan_jobs(self) if "delete:servers" in self.parsed_scopes else ((), "")
        self.finish(
            await self._page().render_async(
                **self.template_namespace,
                xsrf_token=self.xsrf_token.decode("ascii"),
                servers=servers,
                saturation={key: shared.words for key, shared in saturation.items()},
                orphans=orphans,
                orphans_unknown=unknown,
                several=self._has_clusters(),
                gpus=sum(each.gpus for each in servers if each.nodes),
                waiting_gpus=sum(each.gpus for each in servers if not each.nodes),
                users=len({each.user for each in servers}),
                saved=await saved_gpu_hours(self),
                may_stop="delete:servers" in self.parsed_scopes,
                words=_words,
                now=datetime.now(UTC),
            )
        )

    def _has_clusters(self) -> bool:
        spawners = (each for user in self.users.values() for each in user.spawners.values())
        return any(isinstance(each, EDFSpawner) and each.clusters for each in spawners)

    def _page(self) -> Any:
        # Also where the site's configuration does not name our templates.
        hub = self.settings["jinja2_env"]
        loader = ChoiceLoader([hub.loader, FileSystemLoader(HUB_TEMPLATES)])
        return hub.overlay(loader=loader).get_template("gipfel-servers.html")


def _words(seconds: float | None) -> str:
    """A span of time in two units at most, such as ``1 h 12 min``; empty for None."""
    if seconds is None:
        return ""
    minutes = max(int(seconds), 0) // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
