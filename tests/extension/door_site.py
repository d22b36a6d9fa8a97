"""A service on a Unix socket behind a front door, for tests of both: `run` starts them for a scenario."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from gipfel_cluster.ports import bind_port
from gipfel_extension.services.access import TokenAccess
from gipfel_extension.services.front_door import FrontDoor, Route

TOKEN = "t0ken-of-the-owner"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PREFIX = "/user/ada/board/"
Scenario = Callable[["Site"], Awaitable[None]]
Raw = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Site:
    """A service on a Unix socket behind a front door on a loopback port, and a client without cookies."""

    def __init__(self, port: int, socket: Path, client: aiohttp.ClientSession) -> None:
        self.port, self.socket, self.client = port, socket, client
        self.base = f"http://127.0.0.1:{port}"

    def get(self, path: str, **options: Any) -> Any:
        headers = {**BEARER, **options.pop("headers", {})}
        return self.client.get(f"{self.base}{path}", headers=headers, allow_redirects=False, **options)

    async def raw(self, content: bytes, limit_s: float = 10) -> bytes:
        """Everything that the front door answers to these bytes until it closes or the time is over."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(content)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(limit_s):
                while piece := await reader.read(65536):
                    answer += piece
        writer.close()
        return answer


async def _echo(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    headers = [[name, value] for name, value in request.headers.items()]
    return web.json_response(
        {"method": request.method, "target": request.raw_path, "headers": headers, "body": body.decode()}
    )


async def _websocket(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=("chat",))
    await socket.prepare(request)
    async for message in socket:
        if message.data == "headers":
            await socket.send_json(sorted({name.lower() for name in request.headers}))
        elif message.type is aiohttp.WSMsgType.TEXT:
            await socket.send_str(f"{socket.ws_protocol}: {message.data}")
        else:
            await socket.send_bytes(message.data[::-1])
    return socket


async def _events(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"data: first\n\n")
    await asyncio.Event().wait()
    return response


async def _hostile_headers(_: web.Request) -> web.StreamResponse:
    response = web.Response(text="hello")
    for cookie in (
        "jupyterhub-session-id=stolen; Path=/",
        "_xsrf=mine; Path=/hub/",
        "sid=1; Path=/; Domain=example.org; HttpOnly",
        "own=2; Path=/user/ada/board/x",
        "__Host-a=1; Path=/; Secure",
    ):
        response.headers.add("Set-Cookie", cookie)
    for name in (
        *("Clear-Site-Data", "Service-Worker-Allowed", "Refresh", "WWW-Authenticate", "Alt-Svc"),
        *("X-Accel-Redirect", "Strict-Transport-Security", "Access-Control-Allow-Credentials"),
    ):
        response.headers[name] = "evil"
    return response


def _application() -> web.Application:
    async def redirect(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": request.query["to"]})

    application = web.Application(client_max_size=64 << 20)
    application.router.add_get("/ws", _websocket)
    application.router.add_get("/events", _events)
    application.router.add_get("/hostile", _hostile_headers)
    application.router.add_get("/redirect", redirect)
    application.router.add_route("*", "/{rest:.*}", _echo)
    return application


@contextlib.asynccontextmanager
async def _service(path: Path, raw: Raw | None) -> AsyncIterator[None]:
    if raw is not None:
        server = await asyncio.start_unix_server(raw, path)
        yield
        server.close()
        return
    runner = web.AppRunner(_application(), shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    yield
    await runner.cleanup()


def run(scenario: Scenario, *, raw: Raw | None = None, **route: Any) -> None:
    """Run a scenario against a site; `raw` replaces the well-behaved service by a function on its socket."""

    async def whole() -> None:
        with tempfile.TemporaryDirectory(prefix="gipfel-door-") as name:
            path = Path(name) / "s"
            routed = Route(**{"prefix": PREFIX, **route, "socket": str(path)})
            door = FrontDoor(routed, TokenAccess(TOKEN, "board", routed.prefix))
            listener = bind_port("127.0.0.1", None)
            async with (
                _service(path, raw),
                aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client,
            ):
                await door.start(listener)
                try:
                    async with asyncio.timeout(60):
                        await scenario(Site(listener.getsockname()[1], path, client))
                finally:
                    await door.stop()

    asyncio.run(whole())


def post(headers: bytes, body: bytes) -> bytes:
    """A request with access, which the parser of the service may read in another way."""
    start = b"POST /user/ada/board/ HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + TOKEN.encode()
    return start + b"\r\n" + headers + b"\r\n" + body
