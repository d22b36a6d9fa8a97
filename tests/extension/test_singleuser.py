"""The single-user server tells the hub its port."""

import http.server
import json
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_server.gateway.gateway_client import GatewayClient

from gipfel_extension.singleuser import HeldSocketServerApp, PrivateKernelSpecs, report_port


class Hub(http.server.ThreadingHTTPServer):
    def __init__(self, answers: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.answers = answers
        self.heard: list[tuple[str, str | None, dict[str, int]]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "JUPYTERHUB_API_URL": f"http://127.0.0.1:{self.server_port}/hub/api",
            "JUPYTERHUB_API_TOKEN": "t0",
        }


class Answer(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.heard.append((self.path, self.headers["Authorization"], body))
        self.send_response(self.server.answers.pop(0))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub([200])
    yield server
    server.shutdown()
    server.server_close()


def test_the_hub_hears_the_port_and_the_servers_own_token(hub):
    report_port(40123, hub.environment)
    assert hub.heard == [("/hub/api/gipfel/server", "token t0", {"port": 40123})]


def test_a_hub_that_restarts_is_asked_again(hub):
    hub.answers = [503, 200]
    report_port(40123, hub.environment)
    assert len(hub.heard) == 2


def test_a_proxy_of_the_environment_never_sees_the_token(hub, monkeypatch):
    proxy = Hub([200])
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    report_port(40123, hub.environment)
    assert (len(hub.heard), len(proxy.heard)) == (1, 0)
    proxy.shutdown()
    proxy.server_close()


def test_a_refusal_is_final(hub):
    hub.answers = [403, 200]
    with pytest.raises(urllib.error.HTTPError):
        report_port(40123, hub.environment)
    assert len(hub.heard) == 1


def test_a_server_that_names_no_kernelspecs_gets_private_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    app = HeldSocketServerApp()
    app.init_configurables()
    try:
        assert isinstance(app.kernel_spec_manager, PrivateKernelSpecs)
    finally:
        GatewayClient.clear_instance()
