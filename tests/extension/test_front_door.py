"""The front door against visitors without access, and what those with access get."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from door_site import BEARER, PREFIX, TOKEN, Site, post, run
from yarl import URL

from gipfel_extension.services import access, front_door
from gipfel_extension.services.access import TokenAccess


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
        (post(b"Content-Length: +1\r\n", b"a"), b"400"),
        (post(b"Content-Length: 1\r\nContent-Length: 2\r\n", b"ab"), b"400"),
        (post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"), b"400"),
        (post(b"A: b\r\n Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"), b"400"),
        (post(b"A: b\rTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), b"400"),
        (post(b"A: b\0c\r\n", b""), b"400"),
        (post(b"Content-Length : 1\r\n", b"a"), b"400"),
        (post(b"Transfer-Encoding: chunked\r\n", b"0x1\r\na\r\n0\r\n\r\n"), b"400"),
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
        assert (await site.raw(post(b"Connection: close\r\n", b""))).startswith(b"HTTP/1.1 200")
        for reader, _ in strangers[:9]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        for _, writer in strangers:
            writer.transport.abort()

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
