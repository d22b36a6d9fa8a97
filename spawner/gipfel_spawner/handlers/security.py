"""Security of running servers: what each reports about its gate, its traffic and its image.

The operators' page shows only numbers and known words: no file names and no destinations. `end_network`
ends the network of a server's gates without ending the server, and writes that to the audit log.
"""

import json
import logging
from functools import partial
from typing import Any, Literal

from pydantic import Field
from tornado import web
from tornado.httpclient import HTTPError

from gipfel_cluster.model import Frozen, OneLine

from ..lifetime import StopOrder
from ..spawner import EDFSpawner
from .usage import ServerAnswers, fetch_answer

_END = "gipfel/network/end"
_NOTE = "gipfel: security of the server list"


class SharedSecurity(Frozen):
    """Answer of a server; restricted to numbers and known words, since its user can forge it.

    ``gate`` is ``none`` if nothing has run behind a gate, ``closed`` after the gates' network was ended.
    ``refused`` counts refused connections, ``over_limit`` how often the job's traffic exceeded a limit of the
    site. ``critical`` and ``high`` count known vulnerabilities of the image, None if it was not judged; if
    ``image`` is ``partly``, parts of it could not be judged, and there may be more. ``excepted`` counts those
    that the site has accepted, ``advisories_days`` is the age of the advisories in days. ``malicious`` counts
    malicious files among those that were scanned in this run.
    """

    gate: Literal["none", "open", "closed"] = "none"
    image: Literal["none", "judged", "partly", "unjudged"] = "judged"
    refused: int = Field(0, ge=0, le=10**6)
    over_limit: int = Field(0, ge=0, le=10**6)
    critical: int | None = Field(None, ge=0, le=10**6)
    high: int | None = Field(None, ge=0, le=10**6)
    malicious: int = Field(0, ge=0, le=10**6)
    excepted: int = Field(0, ge=0, le=10**6)
    advisories_days: int | None = Field(None, ge=0, le=10**5)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the lines of the table's cell, the most serious one first."""
        found = []
        if self.malicious:
            found.append(f"▲ {self.malicious} malicious file{'s' if self.malicious > 1 else ''}")
        if self.critical:
            found.append(f"▲ {self.critical} critical")
        if self.over_limit:
            found.append("▲ network over the limit")
        if self.high:
            found.append(f"{self.high} high")
        if self.image == "none":
            found.append("no container image")
        elif self.critical is None:
            found.append("image not judged")
        elif self.image == "partly":
            found.append("image judged in part")
        if self.critical is not None and self.advisories_days is not None:
            found.append(f"advisories {self.advisories_days} d old")
        if self.excepted:
            found.append(f"{self.excepted} excepted")
        if self.gate != "none":
            found.append(f"gate {self.gate}" + (f", {self.refused} refused" if self.refused else ""))
        return tuple(found)


def security_cache(settings: dict[str, Any], log: logging.Logger) -> ServerAnswers[SharedSecurity]:
    """Return the hub's cache of the security of all servers, created at the first call."""
    fetch = partial(fetch_answer, path="gipfel/sharing/security")
    new = ServerAnswers(log, SharedSecurity, fetch, _NOTE)
    cache: ServerAnswers[SharedSecurity] = settings.setdefault("gipfel_security_cache", new)
    return cache


class EndNetworkRequest(Frozen):
    """Request to end the network of a server's gates."""

    user: OneLine = Field(min_length=1, max_length=255)
    server: OneLine = Field("", max_length=255)
    reason: OneLine = Field("", max_length=300)


def deletable_server(handler: Any, user_name: str, name: str) -> EDFSpawner:
    """Return a server that the request's scopes let it stop.

    Raises
    ------
    HTTPError
        404: there is no such server, or the request's scopes don't include it.
    """
    user = handler.find_user(user_name)
    spawner = user.spawners.get(name) if user and name in user.spawners else None
    allowed = handler.get_scope_filter("delete:servers")
    if not isinstance(spawner, EDFSpawner) or not allowed(spawner.orm_spawner, kind="server"):
        raise web.HTTPError(404, "There is no such server, or you may not stop it.")
    return spawner


async def end_network(handler: Any, request: EndNetworkRequest) -> None:
    """End the network of what runs behind gates in a server's job, and record who requested it.

    Raises
    ------
    HTTPError
        404: there is no such server, or the request's scopes don't include it; 409: it is not running, or has
        no gate, so that its network ends only with its job; 502: it does not answer.
    """
    spawner = deletable_server(handler, request.user, request.server)
    if not spawner.ready or not spawner.server:
        raise web.HTTPError(409, "This server is not running.")
    cache = security_cache(handler.settings, handler.log)
    key, by = (request.user, request.server), handler.current_user.name
    body = json.dumps({"by": f"operator {by}", "reason": request.reason}).encode()
    try:
        answer = json.loads(await fetch_answer(spawner, cache.token(key, spawner), _END, body))
    except (HTTPError, OSError, ValueError, TimeoutError) as error:
        raise web.HTTPError(502, "The server does not answer. Stop it to end its network.") from error
    if not (isinstance(answer, dict) and answer.get("ended") is True):
        raise web.HTTPError(
            409, "Nothing in this job runs behind a gate. Stop the server to end its network."
        )
    reason = request.reason or "network of its gates ended"
    spawner.lifetime.audit("network", order=StopOrder(event="network", by=by, reason=reason))
    cache.forget(key)
