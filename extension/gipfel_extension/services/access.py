"""Access to a service: by a token of its own, or through a hub and its users."""

import asyncio
import contextlib
import hashlib
import hmac
import html
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
from aiohttp import web

from gipfel_cluster.hub_requests import post_to_hub
from gipfel_cluster.job.time_limit import time_limit_end

from .request_rules import RefusedError, origin_host

if TYPE_CHECKING:
    from .front_door import FrontDoor

_SESSION_S = 12 * 3600
#: Seconds that a client has to send the form: it comes from visitors without access, who must not occupy the
#: front door.
FORM_S = 10.0
_MAX_FORM_BYTES = 4096
_PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer, with which browsers send "Origin: null" for the form.
    "Referrer-Policy": "same-origin",
}
_CALLBACK = "/oauth_callback"
_COOKIE, _STATE_COOKIE = "gipfel-service-session", "gipfel-service-state"
#: Seconds for which a session after the hub's login lasts, and limit for the login itself.
_HUB_SESSION_S = 14 * 86400
_STATE_S = 600.0
#: Seconds for which an answer of the hub is cached, if it allows and if it refuses access. For that long, a
#: revoked token still works, and a visitor with whom the service has just been shared is still refused.
_FRESH_S, _FRESH_REFUSAL_S = 10.0, 2.0
#: Seconds for which the last positive answer is used if the hub can't be reached, as during its restart.
_STALE_S = 300.0
_MAX_ANSWERS, _MAX_SESSIONS, _MAX_STATES = 4096, 1024, 1024
#: Requests to the hub at the same time, and the limit of each in seconds.
_MAX_QUESTIONS = 8
_QUESTION_S = 15.0
_MAX_TOKEN = 1024
#: Seconds between two reports to the hub, and the last seconds whose requests each report counts.
_ACTIVITY_S = 30.0
_COUNTED_S = 600.0

_Value = TypeVar("_Value")


class Access(Protocol):
    """Decides which requests may reach a service.

    ``cookies`` has the names of the cookies that it sets itself; the service does not get these.
    """

    cookies: frozenset[str]

    async def is_allowed(self, request: web.BaseRequest) -> bool:
        """Return whether the request may reach the service."""

    async def login(self, request: web.BaseRequest, path: str) -> web.StreamResponse | None:
        """Answer a request of the login itself; return None for other requests.

        ``path`` is the request's path below the service's prefix.
        """

    def refuse(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a request that is not allowed."""


class TokenAccess:
    """Access with one random token; a browser's cookie is an expiry time, with an HMAC keyed by the token.

    ``cookies`` has the names of its cookies, which the service does not get.
    """

    def __init__(self, token: str, name: str, prefix: str) -> None:
        self._token, self._prefix = token.encode(), prefix
        self._cookie = f"gipfel-service-{name}"
        self.cookies = frozenset((self._cookie,))

    async def is_allowed(self, request: web.BaseRequest) -> bool:
        """Return whether the request has the token, or a cookie that the form has set."""
        token = bearer_token(request)
        if token:
            return hmac.compare_digest(token.encode(errors="replace"), self._token)
        return self._is_session(request.cookies.get(self._cookie, "")) and is_same_origin(request)

    async def login(self, request: web.BaseRequest, path: str) -> web.StreamResponse | None:
        """Check the token of the form, and set the cookie; return None for other requests.

        ``path`` is the request's path below the service's prefix.
        """
        if path != "/_gipfel/login":
            return None
        if request.method != "POST" or not is_same_origin(request):
            return text_response(405, "Open the service's address in a browser to log in.")
        token = await self._form_token(request)
        if not hmac.compare_digest(token.encode(errors="replace"), self._token):
            return self._form("This is not the service's token.")
        response = web.Response(status=303, headers={"Location": self._prefix, "Cache-Control": "no-store"})
        response.set_cookie(
            self._cookie,
            self._session(int(time.time()) + _SESSION_S),
            max_age=_SESSION_S,
            path=self._prefix,
            httponly=True,
            samesite="Strict",
            secure=request.headers.get("X-Forwarded-Proto") == "https",
        )
        return response

    async def _form_token(self, request: web.BaseRequest) -> str:
        content = b""
        try:
            async with asyncio.timeout(FORM_S):
                async for piece in request.content.iter_any():
                    content += piece
                    if len(content) > _MAX_FORM_BYTES:
                        raise RefusedError(413, "The form is too large.")
            fields = parse_qs(content.decode(errors="replace"), max_num_fields=4)
        except TimeoutError:
            raise RefusedError(408, "The form did not arrive in time.") from None
        except ValueError:
            raise RefusedError(400, "The form has too many fields.") from None
        return fields.get("token", [""])[0].strip()

    def refuse(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the form to a browser, else status 401."""
        if is_navigation(request):
            return self._form("")
        return text_response(401, "Send the service's token as 'Authorization: Bearer TOKEN'.")

    def _form(self, problem: str) -> web.Response:
        action = html.escape(f"{self._prefix}_gipfel/login")
        page = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>Log in to the service</title>'
            f'<h1>Log in to the service</h1><p role="alert">{html.escape(problem)}</p>'
            f'<form method="post" action="{action}"><label>Token, from <code>gipfel service token</code>: '
            '<input type="password" name="token" autocomplete="off" autofocus required></label> '
            "<button>Log in</button></form></html>"
        )
        return web.Response(status=401, text=page, content_type="text/html", headers=_PAGE_HEADERS)

    def _session(self, expires: int) -> str:
        key = hmac.new(self._token, f"session {self._cookie} {expires}".encode(), hashlib.sha256).hexdigest()
        return f"{expires}.{key}"

    def _is_session(self, value: str) -> bool:
        expires = value.partition(".")[0]
        if (
            not (expires.isascii() and expires.isdecimal() and len(expires) < 16)
            or int(expires) < time.time()
        ):
            return False
        return hmac.compare_digest(value.encode(errors="replace"), self._session(int(expires)).encode())


