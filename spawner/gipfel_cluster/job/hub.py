"""What a job and its hub exchange: requests with the token of the job's server, and services as JSON.

The hub reads no user's files: blueprints are found, and a service's directory is written, by ``python -m
gipfel_extension.services.hub_commands``, which the hub runs as the user.
"""

import http
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from ..model import Frozen, OneLine
from ..scheduler.protocol import Memory, Name, TimeLimit

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
    # An EDF may set a proxy for the internet. It can't reach the hub and must not see the token.
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


#: The module that the hub runs as the user; its first argument is ``list`` or ``prepare``.
COMMANDS_MODULE = "gipfel_extension.services.hub_commands"
_Line = Annotated[OneLine, Field(max_length=1000)]


class ServiceParameter(Frozen):
    """A parameter of a service as the form shows it; ``default`` is the text of its default."""

    name: _Line
    type: _Line
    default: OneLine = ""
    required: bool = False
    help: _Line = ""
    choices: tuple[_Line, ...] = ()


class ServiceResources(Frozen):
    """Resources of a service, used where the user chose none; empty or 0 for the cluster's default."""

    gpus: int = 0
    cpus: int = 0
    memory: Memory = ""
    time: TimeLimit = ""
    partition: Name = ""


class ServiceOffer(Frozen):
    """A service that a user can start.

    ``memory`` and ``start_s`` were measured when the service had just started; empty and 0 if unknown.
    """

    name: OneLine = Field(pattern=r"^[a-z0-9-]{1,30}$")
    title: _Line
    about: _Line = ""
    version: _Line = ""
    license: _Line = ""
    memory: _Line = ""
    start_s: float = 0.0
    parameters: tuple[ServiceParameter, ...] = ()
    edf: OneLine = ""
    resources: ServiceResources = ServiceResources()

    @property
    def cost(self) -> str:
        """Return what the service's resources cost in an hour, without a change by the user."""
        gpus, cpus = self.resources.gpus, self.resources.cpus
        used = [f"{gpus} GPU hour{'' if gpus == 1 else 's'}" if gpus else "no GPU"]
        if cpus:
            used.append(f"{cpus} CPU hour{'' if cpus == 1 else 's'}")
        return f"{' and '.join(used)} per hour"


class ServiceOffers(Frozen):
    """All services of a user; ``problems`` has a line for each blueprint that can't be used."""

    services: tuple[ServiceOffer, ...] = ()
    problems: tuple[OneLine, ...] = ()


class ServiceOrder(Frozen):
    """A service to prepare: the options of a start, the server's name and the path of its URL.

    A successor is the next job of the service that runs: its directory stays as it is.
    """

    name: str
    blueprint: str
    parameters: dict[str, str] = Field(default_factory=dict)
    prefix: str
    edf: str = ""
    engine: str = ""
    is_successor: bool = False


class PreparedService(Frozen):
    """A service whose directory is written; with ``problem``, ``fix`` and ``field`` instead if it is not.

    ``packages`` is a directory with its packages, empty if the job makes it. ``limit_s`` is how many seconds
    it may take from the start of its job until it is ready. ``keep_up`` asks for another start after a job
    that was killed or reached its time limit, and ``overlap_s`` for one so many seconds before that limit,
    which takes over (0: none); with ``has_pages`` browsers show what the service answers.
    """

    directory: OneLine = ""
    packages: OneLine = ""
    edf: OneLine = ""
    resources: ServiceResources = ServiceResources()
    limit_s: float = 0.0
    keep_up: bool = False
    overlap_s: int = 0
    has_pages: bool = True
    problem: OneLine = ""
    fix: OneLine = ""
    field: OneLine = ""
