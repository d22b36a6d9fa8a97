"""Culling service: stops idle servers through the hub's API.

``python -m gipfel_spawner.culling`` is a managed service of JupyterHub with the scopes ``list:users``,
``read:servers`` and ``delete:servers``. The spawner decides which servers are due (``idle_limit`` and
``idle_warning``): it considers GPU work and running job steps, which the last-activity times that
jupyterhub-idle-culler reads do not contain, and ignores the polling of an open browser tab.
"""

import argparse
import json
import logging
import os
import sys
import time
import urllib.error
from collections.abc import Mapping, Sequence
from typing import Any

from gipfel_cluster.hub_requests import open_hub
from gipfel_cluster.process.tree import end_with_parent

_ANSWER_S = 60.0

_log = logging.getLogger("gipfel-culling")


def cull(environment: Mapping[str, str]) -> None:
    """Stop the servers that are due.

    Parameters
    ----------
    environment
        Variables with ``JUPYTERHUB_API_URL`` and ``JUPYTERHUB_API_TOKEN``, which the hub sets for its
        services.

    Raises
    ------
    OSError
        The hub did not answer or refused to list its servers.
    """
    for server in _call(environment, "GET", "")["servers"]:
        if server["cull_due"]:
            _stop(environment, server)


def _stop(environment: Mapping[str, str], server: Mapping[str, Any]) -> None:
    name = f"{server['user']}/{server['server']}".rstrip("/")
    order = {"user": server["user"], "server": server["server"], "idle": True}
    try:
        _call(environment, "POST", "/stop", order)
    except urllib.error.HTTPError as error:
        # The server was used again after it was listed, or has ended.
        _log.info("%s is not stopped: %s", name, error)
    else:
        _log.warning("%s was idle for %d min and is stopped.", name, (server["idle_s"] or 0) // 60)


def _call(environment: Mapping[str, str], method: str, path: str, content: object = None) -> Any:
    with open_hub(method, f"/gipfel/servers{path}", content, environment, limit_s=_ANSWER_S) as answer:
        return json.load(answer)


def main(arguments: Sequence[str] | None = None) -> int:
    """Cull every ``--every`` seconds until the hub ends the service."""
    parser = argparse.ArgumentParser(prog="python -m gipfel_spawner.culling", description=main.__doc__)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two checks")
    parser.add_argument("--with-parent", type=int, help="end when the parent process with this PID ends")
    given = parser.parse_args(arguments)
    if given.with_parent:
        end_with_parent(given.with_parent)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    if "JUPYTERHUB_API_TOKEN" not in os.environ:
        _log.error("JUPYTERHUB_API_TOKEN is not set. Run this program as a service of JupyterHub.")
        return 2
    while True:
        try:
            cull(os.environ)
        except (OSError, ValueError, KeyError, TypeError) as error:
            # The hub starts after its services, and may restart.
            _log.info("The hub does not answer: %s", error)
        time.sleep(given.every)


if __name__ == "__main__":
    sys.exit(main())
