"""HTTP through a gate, by CONNECT, beside the same downloads without one.

A server of this machine sends 128 MiB from memory, and a client in a process of its own reads and drops them,
in turn behind the gate and not, in the opposite order each second round. The ratio is the median of those of
the rounds: what else runs on the machine slows both of a round. Latency is that of a new connection with an
answer of two bytes. The start is what a command waits for its gate.

Prints three rows as JSON: the ratio of downloads, what a new connection takes longer, of 10 ms, and the
start, of two seconds.
"""

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gipfel_cluster.edf.gate import Gate, Gates
from gipfel_cluster.egress.start import gate_invocation
from gipfel_cluster.engines import Invocation

THROUGHPUT_BOUND, LATER_MS, START_S = 6.0, 10.0, 2.0
_BYTES = 128 << 20
_PIECE = bytes(1 << 20)
_ROUNDS, _CONNECTIONS, _STARTS = 15, 30, 7


class _Handler(BaseHTTPRequestHandler):
    """The server: ``/large`` and ``/small``."""

    def do_GET(self) -> None:
        size = _BYTES if self.path == "/large" else 2
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        while size > 0:
            size -= self.wfile.write(_PIECE[:size])

    def log_message(self, *_: object) -> None:
        """Nothing to log."""


def _seconds(port: int, path: str, *, gated: bool) -> float:
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", 3128 if gated else port)
    if gated:
        connection.set_tunnel("127.0.0.1", port)
    connection.request("GET", path)
    answer = connection.getresponse()
    while answer.read(1 << 20):
        pass
    connection.close()
    return time.perf_counter() - began


def _client(port: int, *, gated: bool) -> None:
    """Answer each line of standard input with a line: the seconds of a download, or of many small ones."""
    for line in sys.stdin:
        if line.strip() == "large":
            print(_seconds(port, "/large", gated=gated), flush=True)
        else:
            times = [_seconds(port, "/small", gated=gated) for _ in range(_CONNECTIONS)]
            print(statistics.median(times), flush=True)


def _gated(argv: tuple[str, ...], port: int, run: str) -> Invocation:
    gates = Gates(gates=(Gate(allow=(f"127.0.0.1:{port}",)),))
    plain = Invocation(argv=argv, environment=dict(os.environ))
    return gate_invocation(plain, gates, run=run, node="bench", python=sys.executable)


def _start_s(port: int, run: str) -> float:
    """Return what a program's start takes longer behind a gate."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(_STARTS):
        for gated in (True, False):
            made = _gated(("/bin/true",), port, run)
            argv = made.argv if gated else ("/bin/true",)
            began = time.perf_counter()
            subprocess.run(argv, env=made.environment, check=True)
            times[gated].append(time.perf_counter() - began)
    return statistics.median(times[True]) - statistics.median(times[False])


def _row(name: str, ours: float, peer: float, unit: str, bound: float) -> None:
    ratio = ours / peer
    row = {"name": f"gate-http: {name}", "ours": ours, "peer": peer, "unit": unit, "ratio": ratio}
    print(json.dumps({**row, "bound": bound, "holds": ratio <= bound}), flush=True)


def main() -> None:
    """Measure in turn, and print the rows."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as run:
        argv = (sys.executable, __file__, "client", str(port))
        gated = _gated((*argv, "gated"), port, run)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        clients = {
            True: subprocess.Popen(gated.argv, env=gated.environment, **pipes),
            False: subprocess.Popen(argv, **pipes),
        }
        found: dict[tuple[str, bool], list[float]] = {}
        for number in range(_ROUNDS):
            for what in ("large", "small"):
                for behind, client in list(clients.items())[:: 1 if number % 2 else -1]:
                    client.stdin.write(f"{what}\n")
                    client.stdin.flush()
                    found.setdefault((what, behind), []).append(float(client.stdout.readline()))
        for client in clients.values():
            client.stdin.close()
            client.wait(30)
        medians = {key: statistics.median(each) for key, each in found.items()}
        ratios = [one / other for one, other in zip(found["large", True], found["large", False], strict=True)]
        peer = medians["large", False]
        _row("download", peer * statistics.median(ratios), peer, "s", THROUGHPUT_BOUND)
        later_ms = (medians["small", True] - medians["small", False]) * 1e3
        _row("new connection, later by", later_ms, LATER_MS, "ms", 1.0)
        _row("start", _start_s(port, run), START_S, "s", 1.0)
    server.shutdown()


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        _client(int(sys.argv[2]), gated=sys.argv[3:] == ["gated"])
    else:
        main()
