"""The front door against a service that attacks its visitors, breaks HTTP, floods, or does not answer."""

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from door_site import BEARER, PREFIX, TOKEN, Raw, Site, run

from gipfel_extension.services.upstream import is_ready

KEY = b"sec-websocket-key:"
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


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


def test_a_small_answer_that_takes_its_time_is_passed_on_in_pieces() -> None:
    go_on = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\none")
        await go_on.wait()
        writer.write(b"two")

    async def scenario(site: Site) -> None:
        async with asyncio.timeout(10), site.get(PREFIX) as response:
            assert await response.content.readexactly(3) == b"one"
            go_on.set()
            assert await response.read() == b"two"

    run(scenario, raw=slow)


async def _assert_held_up(sent: Callable[[], int]) -> None:
    """Wait until a service can send no more, which is after the buffers of three sockets are full."""
    before = -1
    while sent() != before:
        before = sent()
        await asyncio.sleep(0.5)
    assert before < 24 << 20


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
        # The client reads no more: the service must be held up.
        await _assert_held_up(lambda: sent)
        writer.transport.abort()
        async with asyncio.timeout(10):
            await ended.wait()

    run(scenario, raw=flood)


def test_a_websocket_that_floods_is_held_up_and_ends_with_its_reader() -> None:
    sent = 0
    ended = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        request = await reader.readuntil(b"\r\n\r\n")
        key = next(each.split(b": ")[1] for each in request.split(b"\r\n") if each[:18].lower() == KEY)
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
        start = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        writer.write(start + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"\x82\x7f" + (65536).to_bytes(8, "big") + b"x" * 65536)
                await writer.drain()
                sent += 65536
        ended.set()

    async def scenario(site: Site) -> None:
        upgrade = (
            f"GET {PREFIX}ws HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port, limit=65536)
        writer.write(upgrade.encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        await _assert_held_up(lambda: sent)
        writer.transport.abort()
        async with asyncio.timeout(20):
            await ended.wait()

    run(scenario, raw=flood)


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


def test_connections_are_kept_and_a_request_is_repeated_only_where_that_is_harmless() -> None:
    requests: list[bytes] = []
    connections = 0

    async def one_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer until ``/last`` was answered; then close the connection at its next request."""
        nonlocal connections
        connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            is_last = False
            while True:
                requests.append(await reader.readuntil(b"\r\n\r\n"))
                if is_last:
                    break
                is_last = b"/last " in requests[-1]
                head = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
                writer.write(head + b"\r\nok")
        writer.close()

    async def scenario(site: Site) -> None:
        for path in ("a", "b", "last"):
            async with site.get(f"{PREFIX}{path}") as response:
                assert (response.status, await response.text()) == (200, "ok")
        assert connections == 1
        async with site.get(f"{PREFIX}again") as response:
            assert response.status == 200
        assert (connections, [b"/again " in each for each in requests].count(True)) == (2, 2)
        async with site.get(f"{PREFIX}last") as response:
            assert response.status == 200
        async with site.client.post(f"{site.base}{PREFIX}pay", headers=BEARER, data=b"") as response:
            assert response.status == 502
        assert (connections, [b"/pay " in each for each in requests].count(True)) == (2, 1)

    run(scenario, raw=one_answer)
