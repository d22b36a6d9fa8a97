"""HTTP as sources need it: a GET with a limit in time and size, and an error in one sentence."""

import http.client
import json
import os
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ..sample import SourceError

#: The environment variable with the value of the ``Authorization`` header, if a server wants one: a command
#: line could be read by everybody on the node.
AUTHORIZATION = "GIPFEL_METRICS_AUTHORIZATION"

_MOST_BYTES = 256 << 20


def checked_url(kind: str, url: str) -> str:
    """Return a source's URL without its last slash.

    Raises
    ------
    SourceError
        It is none, or holds a password.
    """
    parts = urllib.parse.urlsplit(url)
    fix = f"Use {kind}:http://HOST:PORT."
    try:
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        known = False
    if not known or any(ord(c) <= 32 for c in url):
        raise SourceError(f"{url!r} is not a valid HTTP address.", fix)
    if parts.username is not None or parts.password is not None:
        raise SourceError(
            "The address holds a password, which everybody on the node could read.",
            f"Put the value of the Authorization header into ${AUTHORIZATION}.",
        )
    return url.rstrip("/")


def get(
    url: str, *, seconds: float, most_bytes: int = _MOST_BYTES, environment: Mapping[str, str] = os.environ
) -> bytes:
    """Return the answer's body, whole within some seconds, from the named host and no other.

    Raises
    ------
    SourceError
        No answer, or one that is not a success, is late, too long or elsewhere.
    """
    request = urllib.request.Request(url)  # noqa: S310 - checked to be HTTP
    if environment.get(AUTHORIZATION):
        # Not to whom it may redirect us.
        request.add_unredirected_header("Authorization", environment[AUTHORIZATION])
    where = urllib.parse.urlsplit(url)
    place = f"{where.scheme}://{where.netloc}{where.path}"
    opened = _Sockets()
    opener = urllib.request.build_opener(_Http(opened), _Https(opened), _SameHost())
    # A time-out of the socket alone restarts with each byte.
    cut = threading.Timer(seconds, opened.cut)
    cut.daemon = True
    cut.start()
    try:
        with opener.open(request, timeout=seconds) as answer:
            body: bytes = answer.read(most_bytes + 1)
            missing = answer.length
    except urllib.error.HTTPError as error:
        raise SourceError(f"{place} answers {error.code}: {_reason(error)}.", "Ask the site.") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = opened.late or getattr(error, "reason", None) or error
        raise SourceError(f"{place} doesn't answer: {reason}.", "Is the address right, and up?") from error
    finally:
        cut.cancel()
    if opened.late:
        raise SourceError(f"{place} doesn't answer: {opened.late}.", "Is the address right, and up?")
    if len(body) > most_bytes:
        raise SourceError(f"{place} answers with more than {most_bytes >> 20} MiB.", "Ask for less.")
    if missing:
        raise SourceError(f"{place} doesn't answer: it breaks off.", "Is the address right, and up?")
    return body


def get_json(
    url: str, *, seconds: float, most_bytes: int = _MOST_BYTES, environment: Mapping[str, str] = os.environ
) -> Any:
    """Return the answer's JSON.

    Raises
    ------
    SourceError
        As :func:`get`, or it is not JSON.
    """
    body = get(url, seconds=seconds, most_bytes=most_bytes, environment=environment)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{url.partition('?')[0]} does not answer with JSON.", "Is it a Prometheus?"
        ) from error


class _Sockets:
    """The connections of one request, which are cut at its deadline; `late` is then the reason."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.late = ""

    def noting(self, kind: Callable[..., Any]) -> Callable[..., Any]:
        """Return a class of connections whose sockets are known here."""
        sockets = self._sockets

        class Noting(kind):  # type: ignore[misc, valid-type]
            def connect(self) -> None:
                super().connect()
                sockets.append(self.sock)

        return Noting

    def cut(self) -> None:
        """End every connection, whoever reads from it."""
        self.late = "it takes too long"
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Http(urllib.request.HTTPHandler):
    def __init__(self, sockets: _Sockets) -> None:
        super().__init__()
        self._sockets = sockets

    def do_open(self, http_class: Any, req: Any, **connection: Any) -> Any:
        return super().do_open(self._sockets.noting(http_class), req, **connection)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, sockets: _Sockets) -> None:
        super().__init__()
        self._sockets = sockets

    def do_open(self, http_class: Any, req: Any, **connection: Any) -> Any:
        return super().do_open(self._sockets.noting(http_class), req, **connection)


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Redirects to another path, port or HTTPS are followed; to another host or scheme they are errors."""

    def redirect_request(  # noqa: PLR0917 - urllib's own
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if new.scheme not in ("http", "https") or new.hostname != old.hostname:
            raise urllib.error.HTTPError(req.full_url, code, f"it sends us to {newurl[:200]!r}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _reason(error: urllib.error.HTTPError) -> str:
    """Return Prometheus' reason for refusing a query, else the status as text."""
    try:
        return str(json.loads(error.read(1 << 16))["error"])[:300]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, http.client.HTTPException):
        return str(error.reason)
