"""The front door: the only port of a service. It checks every request in one place, and streams both ways.

`FrontDoor.handle` is that place. The service listens on a Unix socket and is not trusted: `request_rules`
decide what passes in both directions. Nothing is buffered: a slow reader slows the writer down, so that each
connection holds little memory.
"""

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from gipfel_cluster.model import Frozen

from .access import Access, text_response
from .request_rules import RefusedError, headers_to_browser, headers_to_service, service_path
from .tunnel import TUNNEL, serve_tunnel
from .upstream import CHUNK_BYTES, ERRORS, HEADER_BYTES, HEADERS, Answer, Upstream

#: Maximum number of authenticated requests at a time, including open websockets and streams.
MAX_REQUESTS = 256
#: Maximum number of connections at a time; beyond it, the oldest one without access is closed.
MAX_CONNECTIONS = 512
_MAX_MESSAGE_BYTES = 16 << 20
#: Limits in seconds: for a client to prove its access, for the service to accept a websocket, to close one.
_ACCESS_S = 20.0
_CONNECT_S = 10.0
_CLOSE_S = 5.0
#: Seconds without a byte of a request's body after which the request ends.
_BODY_S = 120.0
_KEEPALIVE_S = 75.0
#: Seconds after which the access of an open stream or websocket is checked again.
_RECHECK_S = 15.0
_MAX_COUNTED = 10_000
_NO_BODY = frozenset((204, 304))


class Route(Frozen):
    """Socket and path rules of a service behind the front door; see `blueprint.Part`."""

    socket: str
    prefix: str = "/"
    mode: str = "strip"
    allowed: tuple[str, ...] = ()
    socket_name: str = "service"


class _Server(web.Server):
    """HTTP server that limits connections, and the time in which a client must show that it has access.

    Every user of the node can connect: connections without access must not displace those with access.
    """

    def __init__(self, handler: Any, **options: Any) -> None:
        super().__init__(handler, **options)
        # Connections without access, the oldest first.
        self._strangers: dict[Any, asyncio.Transport] = {}

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        """Add a connection; beyond the limit, close the oldest one without access."""
        super().connection_made(handler, transport)
        self._strangers[handler] = transport
        if len(self.connections) > MAX_CONNECTIONS:
            self._end(next(iter(self._strangers)))
        asyncio.get_running_loop().call_later(_ACCESS_S, self._end, handler)

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        """Forget a connection."""
        self._strangers.pop(handler, None)
        super().connection_lost(handler, exc)

    def admit(self, handler: Any) -> None:
        """Keep a connection that has sent a request with access."""
        self._strangers.pop(handler, None)

    def _end(self, handler: Any) -> None:
        transport = self._strangers.pop(handler, None)
        if transport is not None:
            transport.abort()


class _WholeResponse(web.StreamResponse):
    """Response whose body is there at once, and goes out in one write with the headers.

    `aiohttp.web.Response` does the same, and looks for charsets and compression first.
    """

    _send_headers_immediately = False


