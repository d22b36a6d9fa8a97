"""HTTP GET for sources, with limits of time and size, and errors in one sentence."""

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

#: Environment variable with the value of the ``Authorization`` header. It is not an option, because all users
#: of a node can read command lines.
AUTHORIZATION = "GIPFEL_METRICS_AUTHORIZATION"

_MAX_BYTES = 256 << 20


def checked_url(kind: str, url: str) -> str:
    """Return a source's URL without trailing slashes.

    Raises
    ------
    SourceError
        The URL is not a valid HTTP URL, or contains a password.
    """
    parts = urllib.parse.urlsplit(url)
    fix = f"Use {kind}:http://HOST:PORT."
    try:
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        valid = False
    if not valid or any(ord(c) <= 32 for c in url):
        raise SourceError(f"{url!r} is not a valid HTTP address.", fix)
    if parts.username is not None or parts.password is not None:
        raise SourceError(
            "The address contains a password, which all users of the node could read.",
            f"Put the value of the Authorization header into ${AUTHORIZATION}.",
        )
    return url.rstrip("/")


def get(
    url: str, *, seconds: float, max_bytes: int = _MAX_BYTES, environment: Mapping[str, str] = os.environ
) -> bytes:
    """Return the response's body; the whole transfer must end within `seconds`, and stay on the URL's host.

    Raises
    ------
    SourceError
        There is no response, or it is an error, late, too large or from another host.
    """
    request = urllib.request.Request(url)  # noqa: S310 - checked to be HTTP
    if environment.get(AUTHORIZATION):
        # An unredirected header is not sent to redirect targets.
        request.add_unredirected_header("Authorization", environment[AUTHORIZATION])
    parts = urllib.parse.urlsplit(url)
    address = f"{parts.scheme}://{parts.netloc}{parts.path}"
    sockets = _Sockets()
    opener = urllib.request.build_opener(_Tracked(sockets), _SameHost())
    # A socket timeout restarts with each received byte, so it does not limit the whole transfer.
    deadline = threading.Timer(seconds, sockets.shut_down)
    deadline.daemon = True
    deadline.start()
    try:
        with opener.open(request, timeout=seconds) as answer:
            body: bytes = answer.read(max_bytes + 1)
        if sockets.timeout_reason or (answer.length and len(body) <= max_bytes):
            raise OSError("the connection was closed early")  # noqa: TRY301 - as an error of the connection
    except urllib.error.HTTPError as error:
        raise SourceError(
            f"{address} answers {error.code}: {_reason(error)}.", "Ask the site's administrators."
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = sockets.timeout_reason or getattr(error, "reason", None) or error
        raise SourceError(
            f"{address} doesn't answer: {reason}.", "Check the address, and that the server is running."
        ) from error
    finally:
        deadline.cancel()
    if len(body) > max_bytes:
        raise SourceError(
            f"{address} answers with more than {max_bytes >> 20} MiB.", "Request fewer nodes or less time."
        )
    return body


def get_json(
    url: str, *, seconds: float, max_bytes: int = _MAX_BYTES, environment: Mapping[str, str] = os.environ
) -> Any:
    """Return the parsed JSON of the response.

    Raises
    ------
    SourceError
        As :func:`get`, or the response is not JSON.
    """
    body = get(url, seconds=seconds, max_bytes=max_bytes, environment=environment)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{url.partition('?')[0]} does not answer with JSON.", "Check that it is the URL of a Prometheus."
        ) from error


class _Sockets:
    """Connections of one request, which are shut down at its deadline; `timeout_reason` is then set."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.timeout_reason = ""

    def tracking(self, kind: Callable[..., Any]) -> Callable[..., Any]:
        """Return a subclass of a connection class that registers its sockets."""
        sockets = self._sockets

        class Tracking(kind):  # type: ignore[misc, valid-type]
            def connect(self) -> None:
                super().connect()
                sockets.append(self.sock)

        return Tracking

    def shut_down(self) -> None:
        """Shut down every connection, which ends pending reads."""
        self.timeout_reason = "it takes too long"
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Tracked(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Handler of ``http`` and ``https`` that registers its sockets."""

    def __init__(self, sockets: _Sockets) -> None:
        super().__init__()
        self._sockets = sockets

    def do_open(self, http_class: Any, req: Any, **connection: Any) -> Any:
        return super().do_open(self._sockets.tracking(http_class), req, **connection)


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Redirect handler that follows redirects on the same host and raises for other hosts and schemes."""

    def redirect_request(  # noqa: PLR0917 - urllib's signature
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if new.scheme not in ("http", "https") or new.hostname != old.hostname:
            raise urllib.error.HTTPError(req.full_url, code, f"it redirects to {newurl[:200]!r}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the reason in a Prometheus error response, else the HTTP status text."""
    try:
        return str(json.loads(error.read(1 << 16))["error"])[:300]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, http.client.HTTPException):
        return str(error.reason)
