"""``make up``: its recipe twice with the same state, and on a port in use."""

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hub_process import end_proxy, free_port, proxy_folder
from hub_user import HubUser
from kept_runtime import runtime_for_tests
from one_machine import wait_until

_REPOSITORY = Path(__file__).resolve().parents[2]
_FIRST_START_S = 180.0
_SECOND_START_S = 15.0
_END_LIMIT_S = 30.0
_SERVER_LIMIT_S = 180.0


class MakeUp:
    """One ``make up`` after the other, on the same state and port."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.password = secrets.token_urlsafe(18)
        self.api_token = secrets.token_hex(32)
        self.output = state / "output"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run the recipe of ``make up``; what it installs is there already."""
        proxy_folder()
        environment = {
            **os.environ,
            "GIPFEL_STATE": str(self.state),
            "GIPFEL_PORT": str(self.port),
            "GIPFEL_PASSWORD": self.password,
            "GIPFEL_API_TOKEN": self.api_token,
        }
        argv = ["make", "--silent", "--old-file=install", "up", f"RUNTIME={runtime_for_tests()}"]
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                cwd=_REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def text(self) -> str:
        """Return what it has printed so far."""
        return self.output.read_text(errors="replace")

    def call(self, method: str, path: str) -> httpx.Response:
        """Ask the hub as the service of ``GIPFEL_API_TOKEN``."""
        headers = {"Authorization": f"token {self.api_token}"}
        url = f"{self.url}/hub/api{path}"
        body = {"json": {}} if method == "POST" else {}
        return httpx.request(method, url, headers=headers, timeout=60, trust_env=False, **body)

    def answers(self) -> bool:
        """Return whether the hub's API does."""
        assert self.process
        assert self.process.poll() is None, self.text()
        try:
            return self.call("GET", "/users").status_code == 200
        except httpx.TransportError:
            return False

    def interrupt(self) -> None:
        """Press Ctrl-C: every process of the terminal gets the signal."""
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(5)
                raise
            finally:
                end_proxy(self.state)


@pytest.fixture
def make_up(own_state: Path) -> Iterator[MakeUp]:
    """A ``make up`` that is ended with all processes that it started."""
    given = MakeUp(own_state)
    try:
        yield given
    finally:
        given.interrupt()


def test_a_second_start_is_quick_and_finds_the_servers_of_the_first(make_up: MakeUp) -> None:
    make_up.state.chmod(0o755)
    make_up.start()
    assert wait_until(make_up.answers, _FIRST_START_S), make_up.text()
    assert make_up.url in make_up.text()
    own = (make_up.state, make_up.state / "jupyterhub.sqlite", make_up.state / "password")
    assert [path.stat().st_mode & 0o077 for path in own if path.exists()] == [0, 0]
    user = HubUser.login(make_up.url, "ada", make_up.password)

    started = make_up.call("POST", "/users/ada/server")
    assert started.status_code in {201, 202}, started.text
    user.progress()
    assert wait_until(lambda: bool((user.server() or {}).get("ready")), _SERVER_LIMIT_S), make_up.text()
    assert "jupyter-config-data" in user.request("lab").text

    make_up.interrupt()
    assert "Traceback" not in make_up.text()
    with socket.create_server(("127.0.0.1", make_up.port)):
        pass

    before = time.monotonic()
    make_up.start()
    try:
        assert wait_until(make_up.answers, _SECOND_START_S), make_up.text()
        print(f"second start: {time.monotonic() - before:.1f} s")
        assert (user.server() or {}).get("ready")
        assert wait_until(lambda: user.request("lab").status_code == 200, 10)
    finally:
        user.close()


def test_a_port_in_use_is_one_line(make_up: MakeUp) -> None:
    with socket.create_server(("127.0.0.1", make_up.port)):
        make_up.start()
        assert make_up.process
        assert make_up.process.wait(_FIRST_START_S) != 0
    said = make_up.text()
    assert "Traceback" not in said
    assert any(f"{make_up.port}" in line and "GIPFEL_PORT" in line for line in said.splitlines()), said
