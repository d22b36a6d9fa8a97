"""Connections of the front door, a reverse proxy, to its service's Unix socket, kept open between requests.

`Upstream.request` sends one request and returns as soon as the head of the answer is there; its body streams.
Parser and streams are aiohttp's. Its `ClientSession` is not used: handling redirects, cookies and proxies, it
takes longer for a request than some services take to answer.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage, StreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy

HEADER_BYTES = 16 << 10
HEADERS = 100
CHUNK_BYTES = 64 << 10
#: Errors of a service that does not answer with valid HTTP.
ERRORS = (aiohttp.ClientError, HttpProcessingError, ValueError, OSError)
#: Time limits in seconds: for the service to accept a connection, and for keeping an unused one open.
_CONNECT_S = 10.0
_IDLE_S = 15.0
#: Idempotent methods: sent again if the service has closed a kept connection (RFC 9110, section 9.2.2).
_REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "DELETE"))


class Answer:
    """Answer of the service: ``content`` streams. Call `close` at its end or in the middle of it."""

    def __init__(
        self,
        upstream: "Upstream",
        connection: ResponseHandler,
        head: RawResponseMessage,
        content: aiohttp.StreamReader,
        sending: asyncio.Task[None] | None,
    ) -> None:
        self.status: int = head.code
        self.headers: CIMultiDictProxy[str] = head.headers
        self.content = content
        self._upstream, self._connection, self._sending = upstream, connection, sending

    def close(self) -> None:
        """Keep the connection if the answer was read to its end; else close it, without reading the rest."""
        is_sent = self._sending is None or self._sending.done()
        if self._sending is not None:
            self._sending.cancel()
        if is_sent and self.content.is_eof() and not self._connection.should_close:
            self._upstream.keep(self._connection)
        else:
            self._connection.close()


class Upstream:
    """Connections to one service.

    Example
    -------
    ``answer = await upstream.request("GET", "/", headers)``, read ``answer.content``, ``answer.close()``.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        # Unused connections with the time of their last use, the longest unused first.
        self._unused: list[tuple[float, ResponseHandler]] = []
        self._closing: asyncio.TimerHandle | None = None

    async def request(
        self,
        method: str,
        target: str,
        headers: CIMultiDict[str],
        body: AsyncIterator[bytes] | None = None,
    ) -> Answer:
        """Send a request, and return its answer once the head has arrived; the body is sent meanwhile.

        A body without ``Content-Length`` among the headers is sent in chunks.

        Raises
        ------
        TimeoutError
            The service did not accept a connection in time.
        ERRORS
            It does not answer with valid HTTP.
        """
        connection = self._take()
        if connection is not None:
            try:
                return await self._exchange(connection, method, target, headers, body)
            except (
                aiohttp.ServerDisconnectedError,
                aiohttp.ClientOSError,
                aiohttp.ClientConnectionResetError,
            ):
                if body is not None or method not in _REPEATABLE:
                    raise
        return await self._exchange(await self._connect(), method, target, headers, body)

    def keep(self, connection: ResponseHandler) -> None:
        """Keep a connection whose last answer was read to its end for the next request."""
        loop = asyncio.get_running_loop()
        self._unused.append((loop.time(), connection))
        if self._closing is None:
            self._closing = loop.call_later(_IDLE_S, self._close_unused)

    def stop(self) -> None:
        """Close all unused connections."""
        if self._closing is not None:
            self._closing.cancel()
        while self._unused:
            self._unused.pop()[1].close()

    def _take(self) -> ResponseHandler | None:
        """Return the connection that was used last; None if there is none."""
        while self._unused:
            connection = self._unused.pop()[1]
            # Data that the service sent without a request would be read as the next answer.
            if connection.is_connected() and not connection.should_close:
                return connection
            connection.close()
        return None

    def _close_unused(self) -> None:
        loop = asyncio.get_running_loop()
        self._closing = None
        while self._unused and loop.time() - self._unused[0][0] >= _IDLE_S:
            self._unused.pop(0)[1].close()
        if self._unused:
            self._closing = loop.call_at(self._unused[0][0] + _IDLE_S, self._close_unused)

    async def _connect(self) -> ResponseHandler:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_S):
            _, connection = await loop.create_unix_connection(lambda: ResponseHandler(loop), self._path)
        return connection

    async def _exchange(
        self,
        connection: ResponseHandler,
        method: str,
        target: str,
        headers: CIMultiDict[str],
        body: AsyncIterator[bytes] | None,
    ) -> Answer:
        sending = None
        try:
            writer = StreamWriter(connection, asyncio.get_running_loop())
            if body is not None and "Content-Length" not in headers:
                headers["Transfer-Encoding"] = "chunked"
                writer.enable_chunking()
            await writer.write_headers(f"{method} {target} HTTP/1.1", headers)
            writer.send_headers()
            # Set after sending, so that the service starts sooner: no answer is parsed before the next await.
            connection.set_response_params(
                skip_payload=method == "HEAD",
                read_until_eof=True,
                auto_decompress=False,
                read_bufsize=CHUNK_BYTES,
                max_line_size=HEADER_BYTES,
                max_field_size=HEADER_BYTES,
                max_headers=HEADERS,
            )
            if body is not None:
                sending = asyncio.create_task(_send(writer, connection, body))
            head, content = await connection.read()
            while head.code < 200 and head.code != 101:
                head, content = await connection.read()
        except BaseException:
            if sending is not None:
                sending.cancel()
            connection.close()
            raise
        return Answer(self, connection, head, content, sending)


async def _send(writer: StreamWriter, connection: ResponseHandler, body: AsyncIterator[bytes]) -> None:
    try:
        async for piece in body:
            await writer.write(piece)
        await writer.write_eof()
    except Exception as error:  # noqa: BLE001 - after any error, don't wait for an answer to half a body
        connection.set_exception(aiohttp.ClientConnectionError("The request's body did not arrive."), error)


async def is_ready(path: Path, target: str, status: tuple[int, ...], timeout_s: float) -> bool:
    """Return whether a service answers a GET request over its socket with an accepted status."""
    upstream, answer = Upstream(str(path)), None
    try:
        async with asyncio.timeout(timeout_s):
            answer = await upstream.request("GET", target, CIMultiDict(Host="localhost"))
    except (*ERRORS, TimeoutError):
        return False
    finally:
        if answer is not None:
            answer.close()
        upstream.stop()
    return answer.status in status if status else 200 <= answer.status < 400


async def accepts_connections(path: Path, timeout_s: float) -> bool:
    """Return whether a program accepts connections at a Unix socket."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_unix_connection(str(path))
    except (TimeoutError, OSError):
        return False
    writer.close()
    return True
