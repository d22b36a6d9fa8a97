"""Rules of the front door for paths, headers, cookies and redirects, as pure functions.

The service is not trusted with the credentials of visitors, and not trusted to change what else the browser
does on the same origin, where the hub is: cookies are limited to the service's path, and headers that concern
the whole origin are removed.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import unquote, urlsplit

Headers = Iterable[tuple[str, str]]

_MAX_DECODINGS = 4
#: Maximum number of paths and of names of headers, at most 16 KiB each, whose rules are remembered.
_MAX_REPEATED = 256
_SLASHES = re.compile(r"%(?:25)*(?:2f|5c)", re.IGNORECASE)
_SEGMENTS = re.compile(r"[/\\]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TARGET = re.compile(r"/[\x21\x22\x24-\x7e]*")
# Printable ASCII without backslashes, which browsers read as slashes.
_LOCATION = re.compile(r"[\x21-\x5b\x5d-\x7e]{1,8000}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\uffff]*")
_COOKIE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
#: Cookies of the hub, of its notebook servers and of front doors.
_FOREIGN_COOKIES = ("jupyterhub", "_xsrf", "service-", "username-", "gipfel-", "__host-", "__secure-")

# RFC 9110, section 7.6.1: these concern one connection.
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade")
)
_NOT_TO_SERVICE = frozenset(
    ("authorization", "proxy-authorization", "cookie", "host", "content-length", "expect", "forwarded", "via")
)
_WEBSOCKET = "sec-websocket-"
# Prefixes of headers with which outer proxies name a visitor or another path. The front door alone decides
# who has access to which paths.
_OF_PROXIES = (
    *("x-forwarded-", "x-real-", "x-remote-", "remote-", "x-jupyterhub", _WEBSOCKET),
    *("x-auth-request-", "x-webauth-", "x-authenticated-", "x-client-ip", "x-cluster-client-ip"),
    *("true-client-ip", "x-original-", "x-rewrite-", "x-accel-"),
)
# Headers that act on the whole origin, ask for a password in the hub's name, or are commands for an outer
# proxy.
_NOT_TO_BROWSER = frozenset(
    (
        *("content-location", "refresh", "www-authenticate", "proxy-authenticate"),
        *("clear-site-data", "strict-transport-security", "alt-svc", "expect-ct"),
        *("public-key-pins", "nel", "report-to", "reporting-endpoints", "x-sendfile", "origin-agent-cluster"),
        *("access-control-allow-credentials", "content-length", "authentication-info"),
    )
)


class RefusedError(Exception):
    """A request or a response that the front door does not pass on: its status and one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def service_path(target: str, prefix: str, *, mode: str, allowed: tuple[str, ...]) -> str:
    """Return the request target for the service, percent-encoded as the client sent it.

    Parameters
    ----------
    target
        Request target, starting with ``/``.
    prefix
        Path of the service's URL, which starts and ends with ``/``.
    mode
        ``strip`` the prefix, or ``keep`` it.
    allowed
        Allowed paths without the prefix, as in `blueprint.Part`; empty for all.

    Raises
    ------
    RefusedError
        The target is malformed, is not below the prefix, leaves it, or is not allowed.
    """
    if not _TARGET.fullmatch(target):
        raise RefusedError(400, "The request's path is not valid.")
    path, question, query = target.partition("?")
    return _path_below(path, prefix, mode, allowed) + question + query


# Requests repeat their paths: decoding them takes as long as parsing a request.
@lru_cache(_MAX_REPEATED)
def _path_below(path: str, prefix: str, mode: str, allowed: tuple[str, ...]) -> str:
    if not path.startswith(prefix):
        raise RefusedError(404, "This service has another path.")
    rest = path[len(prefix) - 1 :]
    decoded = _decoded(rest)
    segments = [segment.partition(";")[0] for segment in _SEGMENTS.split(decoded)]
    if any(segment in {".", ".."} for segment in segments):
        raise RefusedError(400, "The request's path has dot segments.")
    if _CONTROL.search(decoded):
        # A service that repeats the decoded path in a header would send a header of the visitor's choice.
        raise RefusedError(400, "The request's path has control characters.")
    if allowed and not _is_allowed(rest, decoded, allowed):
        raise RefusedError(404, "The service's blueprint does not allow this path.")
    return path if mode == "keep" else rest


def _decoded(path: str) -> str:
    """Return a path decoded as often as a careless service might; refuse one that never ends."""
    for _ in range(_MAX_DECODINGS):
        decoded = unquote(path, errors="replace")
        if decoded == path:
            return decoded
        path = decoded
    raise RefusedError(400, "The request's path is encoded several times.")


def _is_allowed(rest: str, decoded: str, allowed: tuple[str, ...]) -> bool:
    # An encoded slash, a backslash, an empty segment or a parameter may mean another path to the service.
    if _SLASHES.search(rest) or "\\" in decoded or "//" in decoded or ";" in decoded:
        return False
    return any(decoded.startswith(each) if each.endswith("/") else decoded == each for each in allowed)


