"""``python -m gipfel_extension.services.private_network SOCKET PORT PROGRAM…``: a port that is a socket.

Runs a program that knows TCP only in a network namespace of its own, without root, and passes on connections
to a Unix socket to the program's port there. Nothing outside of the namespace can connect to the port, and
the program reaches no network.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from gipfel_cluster.namespaces import SandboxError, die_with_parent, enter_private_network

_CHUNK_BYTES = 64 << 10
_BACKLOG = 256


async def serve(path: Path, port: int, argv: list[str]) -> int:
    """Run the program and the bridge until the program ends, and return its exit status."""
    loop = asyncio.get_running_loop()
    # With a signal to end, the program must not outlive this process.
    child = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, _forward, child, number)
    server = await asyncio.start_unix_server(
        lambda reader, writer: _bridge(reader, writer, port), str(path), backlog=_BACKLOG, limit=_CHUNK_BYTES
    )
    os.chmod(path, 0o600)  # noqa: PTH101 - in an async function, where ruff takes Path.chmod for I/O
    try:
        status = await child.wait()
    finally:
        server.close()
    return 128 - status if status < 0 else status


def _forward(child: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


async def _bridge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Copy both ways between a connection to the socket and a new one to the port."""
    try:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port, limit=_CHUNK_BYTES)
    except OSError:
        # The program does not listen yet.
        writer.close()
        return
    try:
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
    except OSError:
        pass
    finally:
        for each in (writer, far_writer):
            each.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end, and pass the end on; the other direction may continue."""
    while piece := await reader.read(_CHUNK_BYTES):
        writer.write(piece)
        await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


def main() -> int:
    """Enter the namespace, then serve; print an error as one line on stderr."""
    path, port, *argv = sys.argv[1:]
    try:
        enter_private_network()
        return asyncio.run(serve(Path(path), int(port), argv))
    except (SandboxError, OSError) as error:
        sys.stderr.write(f"gipfel: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
