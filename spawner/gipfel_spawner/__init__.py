"""The hub side: a spawner that starts notebook servers in jobs, inside EDF containers."""

from batchspawner.api import BatchSpawnerAPIHandler
from jupyterhub.apihandlers import default_handlers
from jupyterhub.apihandlers.users import UserServerAPIHandler

from .callback import ServerRouteHandler
from .refusal import CheckedServerHandler
from .spawner import EDFSpawner

__all__ = ["EDFSpawner"]

# Importing batchspawner registers a route where a server's token may set any attribute of its spawner, the
# command that runs as the user among them. The hub reads this list after it has imported its spawner class.
default_handlers[:] = [each for each in default_handlers if each[1] is not BatchSpawnerAPIHandler]
# JupyterHub stores options before its spawner can refuse them.
default_handlers[:] = [
    (each[0], CheckedServerHandler, *each[2:]) if each[1] is UserServerAPIHandler else each
    for each in default_handlers
]
if not any(each[1] is ServerRouteHandler for each in default_handlers):
    default_handlers.append((r"/api/gipfel/server", ServerRouteHandler))
