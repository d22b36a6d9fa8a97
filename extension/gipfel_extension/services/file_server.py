"""``python -m gipfel_extension.services.file_server SOCKET DIRECTORY``: show a directory over a Unix socket.

Python's own `http.server`, read-only. Files outside of the directory, which a link in it names, are refused.
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
        """Return the path of a file; one that does not exist for a link that leads out of the directory."""
        found = super().translate_path(path)
        root = os.path.realpath(sys.argv[2])
        inside = os.path.realpath(found)
        return found if inside == root or inside.startswith(f"{root}/") else os.devnull + "/outside"

    def address_string(self) -> str:
        """Return a word for the log: a Unix socket has no address of a client."""
        return "front-door"


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
