"""What this server says to the hub with its own token, and what it hears."""

import http
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import Field

from gipfel_cluster.model import Frozen

_ANSWER_S = 30.0
_LONGEST_LINE = 300


class HubWord(Frozen):
    """When this server's time ends, in seconds since 1970, and what the site allows; 0 means not at all."""

    ends: int | None = None
    extend_s: int = Field(0, ge=0)
    idle_limit_s: int = Field(0, ge=0)
    idle_warning_s: int = Field(0, ge=0)


class HubRefusedError(Exception):
    """The hub does not know this server's token."""


class HubSilentError(Exception):
    """The hub did not answer, or not in a way that says anything; the message is one line."""


class Hub(Protocol):
    """The hub as a server sees it; both methods block."""

    def report(self, content: Mapping[str, Any]) -> HubWord:
        """Say how this server is used.

        Raises
        ------
        HubRefusedError, HubSilentError
        """

    def extend(self) -> HubWord:
        """Ask for more time.

        Raises
        ------
        HubRefusedError, HubSilentError
        """


class HttpHub:
    """The hub of ``JUPYTERHUB_API_URL``, asked with ``JUPYTERHUB_API_TOKEN``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._url = environment["JUPYTERHUB_API_URL"].rstrip("/") + "/gipfel/server"
        self._token = environment["JUPYTERHUB_API_TOKEN"]
        # An EDF may name a proxy for the internet, which the hub is not on, and which must not see the token.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def report(self, content: Mapping[str, Any]) -> HubWord:
        """Say how this server is used."""
        return self._post("/activity", content)

    def extend(self) -> HubWord:
        """Ask for more time."""
        return self._post("/extend", {"extend": True})

    def _post(self, path: str, content: Mapping[str, Any]) -> HubWord:
        request = urllib.request.Request(  # noqa: S310 - the hub's own address, from the hub
            self._url + path,
            data=json.dumps(content).encode(),
            headers={"Authorization": f"token {self._token}", "Content-Type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=_ANSWER_S) as answer:
                return HubWord.model_validate_json(answer.read())
        except urllib.error.HTTPError as error:
            if error.code in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
                raise HubRefusedError from error
            raise HubSilentError(_message(error)) from error
        except (OSError, ValueError) as error:
            raise HubSilentError(f"The hub does not answer ({type(error).__name__}).") from error


def hub_of(environment: Mapping[str, str]) -> Hub | None:
    """The hub that started this server, None where none did."""
    needed = ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN")
    return HttpHub(environment) if all(environment.get(name) for name in needed) else None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        words = str(json.loads(error.read())["message"])
    except (OSError, ValueError, KeyError, TypeError):
        words = f"The hub answered {error.code}."
    return " ".join(words.split())[:_LONGEST_LINE]
