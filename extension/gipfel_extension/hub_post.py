"""Requests of a job to its hub, with the token of its server."""

import json
import urllib.request
from collections.abc import Mapping


def post_to_hub(path: str, content: object, environment: Mapping[str, str], *, limit_s: float = 30.0) -> None:
    """Send a JSON document to a route below the hub's API.

    Raises
    ------
    OSError
        The hub can't be reached, or refused the request (`urllib.error.HTTPError`).
    KeyError
        No hub started this process.
    """
    request = urllib.request.Request(  # noqa: S310 - the address comes from the hub
        environment["JUPYTERHUB_API_URL"].rstrip("/") + path,
        data=json.dumps(content).encode(),
        headers={
            "Authorization": f"token {environment['JUPYTERHUB_API_TOKEN']}",
            "Content-Type": "application/json",
        },
        method="POST",
    )
    # An EDF may set a proxy for the internet. It can't reach the hub and must not see the token.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(request, timeout=limit_s).close()
