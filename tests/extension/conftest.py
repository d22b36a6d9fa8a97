"""A real Jupyter server with the extension, in a separate process; databases for the registry."""

import functools
import http.cookiejar
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import websocket
from postgres import postgres_missing, running_postgres
from pydantic import TypeAdapter

from gipfel_extension.server.task_responses import ROUTE_RESPONSES

_TOKEN = "a-token-of-the-tests"
_START_S = 40.0


@dataclass
class JupyterServer:
    """A running server and its folders."""

    process: subprocess.Popen[bytes]
    url: str
    root: Path
    home: Path

    def call(self, path: str, method: str = "GET", body: object = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of a request; with the token unless `Authorization` is given."""
        headers = {"Authorization": f"token {_TOKEN}", **headers}
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {k: v for k, v in headers.items() if v}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                status, content = answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            return error.code, json.loads(text) if text.startswith("{") else text
        # The panel's interfaces are generated from these models.
        if model := ROUTE_RESPONSES.get((method, path.partition("?")[0])):
            TypeAdapter(model).validate_python(content)
        return status, content

    def stream(self, query: str = "window=60", **options: Any) -> websocket.WebSocket:
        """The stream's websocket; with the token unless `header` is given."""
        return self.socket(f"gipfel/saturation/stream?{query}", **options)

    def socket(self, path: str, **options: Any) -> websocket.WebSocket:
        """A websocket; with the token unless `header` is given."""
        options.setdefault("header", [f"Authorization: token {_TOKEN}"])
        return websocket.create_connection(self.url.replace("http", "ws") + path, timeout=20, **options)

    def cookie(self) -> str:
        """Return what a browser sends after the login."""
        jar = http.cookiejar.CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        opener.open(f"{self.url}api/status?token={_TOKEN}", timeout=20).close()
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in jar)

    def recorders(self) -> list[psutil.Process]:
        """The recorder processes below the server."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "gipfel_extension.recorder" in child.cmdline()]

    def wait(self, check: Callable[[], Any], seconds: float = 15.0) -> Any:
        """Return what a check gives as soon as that is true."""
        return wait_for(check, seconds)

    def stop(self) -> None:
        """End it as a terminal or a scheduler does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def wait_for(check: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Return what a check gives as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"nothing within {seconds:g} s"
        time.sleep(0.1)
    return found


def _start(folder: Path, environment: dict[str, str]) -> JupyterServer:
    home, root, runtime = folder / "home", folder / "root", folder / "runtime"
    for each in (home, root, runtime):
        each.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIPFEL_", "JUPYTER"))}
    settings = {
        "HOME": str(home),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_TOKEN": _TOKEN,
        "JUPYTER_PREFER_ENV_PATH": "0",
    }
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--port=0", "--allow-root"]
    command += [f"--ServerApp.root_dir={root}", "--ServerApp.jpserver_extensions={'gipfel_extension': True}"]
    command += ["--GipfelExtension.interval=0.2"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env={**kept, **settings, **environment}, stdout=log, stderr=log)

    def address() -> str | None:
        assert process.poll() is None, (folder / "server.log").read_text()
        found = runtime / f"jpserver-{process.pid}.json"
        try:
            # It is there before it is written whole.
            url = str(json.loads(found.read_text())["url"]).replace("localhost", "127.0.0.1")
        except (FileNotFoundError, ValueError):
            return None
        try:
            urllib.request.urlopen(url + "api", timeout=1).close()
        except OSError:
            return None
        return url

    server = JupyterServer(process, "", root, home)
    try:
        return replace(server, url=wait_for(address, _START_S))
    except BaseException:
        server.stop()
        raise


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., JupyterServer]]:
    """Starts servers with environment variables of a test's choice, and ends them."""
    started: list[JupyterServer] = []

    def start(**environment: str) -> JupyterServer:
        started.append(_start(tmp_path / f"server{len(started)}", environment))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def start_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., JupyterServer]]:
    """Starts servers for all tests of a module, and ends them."""
    started: list[JupyterServer] = []

    def start(**environment: str) -> JupyterServer:
        started.append(_start(tmp_path_factory.mktemp("shared"), environment))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def server(start_shared: Callable[..., JupyterServer]) -> JupyterServer:
    """One server without a job, shared by the tests of a module."""
    return start_shared()


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a real PostgreSQL, shared by the tests of a module."""
    reason = postgres_missing()
    if reason:
        pytest.skip(reason)
    with running_postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of the registry's."""
    from registry_site import empty_database  # noqa: PLC0415 - the registry's own imports

    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/made/registry.sqlite"
    return empty_database(request.getfixturevalue("postgres"))


@pytest.fixture
def run_site(database: str) -> Callable[..., None]:
    """Lets a story happen at a registry's site with settings of a test's choice."""
    from registry_site import run_story  # noqa: PLC0415 - the registry's own imports

    return functools.partial(run_story, database)
