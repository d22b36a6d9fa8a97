"""A fake hub for tests of single-user servers: it records requests and returns configured responses."""

import http.server
import json
import threading
from typing import Any


class FakeHub(http.server.ThreadingHTTPServer):
    """Answers POST requests on a free port of loopback; a context manager that ends with the block."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        #: Path, Authorization header and body of each request.
        self.requests: list[tuple[str, str | None, dict[str, Any]]] = []
        #: Statuses of the next answers; 200 after them.
        self.statuses: list[int] = []
        #: Body of an answer with status 200, and of any other.
        self.answer: dict[str, Any] = {}
        self.error: dict[str, Any] = {}
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Stop answering, and close the socket."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which a single-user server finds its hub."""
        return {
            "JUPYTERHUB_API_URL": f"http://127.0.0.1:{self.server_port}/hub/api",
            "JUPYTERHUB_API_TOKEN": "t0",
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FakeHub

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers["Authorization"], body))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        self.end_headers()
        content = self.server.answer if status == 200 else {"status": status, **self.server.error}
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        pass
