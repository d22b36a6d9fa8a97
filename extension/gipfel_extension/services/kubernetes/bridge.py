"""Bridge between addresses in a pod, and a check that one of them answers. Imports only the standard library.

``bridge.py serve LISTEN=TARGET...`` passes on connections. ``bridge.py check TARGET [PATH [STATUS,...]]``
exits with 0 if the target accepts a connection and, with a PATH, answers a request for it. An address is the
path of a Unix socket, or HOST:PORT.
"""

import asyncio
import contextlib
import http.client
import socket
import sys
from collections.abc import Sequence

_CHUNK_BYTES = 64 << 10
_TIMEOUT_S = 4.0
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connect(address: str) -> _Streams:
    if address.startswith("/"):
        return await asyncio.open_unix_connection(address)
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_CHUNK_BYTES):
        writer.write(piece)
        await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
    far_writer = None
    try:
        far_reader, far_writer = await _connect(target)
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
    except OSError:
        # The program does not listen yet, or one side has gone.
        pass
    finally:
        for each in (writer, far_writer):
            if each is not None:
                each.close()


async def serve(routes: Sequence[str]) -> None:
    """Listen on each address and pass its connections on to its target, for ever."""
    servers = []
    for route in routes:
        address, _, target = route.partition("=")

        def handle(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str = target
        ) -> asyncio.Future[None]:
            return asyncio.ensure_future(_pass_on(reader, writer, target))

        if address.startswith("/"):
            servers.append(await asyncio.start_unix_server(handle, address))
        else:
            host, _, port = address.rpartition(":")
            servers.append(await asyncio.start_server(handle, host or None, int(port)))
    await asyncio.gather(*(each.serve_forever() for each in servers))


def check(target: str, path: str = "", accepted: str = "") -> int:
    """Return 0 if the target accepts a connection and, with a path, answers with an accepted status."""
    try:
        if target.startswith("/"):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(_TIMEOUT_S)
            connection.connect(target)
        else:
            host, _, port = target.rpartition(":")
            connection = socket.create_connection((host, int(port)), _TIMEOUT_S)
        with connection:
            if not path:
                return 0
            request = http.client.HTTPConnection("localhost", timeout=_TIMEOUT_S)
            request.sock = connection
            request.request("GET", path)
            status = request.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"{target}: {error}\n")
        return 1
    is_good = str(status) in accepted.split(",") if accepted else 200 <= status < 400
    return 0 if is_good else 1


if __name__ == "__main__":
    if sys.argv[1] == "check":
        sys.exit(check(*sys.argv[2:5]))
    asyncio.run(serve(sys.argv[2:]))
