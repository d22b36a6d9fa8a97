"""Requests to the hub with the token of a job's server. Only the standard library: servers start sooner."""

import http
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

#: For `report_port`, in seconds: time limit of one request, time limit of all attempts, pause between two.
_RESPONSE_LIMIT_S = 30.0
_RETRY_LIMIT_S = 300.0
_PAUSE_S = 1.0


def post_to_hub(path: str, content: object, environment: Mapping[str, str], *, limit_s: float = 30.0) -> None:
    """Send a JSON document to a route below the hub's API.

    Raises
    ------
    OSError
        The hub can't be reached, or refused the request (`urllib.error.HTTPError`).
    KeyError
        No hub started this process.
    """
    open_hub("POST", path, content, environment, limit_s=limit_s).close()


def open_hub(
    method: str, path: str, content: object, environment: Mapping[str, str], *, limit_s: float
) -> http.client.HTTPResponse:
    """Send a request to a route of the hub's API, without a body if content is None; return the response.

    Raises
    ------
    OSError
        As for `post_to_hub`.
    KeyError
        As for `post_to_hub`.
    """
    request = urllib.request.Request(  # noqa: S310 - the address comes from the hub
        environment["JUPYTERHUB_API_URL"].rstrip("/") + path,
        data=None if content is None else json.dumps(content).encode(),
        headers={
            "Authorization": f"token {environment['JUPYTERHUB_API_TOKEN']}",
            "Content-Type": "application/json",
        },
        method=method,
    )
    # An EDF may set a proxy for the internet. The proxy can't reach the hub, and must not see the token.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    response: http.client.HTTPResponse = opener.open(request, timeout=limit_s)
    return response


def report_port(port: int, environment: Mapping[str, str]) -> None:
    """Report the port of this server to the hub, with the server's token.

    A hub that does not respond may be restarting, so the request is repeated for five minutes.

    Raises
    ------
    OSError
        The hub refused the port, or can't be reached.
    """
    deadline = time.monotonic() + _RETRY_LIMIT_S
    while True:
        try:
            return post_to_hub("/gipfel/server", {"port": port}, environment, limit_s=_RESPONSE_LIMIT_S)
        except urllib.error.HTTPError as error:
            if error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR or time.monotonic() > deadline:
                raise
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)
