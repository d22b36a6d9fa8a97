"""Measure the CPU time of a real hub with many servers; stand-ins for Slurm's commands count their calls.

All servers are the same small HTTP server. The hub checks each of them, and gets each one's port in a
request with that server's token, which the stand-in for ``sbatch`` writes to a file.
"""

import contextlib
import http.server
import importlib.util
import json
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2] / "spawner"
# For the modules beside its conftest.py.
sys.path.append(str(TESTS))
_CONFIG = (
    "c.EDFSpawner.scheduler = 'slurm'",
    # The spawner's and the hub's own intervals.
    *(f"del c.EDFSpawner['{name}']" for name in ("poll_interval", "watch_interval", "calm_interval")),
    "c.EDFSpawner.env_keep = ['PATH', 'LANG']",
    "c.EDFSpawner.start_timeout = None",
    "c.JupyterHub.concurrent_spawn_limit = 0",
    "c.JupyterHub.log_level = 'WARN'",
    "c.JupyterHub.tornado_settings = {'slow_spawn_timeout': 0}",
)
_LIMIT_S = 300.0
_CONCURRENCY = 16


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", "6.1.1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Suppress the access log."""


def load_hubs() -> Any:
    """Return the module of the spawner's tests that runs a hub."""
    spec = importlib.util.spec_from_file_location("hubs", TESTS / "conftest.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hub_cpu(folder: Path, user: str, *, running: int, queued: int, settle_s: float, window_s: float) -> float:
    """Return the CPU use of the hub's process, in cores, without its child processes.

    Parameters
    ----------
    folder
        Directory with ``bin``, whose stand-ins number the jobs and report the first ones as running.
    """
    hubs = load_hubs()
    (folder / "state").mkdir()
    with _http_server() as port:
        hub = hubs.RunningHub(folder, hubs.find_proxy(), _CONFIG, {"PATH_FIRST": str(folder / "bin")})
        hub.start()
        try:
            _start_all(hub, user, folder / "tokens", running=running, queued=queued, port=port)
            time.sleep(settle_s)
            pid = hub._process.pid
            before, began = _cpu_seconds(pid), time.monotonic()
            time.sleep(window_s)
            share = (_cpu_seconds(pid) - before) / (time.monotonic() - began)
            ready, pending = _counts(hub, user)
            if (ready, pending) != (running, queued):
                raise SystemExit(f"{ready} servers run and {pending} start, not {running} and {queued}.")
            return share
        finally:
            # There are no jobs to stop, so it can be killed.
            hub.end(hard=True)


def _start_all(hub: Any, user: str, tokens: Path, *, running: int, queued: int, port: int) -> None:
    hub.call("POST", f"/users/{user}")

    def request_server(number: int) -> None:
        answer = hub.call("POST", f"/users/{user}/servers/s{number}", {})
        if answer.status not in {201, 202}:
            raise SystemExit(f"A server can't be started: {answer}\n{hub.log()}")

    def tokens_of_jobs() -> list[str]:
        return tokens.read_text().split() if tokens.exists() else []

    with ThreadPoolExecutor(_CONCURRENCY) as pool:
        list(pool.map(request_server, range(running)))
        _until(lambda: len(tokens_of_jobs()) == running, hub)
        list(pool.map(lambda token: _report(hub, token, port), tokens_of_jobs()))
        _until(lambda: _counts(hub, user)[0] == running, hub)
        list(pool.map(request_server, range(running, running + queued)))
    _until(lambda: len(tokens_of_jobs()) == running + queued, hub)


def _report(hub: Any, token: str, port: int) -> None:
    request = urllib.request.Request(
        f"{hub.hub}/hub/api/gipfel/server",
        data=json.dumps({"port": port}).encode(),
        headers={"Authorization": f"token {token}"},
    )
    with urllib.request.urlopen(request, timeout=60):
        return


def _counts(hub: Any, user: str) -> tuple[int, int]:
    """Return the numbers of ready and starting servers."""
    servers = hub.call("GET", f"/users/{user}").content["servers"].values()
    return sum(bool(each["ready"]) for each in servers), sum(each["pending"] == "spawn" for each in servers)


def _until(done: Callable[[], bool], hub: Any) -> None:
    end = time.monotonic() + _LIMIT_S
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"Not within {_LIMIT_S:g} s: {hub.log()}")
        time.sleep(1)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _http_server() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
