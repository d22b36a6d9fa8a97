"""Shipped blueprints of programs that can't be installed here, with programs that speak their HTTP instead.

Each stand-in takes the options of the program's documentation, refuses others, and answers the paths that it
documents. What is shown is the blueprint: options, readiness, allowed paths, and parts that find each other.
"""

import http.client
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_STAND_IN = """#!PYTHON
import argparse, http.server, json, os, socketserver, sys, urllib.request
name = os.path.basename(sys.argv[0])
parser = argparse.ArgumentParser()
arguments = {
    "vllm": ("serve", "model", "--uds", "--root-path", "--tensor-parallel-size", "--pipeline-parallel-size",
             "--distributed-executor-backend", "--nnodes", "--node-rank", "--master-addr", "--master-port"),
    "ollama": ("serve",),
    "open-webui": ("serve", "--host", "--port"),
    "ray": ("start", "--temp-dir", "--node-ip-address", "--include-dashboard", "--dashboard-host",
            "--dashboard-port", "--num-cpus", "--num-gpus"),
}[name]
for each in arguments:
    parser.add_argument(each)
if name == "ray":
    for each in ("--head", "--block", "--disable-usage-stats"):
        parser.add_argument(each, action="store_true", required=True)
options = parser.parse_args()

def answer(path):
    if name == "vllm":
        assert (options.nnodes, options.node_rank, options.pipeline_parallel_size) == ("1", "0", "1")
        models = {"data": [{"id": options.model}]}
        return {"/v1/models": models, "/health": {}, "/pause": {"paused": True}}.get(path)
    if name == "ollama":
        models = sorted(os.listdir(os.environ["OLLAMA_MODELS"]))
        return {"/api/version": {"version": "0"}, "/api/tags": {"models": models}}.get(path)
    if name == "ray":
        found = os.stat(options.temp_dir)
        files = [options.temp_dir, oct(found.st_mode & 0o777), found.st_uid]
        return {"/api/version": {"ray_version": "0"}, "/api/jobs/": [], "/files": files}.get(path)
    if path == "/health":
        return {"status": True}
    if path == "/api/models":
        return json.load(urllib.request.urlopen(os.environ["OLLAMA_BASE_URL"] + "/api/tags"))
    found = {"login": os.environ["WEBUI_AUTH"], "data": os.environ["DATA_DIR"]}
    return found if path == "/api/config" else None

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        content = json.dumps(answer(self.path)).encode()
        self.send_response(404 if content == b"null" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def address_string(self):
        return "client"

if name == "vllm":
    server = socketserver.ThreadingUnixStreamServer(options.uds, Handler)
else:
    port = os.environ["OLLAMA_HOST"].partition(":")[2] if name == "ollama" else None
    port = port or getattr(options, "dashboard_port", None) or options.port
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
server.serve_forever()
"""


class Services:
    """The command of one user, whose PATH has the stand-ins."""

    def __init__(self, home: Path) -> None:
        self.home = home
        programs = home / "bin"
        programs.mkdir()
        for name in ("vllm", "ollama", "open-webui", "ray"):
            (programs / name).write_text(_STAND_IN.replace("PYTHON", sys.executable))
            (programs / name).chmod(0o755)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GIPFEL_", "SLURM_"))}
        self._environment = {**kept, "HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}"}

    def up(self, name: str, *words: str) -> str:
        """Start a service on this machine, and return its address."""
        url = self.run("up", name, *words, "--here")
        self._access = url, self.run("token", name)
        return url

    def run(self, *words: str) -> str:
        argv = (sys.executable, "-m", "gipfel_extension.cli", "service", *words)
        done = subprocess.run(
            argv,
            env=self._environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def get(self, path: str) -> tuple[int, Any]:
        """Return status and content of a path of the last started service, through its front door."""
        url, token = self._access
        request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, None


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    found = Services(tmp_path)
    yield found
    for name in ("vllm", "open-webui", "ray"):
        if (tmp_path / ".gipfel/services" / name).exists():
            found.run("down", name)


def test_vllm_shows_its_api_and_nothing_that_controls_it(services: Services) -> None:
    services.up("vllm", "-p", "model", "tiny")
    assert services.get("v1/models") == (200, {"data": [{"id": "tiny"}]})
    for path in ("pause", "", "v1/../pause", "v1/%2e%2e/pause", "//pause", "v1%2f..%2fpause"):
        assert services.get(path)[0] in {400, 404}, path


def test_open_webui_finds_the_models_of_ollama_in_a_network_of_its_own(services: Services) -> None:
    (services.home / "models/tiny").mkdir(parents=True)
    url = services.up("open-webui", "-p", "models", "~/models")
    assert services.get("api/models") == (200, {"models": ["tiny"]})
    storage = services.home / ".gipfel/services/open-webui/storage"
    assert services.get("api/config") == (200, {"login": "False", "data": str(storage)})
    # Neither part is reachable on this machine; the front door asks for its token.
    for port in (8080, 8101):
        with pytest.raises(OSError, match="refused"):
            http.client.HTTPConnection("127.0.0.1", port, timeout=5).request("GET", "/")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}api/models", timeout=10)
    assert refused.value.code == 401


def test_ray_starts_with_its_dashboard_behind_the_front_door(services: Services) -> None:
    services.up("ray", "-p", "cpus", "2")
    assert services.get("api/jobs/") == (200, [])
    # Ray's own choice, /tmp/ray, belongs to all users of the node.
    status, (files, mode, owner) = services.get("files")
    assert (status, mode, owner) == (200, "0o700", os.getuid())
    services.run("down", "ray")
    assert not Path(files).parent.exists()
