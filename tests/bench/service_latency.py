"""Requests through the front door of a service, beside the same requests to the bare service on its socket.

The service is Python's HTTP server in a process of its own. ``table`` answers with 200 rows of an SQLite
database as JSON, as a small request to a tracking server does; ``smallest`` with two bytes; ``stream`` sends
its first event and waits. Connections stay open between requests. Requests to both sides take turns.

Prints three rows as JSON: the ratio of the medians for the table, and what the smallest answer is later, of
0.5 ms, and a stream's first byte, of 20 ms. A service that does nothing answers sooner than two processes can
hand a request on: there the ratio would measure the kernel.
"""

import http.client
import json
import socket
import socketserver
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

BOUND = 1.3
LATER_S, FIRST_BYTE_S = 0.0005, 0.02
_TOKEN = "bench-" + "x" * 40
_LIMIT_S = 60.0
_ROWS = 200


class _Handler(BaseHTTPRequestHandler):
    """The service."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = False  # a Unix socket has none

    def do_GET(self) -> None:
        if self.path == "/stream":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"data: first\n\n")
            self.wfile.flush()
            self.rfile.read(1)
            return
        content = _table() if self.path == "/table" else b"ok"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: object) -> None:
        """Nothing to log."""


class _Service(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def _table() -> bytes:
    with sqlite3.connect(sys.argv[3]) as database:
        rows = database.execute(
            "SELECT run, key, value, step, time FROM metrics ORDER BY time DESC LIMIT ?", (_ROWS,)
        )
        names = ("run", "key", "value", "step", "time")
        return json.dumps([dict(zip(names, row, strict=True)) for row in rows]).encode()


def _serve() -> None:
    with sqlite3.connect(sys.argv[3]) as database:
        database.execute("CREATE TABLE metrics (run TEXT, key TEXT, value REAL, step INTEGER, time INTEGER)")
        many = ((f"run-{n % 7}", "loss", 1 / (n + 1), n, n) for n in range(10_000))
        database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", many)
        database.execute("CREATE INDEX by_time ON metrics (time)")
    with _Service(sys.argv[2], _Handler) as server:
        server.serve_forever()


def _open_door() -> None:
    import asyncio  # noqa: PLC0415 - this process is the front door alone

    from gipfel_cluster.ports import bind_port  # noqa: PLC0415
    from gipfel_extension.services.access import TokenAccess  # noqa: PLC0415
    from gipfel_extension.services.front_door import FrontDoor, Route  # noqa: PLC0415

    async def run() -> None:
        listener = bind_port("127.0.0.1", None)
        door = FrontDoor(Route(socket=sys.argv[2]), TokenAccess(_TOKEN, "bench", "/"))
        await door.start(listener)
        print(listener.getsockname()[1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


class _Connection(http.client.HTTPConnection):
    """A connection to a Unix socket, or with a number to a port of this machine."""

    def __init__(self, target: str) -> None:
        super().__init__("127.0.0.1", int(target) if target.isdecimal() else 80, timeout=_LIMIT_S)
        self._path = "" if target.isdecimal() else target

    def connect(self) -> None:
        if not self._path:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_LIMIT_S)
        self.sock.connect(self._path)


def _request(connection: _Connection, path: str) -> float:
    start = time.perf_counter()
    connection.request("GET", path, headers={"Authorization": f"Bearer {_TOKEN}"})
    answer = connection.getresponse()
    content = answer.read()
    seconds = time.perf_counter() - start
    if answer.status != 200 or not content:
        raise SystemExit(f"status {answer.status} for {path}")
    return seconds


def _first_byte(target: str) -> float:
    connection = _Connection(target)
    connection.connect()
    start = time.perf_counter()
    connection.request("GET", "/stream", headers={"Authorization": f"Bearer {_TOKEN}"})
    if connection.getresponse().read1(64) != b"data: first\n\n":
        raise SystemExit("the stream began with something else")
    seconds = time.perf_counter() - start
    connection.close()
    return seconds


def _medians(door: str, bare: str, path: str, rounds: int) -> tuple[float, float]:
    through, direct = _Connection(door), _Connection(bare)
    pairs = [(_request(through, path), _request(direct, path)) for _ in range(rounds + 20)][20:]
    through.close()
    direct.close()
    ours, peer = zip(*pairs, strict=True)
    return statistics.median(ours), statistics.median(peer)


def _row(name: str, ours: float, peer: float, ratio: float, bound: float) -> dict[str, Any]:
    row = {"name": f"service-latency: {name}", "ours": ours * 1e3, "peer": peer * 1e3, "unit": "ms"}
    return {**row, "ratio": ratio, "bound": bound, "holds": ratio <= bound}


def _later(name: str, ours: float, limit: float) -> dict[str, Any]:
    return _row(name, ours, limit, ours / limit, 1.0)


def main(rounds: int) -> int:
    """Measure; 1 where a bound does not hold."""
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-") as name:
        bare = str(Path(name) / "s")
        me = (sys.executable, str(Path(__file__).resolve()))
        service = subprocess.Popen((*me, "serve", bare, str(Path(name) / "metrics.db")))
        door = subprocess.Popen((*me, "door", bare), stdout=subprocess.PIPE, text=True)
        try:
            assert door.stdout is not None
            port = door.stdout.readline().strip()
            deadline = time.monotonic() + _LIMIT_S
            while not Path(bare).exists():
                if time.monotonic() > deadline:
                    raise SystemExit("the service did not start")
                time.sleep(0.05)
            rows = []
            ours, peer = _medians(port, bare, "/table", rounds)
            rows.append(_row("a table of 200 rows", ours, peer, ours / peer, BOUND))
            through, direct = _medians(port, bare, "/smallest", rounds)
            rows.append(_later("the smallest answer later, of 0.5 ms", through - direct, LATER_S))
            pairs = [(_first_byte(port), _first_byte(bare)) for _ in range(max(10, rounds // 10))]
            through, direct = (statistics.median(each) for each in zip(*pairs, strict=True))
            rows.append(_later("a stream's first byte later, of 20 ms", through - direct, FIRST_BYTE_S))
        finally:
            for process in (door, service):
                process.kill()
                process.wait()
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _serve()
    elif sys.argv[1:2] == ["door"]:
        _open_door()
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
