"""Who may use a service: the owner's token, or JupyterHub's users with access to this server.

`TokenAccess` is for services without a hub: programs send ``Authorization: Bearer TOKEN``, browsers get a
form for the token and then a cookie. `HubAccess` asks the hub: programs send a hub token, browsers use OAuth.
A secret is never accepted in a URL.
"""

import asyncio
import hashlib
import hmac
import html
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable
from typing import Any, Protocol
from urllib.parse import parse_qs, urlencode, urlsplit

from aiohttp import web

from .request_rules import RefusedError

_SESSION_S = 12 * 3600
_STATE_S = 600
_HUB_S = 30.0
_MAX_SESSIONS = 1000
_MAX_FORM_BYTES = 4096
_PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Access(Protocol):
    """Decides who may use a service."""

    cookies: frozenset[str]
    """Names of its cookies, which the service does not get."""

    async def is_allowed(self, request: web.BaseRequest) -> bool:
        """Return whether the request's credentials give access to the service."""

    async def login(self, request: web.BaseRequest, path: str) -> web.StreamResponse | None:
        """Return the response to a request of the login itself; None if this path is none of its own.

        ``path`` is the request's path below the service's prefix.
        """

    async def refuse(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a request without access: a way to log in for a browser, else an error."""


class TokenAccess:
    """Access with one random token; a browser's cookie is a time with its HMAC under the token."""

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
        """Check the token of the form, and set the cookie."""
        if path != "/_gipfel/login":
            return None
        if request.method != "POST" or not is_same_origin(request):
            return text_response(405, "Open the service's address in a browser to log in.")
        content = b""
        async for piece in request.content.iter_any():
            content += piece
            if len(content) > _MAX_FORM_BYTES:
                return text_response(413, "The form is too large.")
        token = parse_qs(content.decode(errors="replace"), max_num_fields=4).get("token", [""])[0].strip()
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

    async def refuse(self, request: web.BaseRequest) -> web.StreamResponse:
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


class HubAccess:
    """Access by JupyterHub's scopes; hub tokens stay in this process, and browsers get a random session.

    Parameters
    ----------
    hub
        A `jupyterhub.services.auth.HubOAuth`, which reads its settings from the server's variables.
    """

    def __init__(self, hub: Any, prefix: str) -> None:
        self._hub, self._prefix = hub, prefix
        name = "".join(each if each.isalnum() else "-" for each in hub.oauth_client_id)
        self._cookie, self._state_cookie = f"gipfel-hub-{name}", f"gipfel-hub-{name}-state"
        self.cookies = frozenset((self._cookie, self._state_cookie))
        self._sessions: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._states: OrderedDict[str, tuple[float, str]] = OrderedDict()

    async def is_allowed(self, request: web.BaseRequest) -> bool:
        """Return whether the hub gives the request's token or session access to this server."""
        token = bearer_token(request)
        if not token:
            token = _unexpired(self._sessions, request.cookies.get(self._cookie, ""))
            if not token or not is_same_origin(request):
                return False
        user = await _asked(self._hub.user_for_token(token, sync=False))
        return bool(user and self._hub.check_scopes(self._hub.access_scopes, user))

    async def login(self, request: web.BaseRequest, path: str) -> web.StreamResponse | None:
        """Finish the login: exchange the hub's code for a token, and set the session's cookie."""
        if path != "/oauth_callback":
            return None
        query = parse_qs(urlsplit(request.raw_path).query, max_num_fields=16)
        state, code = query.get("state", [""])[0], query.get("code", [""])[0]
        known = hmac.compare_digest(state.encode(), request.cookies.get(self._state_cookie, "").encode())
        target = _unexpired(self._states, state) if state and known else ""
        if not target or not code:
            return text_response(
                403, "The login has expired or was started elsewhere: open the service again."
            )
        self._states.pop(state, None)
        token = await _asked(self._hub.token_for_code(code, sync=False))
        session = secrets.token_urlsafe(32)
        _remember(self._sessions, session, token, _SESSION_S)
        response = web.Response(status=302, headers={"Location": target, "Cache-Control": "no-store"})
        self._set_cookie(response, request, self._cookie, session, _SESSION_S)
        response.del_cookie(self._state_cookie, path=self._prefix)
        return response

    async def refuse(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send a browser without a session to the hub's login; answer everything else with status 403."""
        has_session = _unexpired(self._sessions, request.cookies.get(self._cookie, ""))
        if not is_navigation(request) or has_session:
            return text_response(403, "You have no access to this service: ask its owner to share it.")
        state = secrets.token_urlsafe(32)
        target = request.raw_path if request.raw_path.startswith(self._prefix) else self._prefix
        _remember(self._states, state, target, _STATE_S)
        location = f"{self._hub.login_url}&{urlencode({'state': state})}"
        response = web.Response(status=302, headers={"Location": location, "Cache-Control": "no-store"})
        self._set_cookie(response, request, self._state_cookie, state, _STATE_S)
        return response

    def _set_cookie(
        self, response: web.Response, request: web.BaseRequest, name: str, value: str, max_age: int
    ) -> None:
        secure = request.headers.get("X-Forwarded-Proto", "").partition(",")[0] == "https"
        # Lax: the hub's redirect back to the service must carry it.
        response.set_cookie(
            name, value, max_age=max_age, path=self._prefix, httponly=True, samesite="Lax", secure=secure
        )


async def _asked(answer: Awaitable[Any]) -> Any:
    """Return the hub's answer; without one there is no access."""
    from tornado.web import HTTPError  # noqa: PLC0415 - HubOAuth raises it; without a hub it is not needed

    try:
        async with asyncio.timeout(_HUB_S):
            return await answer
    except (HTTPError, TimeoutError, OSError) as error:
        raise RefusedError(503, "The hub did not confirm the login: try again in a minute.") from error


def bearer_token(request: web.BaseRequest) -> str:
    """Return the token of the ``Authorization`` header, with the schemes that JupyterHub accepts."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() in {"bearer", "token"} else ""


def is_same_origin(request: web.BaseRequest) -> bool:
    """Return whether a page of this origin, or the user, has made the request: else no cookie counts."""
    origin = request.headers.get("Origin", "")
    if origin and urlsplit(origin).netloc != request.headers.get("Host", ""):
        return False
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    is_link = request.method in {"GET", "HEAD"} and request.headers.get("Sec-Fetch-Mode") == "navigate"
    return site in {"same-origin", "none"} or is_link


def is_navigation(request: web.BaseRequest) -> bool:
    """Return whether a browser opens a page, for which a login makes sense."""
    accepts_page = "text/html" in request.headers.get("Accept", "")
    return request.method == "GET" and accepts_page and "Upgrade" not in request.headers


def text_response(status: int, sentence: str) -> web.Response:
    """Return a response with one sentence, after which the connection is closed."""
    response = web.Response(status=status, text=f"{sentence}\n", headers=_PAGE_HEADERS)
    response.force_close()
    return response


def _remember(known: OrderedDict[str, tuple[float, str]], key: str, value: str, seconds: float) -> None:
    known[key] = (time.monotonic() + seconds, value)
    while len(known) > _MAX_SESSIONS:
        known.popitem(last=False)


def _unexpired(known: OrderedDict[str, tuple[float, str]], key: str) -> str:
    expires, value = known.get(key, (0.0, ""))
    return value if expires > time.monotonic() else ""