class FrontDoor:
    """Reverse proxy for one service.

    Example
    -------
    ``door = FrontDoor(route, access)``, ``await door.start(bind_port("127.0.0.1", None))``, at the end
    ``await door.stop()``.
    """

    def __init__(self, route: Route, access: Access) -> None:
        self._route, self._access = route, access
        # By identity, because requests are not hashable.
        self._active: dict[int, web.BaseRequest] = {}
        self._rechecking: asyncio.Task[None] | None = None
        self._last_end = time.monotonic()
        # Times of the last requests, for the number of requests in the last minutes.
        self._times: deque[float] = deque(maxlen=_MAX_COUNTED)
        self._upstream = Upstream(route.socket)
        # For websockets.
        self._session: aiohttp.ClientSession | None = None
        self._server: _Server | None = None
        self._runner: web.ServerRunner | None = None

    @property
    def idle_s(self) -> float:
        """Return the seconds since the end of the last request with access; 0 while there is one."""
        return 0.0 if self._active else time.monotonic() - self._last_end

    def recent_requests(self, seconds: float) -> int:
        """Return the number of authenticated requests in the last ``seconds``, at most 10 000."""
        first = time.monotonic() - seconds
        return sum(each > first for each in self._times)

    async def start(self, listener: socket.socket) -> None:
        """Serve on a listening socket."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._route.socket, limit=MAX_REQUESTS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_S),
            read_bufsize=CHUNK_BYTES,
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
            max_headers=HEADERS,
        )
        self._server = _Server(
            self.handle,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
            max_headers=HEADERS,
            read_bufsize=CHUNK_BYTES,
            keepalive_timeout=_KEEPALIVE_S,
            lingering_time=0,
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()
        self._rechecking = asyncio.create_task(self._recheck())

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._rechecking is not None:
            self._rechecking.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        self._upstream.stop()
        if self._session is not None:
            await self._session.close()

    async def _recheck(self) -> None:
        """End streams and websockets whose visitors have lost access since they opened them."""
        earlier: tuple[web.BaseRequest, ...] = ()
        while True:
            await asyncio.sleep(_RECHECK_S)
            for request in earlier:
                if self._active.get(id(request)) is not request:
                    continue
                # If the hub does not answer, access is unknown, not lost.
                with contextlib.suppress(RefusedError):
                    if not await self._access.is_allowed(request) and request.transport is not None:
                        request.transport.abort()
            earlier = tuple(self._active.values())

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Check a request, and pass it on: the one place for HTTP, upgrades, streams and every method."""
        try:
            response = await self._without_access(request)
            if response is None:
                response = await self._with_access(request)
        except RefusedError as refused:
            return text_response(refused.status, refused.reason)
        return response

    async def _without_access(self, request: web.BaseRequest) -> web.StreamResponse | None:
        """Return the response to a visitor without access, or to the login; None for one with access."""
        if request.method in {"CONNECT", "TRACE"}:
            raise RefusedError(405, f"The method {request.method} is refused.")
        own_path = request.raw_path.partition("?")[0].removeprefix(self._route.prefix.rstrip("/"))
        response = await self._access.login(request, own_path)
        if response is None:
            if await self._access.is_allowed(request):
                return None
            response = self._access.refuse(request)
        # Visitors without access get no second request on this connection.
        response.force_close()
        return response

    async def _with_access(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._server is not None  # noqa: S101 - a request arrives after the start
        self._server.admit(request.protocol)
        if len(self._active) >= MAX_REQUESTS:
            raise RefusedError(503, "The service has too many open requests: close some, and try again.")
        self._active[id(request)] = request
        self._times.append(time.monotonic())
        try:
            return await self._passed(request)
        finally:
            self._active.pop(id(request), None)
            self._last_end = time.monotonic()

    async def _passed(self, request: web.BaseRequest) -> web.StreamResponse:
        route = self._route
        if route.mode == "raw":
            return await self._tunnel(request)
        target = service_path(request.raw_path, route.prefix, mode=route.mode, allowed=route.allowed)
        headers = CIMultiDict(
            headers_to_service(request.headers.items(), own_cookies=self._access.cookies, prefix=route.prefix)
        )
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._websocket(request, target, headers)
        return await self._http(request, target, headers)

    async def _tunnel(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0].removeprefix(self._route.prefix.rstrip("/"))
        if path != TUNNEL or request.headers.get("Upgrade", "").lower() != "websocket":
            raise RefusedError(426, "This service does not speak HTTP: use `gipfel service connect`.")
        return await serve_tunnel(request, self._route.socket, self._route.socket_name)

    async def _http(
        self, request: web.BaseRequest, target: str, headers: CIMultiDict[str]
    ) -> web.StreamResponse:
        body = None
        if request.body_exists:
            body = self._body(request)
            if request.content_length is not None:
                headers["Content-Length"] = str(request.content_length)
        try:
            answer = await self._upstream.request(request.method, target, headers, body)
        except TimeoutError as error:
            raise RefusedError(504, "The service did not accept a connection in time.") from error
        except ERRORS as error:
            raise RefusedError(502, "The service did not answer with valid HTTP.") from error
        try:
            return await self._streamed(request, answer)
        finally:
            answer.close()

    async def _body(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while True:
            async with asyncio.timeout(_BODY_S):
                piece = await request.content.readany()
            if not piece:
                return
            yield piece

    async def _streamed(self, request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
        if answer.status < 200 or answer.status > 599:
            raise RefusedError(502, "The service did not answer with valid HTTP.")
        route, headers = self._route, CIMultiDict[str]()
        for name, value in headers_to_browser(answer.headers.items(), prefix=route.prefix, mode=route.mode):
            headers.add(name, value)
        has_body = request.method != "HEAD" and answer.status not in _NO_BODY
        length = answer.headers.get("Content-Length", "")
        is_sized = length.isdecimal() and answer.status != 204
        first = await _first_piece(answer) if has_body and is_sized and int(length) else b""
        # Sent together with the headers: most answers are small, and each write wakes the client.
        is_whole = bool(first) and len(first) == int(length)
        response = (_WholeResponse if is_whole else web.StreamResponse)(status=answer.status, headers=headers)
        if is_sized:
            response.content_length = int(length)
        elif has_body and request.version >= (1, 1):
            response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            if is_whole:
                await response.write_eof(first)
            elif has_body:
                if first:
                    await response.write(first)
                async for each in answer.content.iter_any():
                    await response.write(each)
            await response.write_eof()
        except (aiohttp.ClientError, HttpProcessingError, OSError):
            # The client must notice that the rest is missing.
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _websocket(
        self, request: web.BaseRequest, target: str, headers: CIMultiDict[str]
    ) -> web.StreamResponse:
        assert self._session is not None  # noqa: S101 - a request arrives after the start
        asked = request.headers.get("Sec-WebSocket-Protocol", "")
        protocols = tuple(each.strip() for each in asked.split(",") if each.strip())
        try:
            upstream = await self._session.ws_connect(
                URL(f"http://localhost{target}", encoded=True),
                headers=headers,
                protocols=protocols,
                autoping=False,
                max_msg_size=_MAX_MESSAGE_BYTES,
                compress=0,
            )
        except aiohttp.WSServerHandshakeError as error:
            status = error.status if 400 <= error.status <= 599 else 502
            raise RefusedError(status, "The service refused the websocket.") from error
        except (aiohttp.ClientError, HttpProcessingError, ValueError, OSError) as error:
            raise RefusedError(502, "The service did not answer with valid HTTP.") from error
        chosen = (upstream.protocol,) if upstream.protocol else ()
        client = web.WebSocketResponse(
            protocols=chosen, autoping=False, max_msg_size=_MAX_MESSAGE_BYTES, compress=False
        )
        try:
            await client.prepare(request)
            tasks = [
                asyncio.create_task(_copy(client, upstream)),
                asyncio.create_task(_copy(upstream, client)),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            # Without a limit of its own, closing would read messages of a service that never stops sending.
            with contextlib.suppress(TimeoutError, OSError, RuntimeError):
                async with asyncio.timeout(_CLOSE_S):
                    await upstream.close()
                    await client.close(code=_close_code(upstream.close_code))
        return client


async def _first_piece(answer: Answer) -> bytes:
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
        raise RefusedError(502, "The service did not answer with valid HTTP.") from error


async def _copy(source: Any, target: Any) -> None:
    """Copy messages until one side closes; a message waits until the other side has room."""
    async for message in source:
        if message.type is aiohttp.WSMsgType.TEXT:
            await target.send_str(message.data)
        elif message.type is aiohttp.WSMsgType.BINARY:
            await target.send_bytes(message.data)
        elif message.type is aiohttp.WSMsgType.PING:
            await target.ping(message.data)
        elif message.type is aiohttp.WSMsgType.PONG:
            await target.pong(message.data)
        else:
            return


def _close_code(code: int | None) -> int:
    """Return the code to close with: 1001 for one that RFC 6455 does not allow in a message, such as 1006."""
    may_send = code is not None and (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999)
    return code if code is not None and may_send else 1001
