"""Both ends of a tunnel to a service that does not speak HTTP, such as a database.

At the front door, the binary messages of a websocket are copied to and from a connection to the service; the
websocket is checked as every request is. On the client's side, `connect` makes a Unix socket of this user,
whose connections become such websockets.
"""

import asyncio
import contextlib
import re
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from gipfel_cluster.model import GipfelError

from .request_rules import RefusedError

#: Path of the websocket, below the service's prefix.
TUNNEL = "/_gipfel/tunnel"
#: Header with the file name of the socket that the service's clients expect.
_NAME_HEADER = "X-Gipfel-Socket"
_SOCKET_NAME = re.compile(r"\.?[A-Za-z0-9][A-Za-z0-9._-]{0,30}")
_MAX_MESSAGE_BYTES = 16 << 20
_CHUNK_BYTES = 64 << 10
_CONNECT_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def serve_tunnel(request: web.BaseRequest, socket: str, socket_name: str) -> web.StreamResponse:
    """Accept the websocket of a request with access, and join it with a new connection to the service.

    Raises
    ------
    RefusedError
        The service did not accept a connection.
    """
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_unix_connection(socket, limit=_CHUNK_BYTES)
    except (TimeoutError, OSError) as error:
        raise RefusedError(502, "The service did not accept a connection.") from error
    client = web.WebSocketResponse(max_msg_size=_MAX_MESSAGE_BYTES, compress=False)
    client.headers[_NAME_HEADER] = socket_name
    try:
        await client.prepare(request)
        await _join(client, reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError, RuntimeError):
            await client.close()
    return client


def connect(url: str, token: str, command: Sequence[str], report: Callable[[Path], None]) -> int:
    """Run a command while a socket of this user leads to the service, and return its exit status.

    In the command ``{socket}`` is the socket's path, and ``{directory}`` its directory. Without a command the
    socket stays until a signal, such as Ctrl-C, ends this process; ``report`` is called with its path.

    Raises
    ------
    GipfelError
        The service does not answer, or the command can't be run.
    """
    return asyncio.run(_connect(url, token, command, report))


async def _connect(url: str, token: str, command: Sequence[str], report: Callable[[Path], None]) -> int:
    # Made for this user alone (0700): whoever can connect to the socket has access to the service.
    with tempfile.TemporaryDirectory(prefix="gipfel-c-") as directory:
        # An EDF may set a proxy for the internet, which must not see the token.
        async with aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"}, trust_env=False
        ) as session:
            target = url.rstrip("/") + TUNNEL
            path = Path(directory, await _check(session, target))

            async def bridge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    async with session.ws_connect(target, max_msg_size=_MAX_MESSAGE_BYTES) as websocket:
                        await _join(websocket, reader, writer)
                writer.close()

            server = await asyncio.start_unix_server(bridge, str(path), limit=_CHUNK_BYTES)
            try:
                if command:
                    return await _run(command, path)
                return await _wait(path, report)
            finally:
                server.close()


async def _check(session: aiohttp.ClientSession, target: str) -> str:
    """Open one connection, and return the name for the socket; report a refusal before the command runs."""
    try:
        async with session.ws_connect(target) as websocket:
            # aiohttp has no public access to the headers of the response.
            name = websocket._response.headers.get(_NAME_HEADER, "")  # noqa: SLF001
            return name if _SOCKET_NAME.fullmatch(name) else "service"
    except aiohttp.WSServerHandshakeError as error:
        is_refused = error.status in {401, 403}
        problem = "You have no access to it" if is_refused else f"It answers with status {error.status}"
        raise GipfelError(f"The service can't be reached. {problem}.", "See `gipfel ps`.") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        fix = "See `gipfel ps`; a service without a hub is reached on its own node alone."
        raise GipfelError(f"The service can't be reached: {error}.", fix) from error


async def _run(command: Sequence[str], path: Path) -> int:
    """Run the command in the foreground; it gets this terminal's Ctrl-C itself."""
    words = [each.replace("{socket}", str(path)).replace("{directory}", str(path.parent)) for each in command]
    try:
        process = await asyncio.create_subprocess_exec(*words)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GipfelError(f"{words[0]} can't be run: {reason}.", "Install it, or give its path.") from error

    def pass_on(number: int) -> None:
        if number != signal.SIGINT:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, pass_on, number)
    status = await process.wait()
    return 128 - status if status < 0 else status


async def _wait(path: Path, report: Callable[[Path], None]) -> int:
    """Keep the socket until a signal arrives."""
    ended = asyncio.Event()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    report(path)
    await ended.wait()
    return 0


async def _join(websocket: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy between a websocket's binary messages and a stream until one side ends."""

    async def to_websocket() -> None:
        while piece := await reader.read(_CHUNK_BYTES):
            await websocket.send_bytes(piece)

    async def from_websocket() -> None:
        async for message in websocket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                return
            writer.write(message.data)
            await writer.drain()

    tasks = [asyncio.create_task(to_websocket()), asyncio.create_task(from_websocket())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
