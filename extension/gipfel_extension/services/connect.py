"""Connect to a service that does not speak HTTP, through a Unix socket here that leads to the service's."""

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from gipfel_cluster.model import GipfelError

from .front_door import TUNNEL, join

_MAX_MESSAGE_BYTES = 16 << 20
_CHUNK_BYTES = 64 << 10


def connect(url: str, token: str, socket_name: str, command: Sequence[str]) -> int:
    """Run a command while a socket of this user leads to the service, and return its exit status.

    In the command ``{socket}`` is the socket's path, and ``{directory}`` its directory.

    Raises
    ------
    GipfelError
        The service does not answer, or the command can't be run.
    """
    return asyncio.run(_connect(url, token, socket_name, command))


async def _connect(url: str, token: str, socket_name: str, command: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="gipfel-c-") as directory:
        path = Path(directory, socket_name)
        # An EDF may set a proxy for the internet, which must not see the token.
        async with aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"}, trust_env=False
        ) as session:
            target = url.rstrip("/") + TUNNEL
            await _check(session, target)

            async def bridge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    async with session.ws_connect(target, max_msg_size=_MAX_MESSAGE_BYTES) as websocket:
                        await join(websocket, reader, writer)
                writer.close()

            server = await asyncio.start_unix_server(bridge, str(path), limit=_CHUNK_BYTES)
            try:
                return await _run(command, path)
            finally:
                server.close()


async def _check(session: aiohttp.ClientSession, target: str) -> None:
    try:
        async with session.ws_connect(target):
            pass
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise GipfelError(f"The service does not accept connections: {error}.", "See `gipfel ps`.") from error


async def _run(command: Sequence[str], path: Path) -> int:
    """Run the command in the foreground; it gets this terminal's Ctrl-C itself."""
    words = [each.replace("{socket}", str(path)).replace("{directory}", str(path.parent)) for each in command]
    try:
        process = await asyncio.create_subprocess_exec(*words)
    except OSError as error:
        reason = error.strerror or error
        raise GipfelError(f"{words[0]} can't be run: {reason}.", "Install it, or give its path.") from error
    while True:
        with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
            status = await process.wait()
            return 128 - status if status < 0 else status
