"""The front door against visitors without access, and against a service that attacks its visitors."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from gipfel_cluster.ports import bind_port
from gipfel_extension.services import access, front_door
from gipfel_extension.services.access import TokenAccess
from gipfel_extension.services.front_door import FrontDoor, Route, is_ready
from gipfel_extension.services.request_rules import (
    RefusedError,
    headers_to_service,
    limited_cookie,
    limited_redirect,
    service_path,
)

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


def test_requests_without_the_token_reach_nothing() -> None:
    async def scenario(site: Site) -> None:
        wrong = (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": TOKEN},
            {"Cookie": f"token={TOKEN}"},
        )
        for headers in wrong:
            for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND"):
                url = f"{site.base}{PREFIX}x?token={TOKEN}"
                async with site.client.request(method, url, headers=headers) as response:
                    assert response.status == 401, (method, headers)
                    assert "target" not in await response.text()
            for path in ("ws", "events"):
                upgrade = {**headers, "Connection": "Upgrade", "Upgrade": "websocket"}
                async with site.client.get(f"{site.base}{PREFIX}{path}", headers=upgrade) as response:
                    assert response.status == 401
        for line in (b"CONNECT 127.0.0.1:22 HTTP/1.1", b"TRACE / HTTP/1.1"):
            answer = await site.raw(
                line + b"\r\nHost: a\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
            )
            assert b" 405 " in answer.split(b"\r\n")[0]
        # A connection without access ends with its first answer.
        get = f"GET {PREFIX} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
        assert (await site.raw(get + get)).count(b"HTTP/1.1 401") == 1

    run(scenario)


def test_a_request_arrives_whole_and_without_credentials() -> None:
    async def scenario(site: Site) -> None:
        sent = {
            "Cookie": "jupyterhub-session-id=a; theme=dark; _xsrf=b; gipfel-service-board=c; username-8888=d",
            "Forwarded": "for=x",
            "X-Forwarded-User": "root",
            "X-Real-IP": "1.1.1.1",
            "Proxy-Authorization": "p",
            "Connection": "keep-alive, X-Secret",
            "X-Secret": "hop",
            "X-Mine": "kept",
            "X_Forwarded_User": "root",
            "X-Remote-User": "root",
            "X-Auth-Request-Email": "root",
            "X-Original-URL": "/admin",
            "x_rewrite_url": "/admin",
            "Origin": site.base,
            "Accept": "a/b",
        }
        async with site.client.post(
            URL(f"{site.base}{PREFIX}a%20b/c?q=%2F..", encoded=True), data=b"body", headers={**BEARER, **sent}
        ) as response:
            got = await response.json()
        headers = {name.lower(): value for name, value in got["headers"]}
        assert (got["method"], got["target"], got["body"]) == ("POST", "/a%20b/c?q=%2F..", "body")
        assert headers["cookie"] == "theme=dark"
        assert headers["host"] == "localhost"
        assert headers["x-forwarded-prefix"] == PREFIX.rstrip("/")
        assert headers["x-mine"] == "kept"
        assert headers["origin"] == "http://localhost"
        assert TOKEN not in json.dumps(got)
        for name in (
            "authorization",
            "forwarded",
            "x-forwarded-user",
            "x_forwarded_user",
            "x-remote-user",
            "x-auth-request-email",
            "x-original-url",
            "x_rewrite_url",
            "x-real-ip",
            "proxy-authorization",
            "x-secret",
        ):
            assert name not in headers

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 10_000

        async with site.client.put(f"{site.base}{PREFIX}up", data=pieces(), headers=BEARER) as response:
            assert len((await response.json())["body"]) == 1_000_000
        async with site.client.head(f"{site.base}{PREFIX}up", headers=BEARER) as response:
            assert response.status == 200
            assert int(response.headers["Content-Length"]) > 0
        expect = (
            f"POST {PREFIX} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nExpect: 100-continue\r\n"
        )
        answer = await site.raw(f"{expect}Connection: close\r\nContent-Length: 2\r\n\r\nhi".encode())
        assert b"100 Continue" in answer
        assert b'"body": "hi"' in answer

    run(scenario)


def test_prefix_modes_and_allowed_paths() -> None:
    def path(target: str, mode: str = "strip", allowed: tuple[str, ...] = ()) -> str | int:
        try:
            return service_path(target, "/p/", mode=mode, allowed=allowed)
        except RefusedError as refused:
            return refused.status

    assert path("/p/a?b") == "/a?b"
    assert path("/p/a?b", "keep") == "/p/a?b"
    assert path("/p/") == "/"
    assert path("/p/m%2Fn") == "/m%2Fn"
    for outside in ("/", "/p", "/q/a", "/pp/a", "/P/a", "//p/a", "/%70/a"):
        assert path(outside) == 404, outside
    dots = (
        "..",
        ".",
        "%2e%2e",
        "%2E.",
        "a/../b",
        "..%2fa",
        "a%5c..%5cb",
        "%252e%252e",
        "..;x",
        "a/..",
        "%00",
        "a%0d%0aSet-Cookie:%20a=b",
        "a%250ab",
        "a%7f",
    )
    for each in dots:
        assert path(f"/p/{each}") == 400, each
    for malformed in ("http://x/p/", "*", "p/", "/p/a#b", "/p/a b", "/p/\x7f", "/p/%25252525252e"):
        assert path(malformed) == 400, malformed
    allowed = ("/v1/", "/health")
    for good in ("/v1/models", "/v1/", "/health", "/health?a=/../b", "/v1/a%20b"):
        assert path(f"/p{good}", allowed=allowed) == good
    for bad in (
        *("/", "/v1", "/v2/", "/healthz", "/health/", "/pause", "/V1/a", "//v1/a", "/v1//a", "/v1%2fmodels"),
        *("/v1/%2Fa", "/v1/a%5Cb", "/v1/a\\b", "/v1/%252fa", "/v1/a;b", "/health;/x", "/x/v1/a"),
    ):
        assert path(f"/p{bad}", allowed=allowed) == 404, bad


def test_cookies_and_redirects_of_the_service_stay_below_its_path() -> None:
    assert limited_cookie("a=b", "/p/") == "a=b; Path=/p/"
    assert limited_cookie("a=b; path=/; DOMAIN=x; Secure", "/p/") == "a=b; Secure; Path=/p/"
    assert limited_cookie("a=b; Path=/p/../hub", "/p/") == "a=b; Path=/p/"
    for foreign in (
        "jupyterhub-user-ada=x",
        "JupyterHub-x=y",
        "_xsrf=1",
        "__Secure-a=b",
        "nothing",
        "a b=c",
        "=v",
    ):
        assert limited_cookie(foreign, "/p/") == ""

    def redirect(location: str, mode: str = "strip") -> str | int:
        try:
            return limited_redirect(location, prefix="/p/", mode=mode)
        except RefusedError as refused:
            return refused.status

    assert redirect("/a?b#c") == "/p/a?b#c"
    assert redirect("/p/a") == "/p/a"
    assert redirect("a/b") == "a/b"
    assert redirect("?a") == "?a"
    assert redirect("http://localhost/a") == "/p/a"
    assert redirect("http://localhost") == "/p/"
    assert redirect("/p/a", "keep") == "/p/a"
    assert redirect("/hub/logout", "keep") == 502
    for elsewhere in (
        *(
            "https://evil.example/",
            "//evil.example/",
            "///evil",
            "/\\evil",
            "\\\\evil",
            "javascript:alert(1)",
        ),
        *(
            "http://localhost@evil/",
            "http://localhost:8000/hub",
            "http:evil",
            "http://[",
            "data:,x",
            "/a\tb",
            "",
        ),
        *("../hub/home", "/p/../hub", "/%2e%2e/hub", "a/..%2f..%2fhub", "http:///a"),
    ):
        assert redirect(elsewhere) == 502, elsewhere
    kept = headers_to_service(
        [("Cookie", "a=1"), ("Cookie", "jupyterhub-x=2; b=3")], own_cookies=frozenset("b"), prefix="/"
    )
    assert dict(kept)["Cookie"] == "a=1"
    for origin in ("null", "https://evil.example", "http://["):
        kept = headers_to_service([("Origin", origin)], own_cookies=frozenset(), prefix="/")
        assert dict(kept)["Origin"] == origin


def test_a_hostile_service_gets_no_headers_of_its_own_through() -> None:
    async def scenario(site: Site) -> None:
        async with site.get(f"{PREFIX}hostile") as response:
            assert await response.text() == "hello"
            cookies = response.headers.getall("Set-Cookie")
            assert cookies == [f"sid=1; HttpOnly; Path={PREFIX}", f"own=2; Path={PREFIX}x"]
            assert "evil" not in str(response.headers)
            assert response.headers["Service-Worker-Allowed"] == PREFIX
        for target, status in (("https://evil.example/", 502), ("/hub/logout/../..", 502), ("/login", 302)):
            async with site.get(f"{PREFIX}redirect", params={"to": target}) as response:
                assert response.status == status
                assert response.headers.get("Location", "") in {"", f"{PREFIX}login"}

    run(scenario)


def test_a_stream_is_not_buffered_and_ends_with_its_reader() -> None:
    async def scenario(site: Site) -> None:
        response = await site.get(f"{PREFIX}events")
        async with asyncio.timeout(5):
            assert await response.content.readany() == b"data: first\n\n"
        response.close()

    run(scenario)


def test_a_websocket_passes_both_ways_with_its_protocol_and_without_credentials() -> None:
    async def scenario(site: Site) -> None:
        url = f"{site.base}{PREFIX}ws"
        headers = {**BEARER, "Cookie": "jupyterhub-session-id=a"}
        async with site.client.ws_connect(url, headers=headers, protocols=("other", "chat")) as socket:
            assert socket.protocol == "chat"
            await socket.send_str("hello")
            assert await socket.receive_str() == "chat: hello"
            await socket.send_bytes(bytes(range(256)) * 1000)
            assert await socket.receive_bytes() == (bytes(range(256)) * 1000)[::-1]
            await socket.send_str("headers")
            assert not {"authorization", "cookie"} & set(await socket.receive_json())
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await site.client.ws_connect(f"{site.base}{PREFIX}echo", headers=BEARER)
        assert refused.value.status == 502

    run(scenario)


def test_a_browser_logs_in_by_the_form_and_other_sites_cannot_use_its_cookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(site: Site) -> None:
        page = {"Accept": "text/html", "Sec-Fetch-Site": "none"}
        async with site.client.get(f"{site.base}{PREFIX}", headers=page) as response:
            assert response.status == 401
            assert 'type="password"' in await response.text()
            assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
        login = f"{site.base}{PREFIX}_gipfel/login"
        for token, origin, status in (
            ("x", site.base, 401),
            (TOKEN, "https://evil.example", 405),
            (TOKEN, "http://[", 405),
            (TOKEN, site.base, 303),
        ):
            form = {"token": token}
            async with site.client.post(
                login, data=form, headers={"Origin": origin}, allow_redirects=False
            ) as response:
                assert response.status == status
                cookie = response.cookies.get("gipfel-service-board")
        assert cookie is not None
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", PREFIX)
        assert TOKEN not in cookie.value
        pair = {"Cookie": f"gipfel-service-board={cookie.value}"}
        other_port = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}
        for headers, status in (
            ({}, 200),
            ({"Origin": site.base, "Sec-Fetch-Site": "same-origin"}, 200),
            ({"Origin": "https://evil.example"}, 401),
            ({"Origin": "null"}, 401),
            ({"Sec-Fetch-Site": "cross-site"}, 401),
            ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 401),
            ({**other_port, "Sec-Fetch-Dest": "document"}, 200),
            ({**other_port, "Sec-Fetch-Dest": "iframe"}, 401),
        ):
            async with site.client.get(f"{site.base}{PREFIX}x", headers={**pair, **headers}) as response:
                assert response.status == status, headers
        expires, _, mac = cookie.value.partition(".")
        for forged in (
            f"{int(expires) + 1}.{mac}",
            f"1.{mac}",
            f"{expires}.",
            "",
            "x",
            f"\u0661.{mac}",
            "9" * 5000,
        ):
            bad = {"Cookie": f"gipfel-service-board={forged}"}
            async with site.client.get(f"{site.base}{PREFIX}x", headers=bad) as response:
                assert response.status in {400, 401}
        upgrade = {**pair, "Origin": "https://evil.example"}
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await site.client.ws_connect(f"{site.base}{PREFIX}ws", headers=upgrade)
        async with site.client.post(login, data=b"x" * 100_000, headers={"Origin": site.base}) as response:
            assert response.status == 413
        many = "&".join(["a=1"] * 9)
        async with site.client.post(login, data=many, headers={"Origin": site.base}) as response:
            assert response.status == 400
        # Visitors without access don't occupy the front door: neither by a slow form, nor by its connection.
        post = f"POST {PREFIX}_gipfel/login HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
        monkeypatch.setattr(access, "FORM_S", 0.2)
        assert b" 408 " in await site.raw(f"{post}token".encode())
        assert (await site.raw(f"{post}token=123{post}token=123".encode())).count(b"HTTP/1.1 401") == 1

    run(scenario)


def _answer(content: bytes, *, forever: bytes = b"", close: bool = True) -> Raw:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(content)
            while forever:
                writer.write(forever)
                await writer.drain()
            await writer.drain()
            if not close:
                await asyncio.Event().wait()
        writer.close()

    return answer


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 99999 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 " + b"x" * 100_000,
    ],
    ids=lambda content: content[:30].decode(errors="replace") or "nothing",
)
def test_broken_http_of_the_service_is_one_sentence_with_status_502(content: bytes) -> None:
    async def scenario(site: Site) -> None:
        async with site.get(PREFIX) as response:
            assert response.status == 502
            assert await response.text() == "The service did not answer with valid HTTP.\n"
        assert not await is_ready(site.socket, "/", (), 5)

    run(scenario, raw=_answer(content))


def test_a_response_that_breaks_off_does_not_look_complete() -> None:
    async def scenario(site: Site) -> None:
        with pytest.raises(aiohttp.ClientError):
            async with site.get(PREFIX) as response:
                await response.read()

    run(scenario, raw=_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf"))
    run(scenario, raw=_answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal"))


def test_an_endless_answer_is_not_kept_in_memory_and_ends_with_its_reader() -> None:
    sent = 0
    ended = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        ended.set()

    async def scenario(site: Site) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port, limit=65536)
        writer.write(f"GET {PREFIX} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        # The client reads no more: the service must be held up, after the buffers of three sockets are full.
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.5)
        assert before < 24 << 20
        writer.transport.abort()
        async with asyncio.timeout(10):
            await ended.wait()

    run(scenario, raw=flood)


def _post(headers: bytes, body: bytes) -> bytes:
    """A request with access, which the parser of the service may read in another way."""
    start = b"POST /user/ada/board/ HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + TOKEN.encode()
    return start + b"\r\n" + headers + b"\r\n" + body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /user/ada/board/ HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 40_000 + b"\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 500 + b"\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"400",
        ),
        (
            b"GET http://a/ HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer t0ken-of-the-owner\r\n\r\n",
            b"400",
        ),
        (_post(b"Content-Length: +1\r\n", b"a"), b"400"),
        (_post(b"Content-Length: 1\r\nContent-Length: 2\r\n", b"ab"), b"400"),
        (_post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"), b"400"),
        (_post(b"A: b\r\n Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"), b"400"),
        (_post(b"A: b\rTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), b"400"),
        (_post(b"A: b\0c\r\n", b""), b"400"),
        (_post(b"Content-Length : 1\r\n", b"a"), b"400"),
        (_post(b"Transfer-Encoding: chunked\r\n", b"0x1\r\na\r\n0\r\n\r\n"), b"400"),
    ],
    ids=[
        *("long header", "long path", "many headers", "TLS", "smuggled", "absolute"),
        *("signed length", "two lengths", "unknown coding", "folded", "bare CR", "NUL", "space before colon"),
        "chunk size",
    ],
)
def test_a_malformed_request_is_refused(request_bytes: bytes, status: bytes) -> None:
    async def scenario(site: Site) -> None:
        answer = await site.raw(request_bytes)
        assert answer.split(b" ")[1] == status, answer[:200]

    run(scenario)


def test_a_silent_client_and_too_many_requests_do_not_hold_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_door, "_ACCESS_S", 0.3)
    monkeypatch.setattr(front_door, "_BODY_S", 0.3)
    monkeypatch.setattr(front_door, "MAX_REQUESTS", 2)
    monkeypatch.setattr(front_door, "MAX_CONNECTIONS", 20)

    async def scenario(site: Site) -> None:
        assert await site.raw(b"GET / HTTP/1.1\r\nHos") == b""
        started = (
            f"POST {PREFIX} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\n"
        )
        assert b" 504 " in await site.raw(started.encode()) or b" 502 " in await site.raw(started.encode())
        streams = [await site.get(f"{PREFIX}events") for _ in range(2)]
        async with site.get(PREFIX) as response:
            assert response.status == 503
        for each in streams:
            each.close()
        async with asyncio.timeout(10):
            while True:
                async with site.get(PREFIX) as response:
                    if response.status == 200:
                        break
                await asyncio.sleep(0.05)

    run(scenario)


def test_visitors_without_access_do_not_displace_those_with_access(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_door, "MAX_REQUESTS", 2)
    monkeypatch.setattr(front_door, "MAX_CONNECTIONS", 6)

    async def scenario(site: Site) -> None:
        async with site.get(PREFIX) as response:
            assert response.status == 200
        form = f"POST {PREFIX}_gipfel/login HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nt".encode()
        strangers = []
        for start in (form, b"", b"GET / HT") * 5:
            strangers.append(await asyncio.open_connection("127.0.0.1", site.port))
            strangers[-1][1].write(start)
        # The connection of the first request is still open, and a new one is accepted, too.
        async with site.get(PREFIX) as response:
            assert response.status == 200
        assert (await site.raw(_post(b"Connection: close\r\n", b""))).startswith(b"HTTP/1.1 200")
        for reader, _ in strangers[:9]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        for _, writer in strangers:
            writer.transport.abort()

    run(scenario)


def test_a_service_that_does_not_listen_is_not_ready_and_gives_status_502(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        assert await is_ready(site.socket, "/", (), 5)
        assert await is_ready(site.socket, "/", (200,), 5)
        assert not await is_ready(site.socket, "/", (204,), 5)
        site.socket.unlink()
        assert not await is_ready(site.socket, "/", (), 5)
        async with site.get(PREFIX) as response:
            assert response.status == 502

    run(scenario)


def test_a_service_that_is_not_http_is_reached_by_a_checked_tunnel_alone() -> None:
    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1 << 16):
            writer.write(piece.upper())
        writer.close()

    async def scenario(site: Site) -> None:
        for path in ("", "some/path", "_gipfel/tunnel"):
            async with site.get(PREFIX + path) as response:
                assert response.status == 426
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Bearer " + TOKEN[:-1]}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await site.client.ws_connect(f"{site.base}{PREFIX}_gipfel/tunnel", headers=headers)
            assert refused.value.status == 401
        async with site.client.ws_connect(f"{site.base}{PREFIX}_gipfel/tunnel", headers=BEARER) as tunnel:
            sent = b"a\0b" * 200_000
            await tunnel.send_bytes(sent)
            heard = b""
            while len(heard) < len(sent):
                heard += await tunnel.receive_bytes()
            assert heard == sent.upper()
            await tunnel.send_str("no text in a tunnel")
            assert (await tunnel.receive()).type in {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED}

    run(scenario, raw=upper, mode="raw")


def test_streams_and_websockets_end_when_access_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_door, "_RECHECK_S", 0.1)

    async def scenario(site: Site) -> None:
        socket = await site.client.ws_connect(f"{site.base}{PREFIX}ws", headers=BEARER)
        async with site.get(f"{PREFIX}events") as stream:
            assert await stream.content.readline() == b"data: first\n"
            await asyncio.sleep(0.3)
            await socket.send_str("still here")
            assert (await socket.receive()).data.endswith("still here")
            monkeypatch.setattr(TokenAccess, "is_allowed", _refused)
            with pytest.raises(aiohttp.ClientError):
                await asyncio.wait_for(stream.content.read(), 10)
        assert (await asyncio.wait_for(socket.receive(), 10)).type is not aiohttp.WSMsgType.TEXT

    run(scenario)


async def _refused(*_: object) -> bool:
    return False
