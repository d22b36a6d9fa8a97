"""Services of a hub, for programs in one of its servers: start, stop and follow them through its API."""

import json
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from gipfel_cluster.hub_requests import open_hub
from gipfel_cluster.model import GipfelError, one_line

_VARIABLES = ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_USER")
_ANSWER_S = 30.0
#: Limit in seconds for the hub's answer to a start or a stop (the hub itself waits up to ten for these), and
#: for the time between two events of a start.
_START_S = 90.0
_EVENT_S = 3600.0
_MAX_BYTES = 1 << 20
_Report = Callable[[str], None]


class HubServices:
    """The services of this server's user.

    Example
    -------
    ``hub_services(os.environ).start("board", {"service": "tensorboard", "parameters": {…}}, print)``
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.user = environment["JUPYTERHUB_USER"]

    def start(
        self, name: str, options: Mapping[str, Any] | None, report: _Report, *, wait: bool = True
    ) -> None:
        """Start a service, and wait until it is ready; without options, with those of its last start.

        Raises
        ------
        GipfelError
            The hub refuses, or the start failed.
        """
        self._request("POST", self._server(name), dict(options or {}), limit_s=_START_S)
        if not wait:
            return
        for event in self._events(name):
            if event.get("failed"):
                raise GipfelError(
                    f"The service {name} did not start: {one_line(str(event.get('message', '')))}",
                    f"See `gipfel logs {name}`.",
                )
            if event.get("ready"):
                return
            report(one_line(str(event.get("message", ""))))
        if self.state(name) != "running":
            raise GipfelError(f"The service {name} did not start.", f"See `gipfel logs {name}`.")

    def stop(self, name: str) -> None:
        """Stop a service; return before it has ended.

        Raises
        ------
        GipfelError
            The hub refuses.
        """
        self._request("DELETE", self._server(name), None, limit_s=_START_S)

    def state(self, name: str) -> str:
        """Return ``running``, ``waiting``, ``stopping``, or ``ended`` if the hub has no such server running.

        Raises
        ------
        GipfelError
            The hub does not answer.
        """
        user = self._request("GET", f"/users/{quote(self.user)}", None)
        server = (user.get("servers") or {}).get(name) or {}
        if server.get("pending") == "stop":
            return "stopping"
        if server.get("ready"):
            return "running"
        return "waiting" if server.get("pending") else "ended"

    def token(self, name: str, expires_s: int, owner: str = "") -> tuple[str, str]:
        """Return a new token of the hub that gives access to one service alone, and the service's address.

        Parameters
        ----------
        owner
            Another user, who shares the service with this one.

        Raises
        ------
        GipfelError
            There is no such service, or the hub refuses.
        """
        content = {"service": name, "expires_s": expires_s, "owner": owner}
        answer = self._request("POST", "/gipfel/server/service-token", content)
        return str(answer["token"]), str(answer["url"])

    def share(self, name: str, *, kind: str = "user", who: str = "", seconds: int = 0) -> dict[str, Any]:
        """Give a user or group access to a service for some seconds, or end it with 0; return ``shares``.

        Each share has ``kind``, ``name`` and ``expires``, an ISO time; ``refusal`` is the reason why the
        service can't be shared. Without ``who``, only return them.

        Raises
        ------
        GipfelError
            There is no such service, it can't be shared, or there is no such user or group.
        """
        content = {"service": name, "kind": kind, "name": who, "seconds": seconds}
        return self._request("POST", "/gipfel/server/share", content)

    def _server(self, name: str) -> str:
        return f"/users/{quote(self.user)}/servers/{quote(name, safe='')}"

    def _events(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a start until the hub closes the stream."""
        try:
            with open_hub(
                "GET", f"{self._server(name)}/progress", None, self._environment, limit_s=_EVENT_S
            ) as stream:
                while line := stream.readline(_MAX_BYTES):
                    if line.startswith(b"data:"):
                        event = json.loads(line[5:])
                        yield event
                        if event.get("ready") or event.get("failed"):
                            return
        except urllib.error.HTTPError as error:
            if error.code not in {400, 404}:
                raise _refusal(error) from error
        except (OSError, ValueError) as error:
            raise GipfelError(f"The hub does not answer: {error}.", "See `gipfel ps`.") from error

    def _request(
        self, method: str, path: str, content: object, *, limit_s: float = _ANSWER_S
    ) -> dict[str, Any]:
        try:
            with open_hub(method, path, content, self._environment, limit_s=limit_s) as response:
                answer = json.loads(response.read(_MAX_BYTES) or b"{}")
        except urllib.error.HTTPError as error:
            raise _refusal(error) from error
        except (OSError, ValueError) as error:
            raise GipfelError(f"The hub does not answer: {error}.", "Try again in a minute.") from error
        return answer if isinstance(answer, dict) else {}


def hub_services(environment: Mapping[str, str]) -> HubServices | None:
    """Return the services of the hub that has started this server; None if there is no hub."""
    return HubServices(environment) if all(environment.get(name) for name in _VARIABLES) else None


def _refusal(error: urllib.error.HTTPError) -> GipfelError:
    try:
        message = one_line(str(json.loads(error.read(_MAX_BYTES)).get("message", "")))
    except (OSError, ValueError, AttributeError):
        message = ""
    if error.code == 403:
        return GipfelError(
            f"The hub does not let this server start or stop services. {message}".strip(),
            "Ask its administrators to give the role 'server' the scope servers!user, or use --here.",
        )
    return GipfelError(message or f"The hub answers with status {error.code}.")