def headers_to_service(
    headers: Headers, *, own_cookies: frozenset[str], prefix: str
) -> list[tuple[str, str]]:
    """Return the headers for the service: without credentials, and with its prefix.

    The service's ``Host`` is ``localhost``; so is an ``Origin`` that is the front door's own, because many
    services compare the two.

    Parameters
    ----------
    own_cookies
        Names of the front door's cookies.
    """
    listed = list(headers)
    named = _named_by_connection(listed)
    kept = []
    for name, value in listed:
        plain = _name_for_service(name)
        if not plain or plain in named:
            continue
        if plain == "origin":
            host = next((each for key, each in listed if key.lower() == "host"), "")
            value = "http://localhost" if origin_host(value) == host else value  # noqa: PLW2901
        kept.append((name, value))
    cookies = "; ".join(_service_cookies(listed, own_cookies))
    if cookies:
        kept.append(("Cookie", cookies))
    return [*kept, ("Host", "localhost"), ("X-Forwarded-Prefix", prefix.rstrip("/"))]


@lru_cache(_MAX_REPEATED)
def _name_for_service(name: str) -> str:
    """Return a header's name in lower case, with hyphens; empty for one that the service does not get."""
    # WSGI does not distinguish underscores from hyphens.
    plain = name.lower().replace("_", "-")
    is_dropped = plain in _HOP_BY_HOP or plain in _NOT_TO_SERVICE or plain.startswith(_OF_PROXIES)
    return "" if is_dropped else plain


def headers_to_browser(headers: Headers, *, prefix: str, mode: str) -> Iterator[tuple[str, str]]:
    """Yield the headers for the browser, with cookies and redirects limited to the service's path.

    Raises
    ------
    RefusedError
        The response redirects to another place.
    """
    listed = list(headers)
    named = _named_by_connection(listed)
    for name, value in listed:
        lower = _name_for_browser(name)
        if not lower or not _VALUE.fullmatch(value):
            continue
        if lower == "set-cookie":
            cookie = limited_cookie(value, prefix)
            if cookie:
                yield name, cookie
        elif lower == "location":
            yield name, limited_redirect(value, prefix=prefix, mode=mode)
        elif lower == "service-worker-allowed":
            # A service worker may act on all pages of its service, and on none of the hub.
            yield name, prefix
        elif lower not in named:
            yield name, value


@lru_cache(_MAX_REPEATED)
def _name_for_browser(name: str) -> str:
    """Return a header's name in lower case; empty for one that browsers don't get."""
    lower = name.lower()
    is_dropped = lower in _HOP_BY_HOP or lower in _NOT_TO_BROWSER
    return "" if is_dropped or lower.startswith(("x-accel-", _WEBSOCKET)) else lower


def origin_host(origin: str) -> str:
    """Return the host and port of an ``Origin`` header; a hyphen if it is malformed or opaque."""
    try:
        return urlsplit(origin).netloc or "-"
    except ValueError:
        return "-"


def limited_cookie(value: str, prefix: str) -> str:
    """Return a ``Set-Cookie`` limited to the service's path and host; empty for one with a foreign name."""
    first, *attributes = value.split(";")
    name, equals, _ = first.partition("=")
    if not equals or not _COOKIE.fullmatch(name.strip()) or _is_foreign(name.strip(), frozenset()):
        return ""
    kept, path = [first.strip()], prefix
    for each in attributes:
        key, _, content = each.strip().partition("=")
        if key.lower() == "path" and content.startswith(prefix) and ".." not in content:
            path = content
        elif key.lower() not in {"path", "domain"} and key:
            kept.append(each.strip())
    return "; ".join([*kept, f"Path={path}"])


def limited_redirect(location: str, *, prefix: str, mode: str) -> str:
    """Return a redirect as a path below the prefix.

    Raises
    ------
    RefusedError
        It leads to another place.
    """
    refused = RefusedError(502, "The service redirects to another site or out of its path.")
    if not _LOCATION.fullmatch(location) or location.startswith("//"):
        raise refused
    try:
        parts = urlsplit(location)
    except ValueError:
        raise refused from None
    is_absolute = bool(parts.netloc or parts.scheme)
    if is_absolute and (parts.scheme not in {"", "http", "https"} or parts.netloc != "localhost"):
        raise refused
    path = parts.path or ("/" if is_absolute else "")
    segments = [each.partition(";")[0] for each in _SEGMENTS.split(_decoded(path))]
    if ".." in segments or path.startswith("//"):
        raise refused
    if path.startswith("/"):
        if mode == "strip" and not path.startswith(prefix):
            path = prefix + path[1:]
        if not path.startswith(prefix):
            raise refused
    return parts._replace(scheme="", netloc="", path=path).geturl()


def _service_cookies(headers: Headers, own: frozenset[str]) -> Iterator[str]:
    for name, value in headers:
        if name.lower() != "cookie":
            continue
        for pair in value.split(";"):
            key = pair.partition("=")[0].strip()
            if pair.strip() and not _is_foreign(key, own):
                yield pair.strip()


def _is_foreign(name: str, own: frozenset[str]) -> bool:
    return name in own or name.lower().startswith(_FOREIGN_COOKIES)


def _named_by_connection(headers: Headers) -> frozenset[str]:
    found: list[str] = []
    for name, value in headers:
        if len(name) == len("connection") and name.lower() == "connection":
            found += value.lower().split(",")
    return frozenset(each.strip() for each in found)
