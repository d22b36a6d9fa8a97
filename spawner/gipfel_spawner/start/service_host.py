"""A host name of its own for a service, such as ``board--ada.hub.example.org``, where the hub has subdomains.

JupyterHub has one route per server, a path at the host name of its user, and it deletes routes that it does
not know. The further route of the service's own host is therefore one of the proxy's ``extra_routes``. The
route of the path remains: there, the service's front door redirects to its own host.
"""

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sqlalchemy.orm import object_session

if TYPE_CHECKING:
    from ..spawner import EDFSpawner

_MAX_LABEL = 63


def possible_host(user: Any, server: str) -> tuple[str, str]:
    """Return the origin that a service of this user can have, and the reason if it can have none."""
    domain, hub = str(user.settings.get("domain") or ""), user.settings.get("subdomain_host")
    if not hub:
        return "", "all servers of this hub share one host name (JupyterHub.subdomain_host is not set)"
    name = f"{server}--{user.domain}"
    if len(name.partition(".")[0]) > _MAX_LABEL:
        return "", f"{name} is too long for a host name"
    # Hyphens in the third and fourth place are reserved for IDNA; names of users that JupyterHub encodes
    # begin with "u-". A user or a service of the hub could have the same host name as this service.
    hook = user.settings["subdomain_hook"]
    others = {hook(f"{server}--{user.name}", domain, kind="user"), hook(server, domain, kind="service")}
    if len(server) == 2 or server.startswith("u-") or name in others:
        return "", f"{name} could be the host name of somebody else; choose another name for the service"
    scheme, port = urlsplit(hub).scheme, urlsplit(hub).port
    return f"{scheme}://{name}{f':{port}' if port else ''}", ""


class ServiceHost:
    """The host of one service, with its route and its login.

    Example
    -------
    ``host.set("https://board--ada.hub.example.org")`` before the job is submitted, ``host.route(target)``
    whenever the front door has another address, ``host.end()``. Without a host, these do nothing.
    """

    def __init__(self, spawner: "EDFSpawner") -> None:
        self._spawner = spawner
        #: Origin, such as ``https://board--ada.hub.example.org``; empty for a service below a path.
        self.origin = ""

    @property
    def callback(self) -> str:
        """Return the address to which the hub's login leads back."""
        return f"{self.origin}/oauth_callback" if self.origin else ""

    @property
    def address(self) -> str:
        """Return the address of the running server for programs on nodes."""
        server = self._spawner.server
        return f"{server.host}/" if self.origin else str(server.url)

    def set(self, origin: str) -> None:
        """Give the starting service this origin, or none, and let the hub's login lead back there."""
        self.origin = origin
        stored = self._spawner.orm_spawner
        if origin and stored.oauth_client is not None:
            stored.oauth_client.redirect_uri = self.callback
            session = object_session(stored)
            if session is not None:
                session.commit()

    async def route(self, target: str) -> None:
        """Lead the host to the front door at ``target``, such as ``http://node1:8000``."""
        if not self.origin:
            return
        self._proxy.extra_routes[self._spec] = target
        try:
            await self._proxy.add_route(self._spec, target, {"extra": True})
        except Exception as error:  # noqa: BLE001 - a proxy that does not answer gets all routes when it does
            self._spawner.log.warning("No route for %s yet: %s", self.origin, error)

    def end(self) -> None:
        """Remove the route."""
        spec, had_route = self._spec, bool(self.origin)
        self.origin = ""
        if had_route and self._proxy.extra_routes.pop(spec, None) is not None:
            removing = asyncio.ensure_future(self._proxy.delete_route(spec))
            # The hub's next check of its routes removes what is left.
            removing.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def _proxy(self) -> Any:
        return self._spawner.user.settings["proxy"]

    @property
    def _spec(self) -> str:
        return f"{urlsplit(self.origin).hostname}/"
