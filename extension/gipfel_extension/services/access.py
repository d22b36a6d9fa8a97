"""Access to a service: `Access`, and `TokenAccess` by a token of the service itself.

Programs send ``Authorization: Bearer TOKEN``; browsers get a form for the token and then a cookie. A secret
in a URL is ignored.
"""

import asyncio
import hashlib
import hmac
import html
import time
from typing import Protocol
from urllib.parse import parse_qs

from aiohttp import web

from .request_rules import RefusedError, origin_host

_SESSION_S = 12 * 3600
#: Seconds to send the form: it comes from visitors without access, who must not occupy the front door.
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


class Access(Protocol):
    """Decides which requests may reach a service. ``cookies`` has the names of its own cookies."""

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
    """Access with one random token; a browser's cookie is a time with its HMAC under the token.

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
    """Return whether a page of this origin, or the user, has made the request: else no cookie counts."""
    origin = request.headers.get("Origin", "")
    if origin and origin_host(origin) != request.headers.get("Host", ""):
        return False
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    # Not in a frame: other pages of 127.0.0.1 are of the same site, and could show the service in theirs.
    is_link = (
        request.method in {"GET", "HEAD"}
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and request.headers.get("Sec-Fetch-Dest") == "document"
    )
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
