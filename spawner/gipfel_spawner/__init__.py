"""JupyterHub side: a spawner that starts notebook servers as jobs, inside EDF containers."""

from batchspawner.api import BatchSpawnerAPIHandler
from jupyterhub.apihandlers import default_handlers
from jupyterhub.apihandlers.users import UserServerAPIHandler
from jupyterhub.handlers import default_handlers as page_handlers
from jupyterhub.handlers.pages import HomeHandler, SpawnHandler

from .handlers.form import ROUTES, ValidatedServerHandler, ValidatedSpawnHandler
from .handlers.home import (
    ExtendServerHandler,
    HomePageHandler,
    RepeatHandler,
    ServerLogHandler,
    ShareServerHandler,
)
from .handlers.own_server import (
    ActivityRouteHandler,
    BatchspawnerRouteHandler,
    ExtendRouteHandler,
    ServerRouteHandler,
    ServiceShareRouteHandler,
    ServiceTokenRouteHandler,
    VettingRouteHandler,
)
from .handlers.servers import (
    HUB_TEMPLATES,
    EndNetworkRouteHandler,
    ServersPageHandler,
    ServersRouteHandler,
    StopRouteHandler,
)
from .spawner import EDFSpawner

__all__ = ["HUB_TEMPLATES", "EDFSpawner"]

_REPLACED = {
    # Importing batchspawner registers a route on which a server's token can set any attribute of its spawner,
    # including the command that runs as the user. A hub imports all installed spawners, even unused ones.
    BatchSpawnerAPIHandler: BatchspawnerRouteHandler,
    # JupyterHub stores user options before its spawner can reject them.
    UserServerAPIHandler: ValidatedServerHandler,
    # JupyterHub logs a stack trace for each invalid form or link.
    SpawnHandler: ValidatedSpawnHandler,
    HomeHandler: HomePageHandler,
}
for _handlers in (default_handlers, page_handlers):
    _handlers[:] = [(each[0], _REPLACED.get(each[1], each[1]), *each[2:]) for each in _handlers]
default_handlers += [each for each in ROUTES if each not in default_handlers]
if not any(each[1] is ServerRouteHandler for each in default_handlers):
    default_handlers += [
        # Requests of a server about itself; its services are those that Gipfel starts from a blueprint.
        (r"/api/gipfel/server", ServerRouteHandler),
        (r"/api/gipfel/server/vetting", VettingRouteHandler),
        (r"/api/gipfel/server/activity", ActivityRouteHandler),
        (r"/api/gipfel/server/extend", ExtendRouteHandler),
        (r"/api/gipfel/server/service-token", ServiceTokenRouteHandler),
        (r"/api/gipfel/server/share", ServiceShareRouteHandler),
        # Operators list servers, stop them, and cut off the network behind their gates.
        (r"/api/gipfel/servers", ServersRouteHandler),
        (r"/api/gipfel/servers/stop", StopRouteHandler),
        (r"/api/gipfel/servers/end-network", EndNetworkRouteHandler),
        # Requests of the home page.
        (r"/api/gipfel/users/([^/]+)/extend", ExtendServerHandler),
        (r"/api/gipfel/users/([^/]+)/log", ServerLogHandler),
        (r"/api/gipfel/users/([^/]+)/share", ShareServerHandler),
    ]
    page_handlers.append((r"/gipfel/servers", ServersPageHandler))
    # Starts a server again with the options of an earlier session.
    page_handlers.append((r"/gipfel/repeat/([0-9]{1,15})", RepeatHandler))
