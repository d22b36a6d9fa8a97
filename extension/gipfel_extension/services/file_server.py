"""``python -m gipfel_extension.services.file_server SOCKET DIRECTORY``: show a directory over a Unix socket.

Python's own `http.server`, read-only. Files outside of the directory, which a link in it names, are refused;
so are named pipes, which would block a thread for ever.
"""

import os
import socketserver
import sys
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any


class _Handler(SimpleHTTPRequestHandler):
    """Files of one directory; connections stay open between requests."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=sys.argv[2])

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
    is_inside = target.is_relative_to(Path(sys.argv[2]).resolve())
    return is_inside and (target.is_file() or target.is_dir())


class _Server(socketserver.ThreadingUnixStreamServer):
    """HTTP server on a Unix socket that its owner alone can use."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has left before the end of its answer; print other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def main() -> int:
    """Serve until a signal ends the process."""
    if not Path(sys.argv[2]).is_dir():
        sys.stderr.write(f"{sys.argv[2]} is not a directory. Give the path of a directory.\n")
        return 1
    os.umask(0o077)
    with _Server(sys.argv[1], _Handler) as server:
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