def bearer_token(request: web.BaseRequest) -> str:
    """Return the token of the ``Authorization`` header, with the schemes that JupyterHub accepts."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() in {"bearer", "token"} else ""


def is_same_origin(request: web.BaseRequest) -> bool:
    """Return whether a page of this origin, or the user, made the request; if not, cookies are ignored."""
    origin = request.headers.get("Origin", "")
    if origin and origin_host(origin) != request.headers.get("Host", ""):
        return False
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    # Not in a frame: pages at other ports of 127.0.0.1 are same-site, and could embed it.
    is_link = (
        request.method in {"GET", "HEAD"}
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and request.headers.get("Sec-Fetch-Dest") == "document"
    )
    return site in {"same-origin", "none"} or is_link


def _plain_path(request: web.BaseRequest) -> str:
    """Return the request's path if it can be part of a redirect, else nothing."""
    path = request.raw_path
    is_plain = path.isascii() and path.isprintable() and "\\" not in path and len(path) < 4096
    return path if is_plain else ""


def is_navigation(request: web.BaseRequest) -> bool:
    """Return whether a browser opens a page, for which a login makes sense."""
    accepts_page = "text/html" in request.headers.get("Accept", "")
    return request.method == "GET" and accepts_page and "Upgrade" not in request.headers


def text_response(status: int, sentence: str) -> web.Response:
    """Return a response with one sentence, after which the connection is closed."""
    response = web.Response(status=status, text=f"{sentence}\n", headers=_PAGE_HEADERS)
    response.force_close()
    return response


class _Recent(Generic[_Value]):
    """Values by key with the time of their arrival; beyond ``size`` values, the oldest is dropped."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[str, tuple[float, _Value]] = OrderedDict()

    def get(self, key: str, max_age_s: float) -> _Value | None:
        found = self._values.get(key)
        return found[1] if found and time.monotonic() - found[0] < max_age_s else None

    def set(self, key: str, value: _Value) -> None:
        self._values[key] = (time.monotonic(), value)
        self._values.move_to_end(key)
        while len(self._values) > self._size:
            self._values.popitem(last=False)

    def pop(self, key: str, max_age_s: float) -> _Value | None:
        found = self.get(key, max_age_s)
        self._values.pop(key, None)
        return found


class HubAccess:
    """Access for visitors whom the hub authorizes; implements `Access`.

    Example
    -------
    ``FrontDoor(route, HubAccess("/user/ada/board/"))``, in a process with JupyterHub's variables of a server.

    With a ``host``, such as ``https://board--ada.hub.example.org``, the service has this origin for itself,
    and ``prefix`` is ``/``. The hub also leads here from the path of the server's URL at the host name of its
    user: such requests are redirected, and never reach the service.
    """

    def __init__(self, prefix: str, auth: Any = None, host: str = "") -> None:
        from jupyterhub import __version__  # noqa: PLC0415 - slow, and not needed without a hub
        from jupyterhub.services.auth import HubOAuth  # noqa: PLC0415

        self._version = __version__
        auth = HubOAuth() if auth is None else auth
        self._auth, self._prefix, self._host = auth, prefix, host
        self.cookies = frozenset((_COOKIE, _STATE_COOKIE))
        self._answers: _Recent[bool] = _Recent(_MAX_ANSWERS)
        self._sessions: _Recent[str] = _Recent(_MAX_SESSIONS)
        # By the OAuth state: the page to show after the login, and the code verifier.
        self._states: _Recent[tuple[str, str]] = _Recent(_MAX_STATES)
        self._questions = asyncio.Semaphore(_MAX_QUESTIONS)

    async def is_allowed(self, request: web.BaseRequest) -> bool:
        """Return whether the hub gives access to the request's token, or to its session."""
        token = bearer_token(request)
        if token:
            return len(token) <= _MAX_TOKEN and await self._may_access(token)
        session = request.cookies.get(_COOKIE, "")
        token = (self._sessions.get(session, _HUB_SESSION_S) or "") if session else ""
        return bool(token) and is_same_origin(request) and await self._may_access(token)

    async def _may_access(self, token: str) -> bool:
        key = hashlib.sha256(token.encode(errors="replace")).hexdigest()
        known = self._answers.get(key, _FRESH_S)
        if known or (known is False and self._answers.get(key, _FRESH_REFUSAL_S) is False):
            return known
        try:
            async with self._questions, asyncio.timeout(_QUESTION_S):
                user = await self._auth.user_for_token(token, use_cache=False, sync=False)
        except Exception as error:
            # Without an answer, whatever the reason, refuse, unless the hub has allowed access shortly
            # before.
            if self._answers.get(key, _STALE_S):
                return True
            raise RefusedError(503, "The hub does not answer: try again in a minute.") from error
        allowed = bool(user) and bool(self._auth.check_scopes(self._auth.access_scopes, user))
        self._answers.set(key, allowed)
        return allowed

    async def login(self, request: web.BaseRequest, path: str) -> web.StreamResponse | None:
        """Finish the hub's OAuth, and set the session's cookie; return None for other requests."""
        if self._host and self._is_elsewhere(request):
            return self._redirect_to_host(request)
        if path != _CALLBACK:
            return None
        if request.method != "GET":
            return text_response(405, "Open the service's address in a browser to log in.")
        values = parse_qs(urlsplit(request.raw_path).query, max_num_fields=16)
        code, state = (values.get(name, [""])[0] for name in ("code", "state"))
        own_state = request.cookies.get(_STATE_COOKIE, "")
        found = (
            self._states.pop(state, _STATE_S) if state and secrets.compare_digest(state, own_state) else None
        )
        if found is None or not code:
            return text_response(403, f"This login is too old or was not yours: open {self._prefix} again.")
        target, verifier = found
        try:
            async with self._questions, asyncio.timeout(_QUESTION_S):
                token = await self._auth.token_for_code(code, code_verifier=verifier, sync=False)
        except Exception as error:
            raise RefusedError(502, "The hub did not accept the login: try again.") from error
        if not await self._may_access(token):
            return text_response(403, "You have no access to this service: its owner can share it with you.")
        session = secrets.token_urlsafe(32)
        self._sessions.set(session, token)
        response = web.Response(status=302, headers={"Location": target, "Cache-Control": "no-store"})
        self._set_cookie(response, request, _COOKIE, session, _HUB_SESSION_S)
        response.del_cookie(_STATE_COOKIE, path=self._prefix)
        return response

    def refuse(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send a browser to the hub's login, else return status 403."""
        if not is_navigation(request) or bearer_token(request):
            sentence = "Send a token of the hub with access to this service as 'Authorization: Bearer TOKEN'."
            response = text_response(403, sentence)
            # After the start of a server, the hub compares this version with its own.
            response.headers["X-JupyterHub-Version"] = self._version
            return response
        verifier, challenge, method = self._auth.generate_pkce_code_challenge()
        state = secrets.token_urlsafe(32)
        self._states.set(state, (self._target(request), verifier))
        query = urlencode(
            {
                "client_id": self._auth.oauth_client_id,
                "redirect_uri": self._auth.oauth_redirect_uri,
                "response_type": "code",
                "state": state,
                "code_challenge": challenge,
                "code_challenge_method": method,
            }
        )
        location = f"{self._auth.oauth_authorization_url}?{query}"
        found = web.Response(status=302, headers={"Location": location, "Cache-Control": "no-store"})
        self._set_cookie(found, request, _STATE_COOKIE, state, int(_STATE_S))
        return found

    def _is_elsewhere(self, request: web.BaseRequest) -> bool:
        """Return whether a request names another host of the hub, which other servers also use."""
        own = urlsplit(self._host).hostname or ""
        try:
            name = (urlsplit(f"//{request.headers.get('Host', '')}").hostname or "").rstrip(".")
        except ValueError:
            return True
        hubs = own.partition(".")[2]
        return name != own and (name == hubs or name.endswith(f".{hubs}"))

    def _redirect_to_host(self, request: web.BaseRequest) -> web.Response:
        if request.method not in {"GET", "HEAD"} or "Upgrade" in request.headers:
            return text_response(421, f"This service is at {self._host}/.")
        rest = _plain_path(request).partition(str(self._auth.base_url))[2]
        location = f"{self._host}/{rest.lstrip('/')}"
        return web.Response(status=302, headers={"Location": location, "Cache-Control": "no-store"})

    def _target(self, request: web.BaseRequest) -> str:
        """Return the requested page, if it is one of the service; else the service's first page."""
        path = _plain_path(request)
        return path if path.startswith(self._prefix) and not path.startswith("//") else self._prefix

    def _set_cookie(
        self, response: web.Response, request: web.BaseRequest, name: str, value: str, max_age: int
    ) -> None:
        response.set_cookie(
            name,
            value,
            max_age=max_age,
            path=self._prefix,
            httponly=True,
            # The hub's login leads here from another page, perhaps of another host of the site.
            samesite="Lax",
            secure=request.headers.get("X-Forwarded-Proto", "").partition(",")[0] == "https",
        )


async def report_activity(door: "FrontDoor", environment: Mapping[str, str]) -> None:
    """Report to the hub every 30 s how much the service is used, and when its job's time limit ends."""
    end = time_limit_end(environment)
    while True:
        count = door.recent_requests(_COUNTED_S)
        used = f"{count} request{'' if count == 1 else 's'} in {_COUNTED_S / 60:.0f} min"
        report: dict[str, object] = {"idle_s": int(door.idle_s), "busy_with": [used]}
        if end is not None:
            report["ends"] = int(end)
        # A hub that restarts misses a report; an older one knows no such route.
        with contextlib.suppress(OSError, KeyError, aiohttp.ClientError):
            await asyncio.to_thread(post_to_hub, "/gipfel/server/activity", report, environment)
        await asyncio.sleep(_ACTIVITY_S)
