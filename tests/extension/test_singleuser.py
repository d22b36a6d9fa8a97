"""The single-user server reports its port to the hub."""

import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub
from jupyter_server.gateway.gateway_client import GatewayClient

from gipfel_extension.singleuser import BoundSocketServerApp, PrivateKernelSpecs, report_port


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as server:
        yield server


def test_the_hub_hears_the_port_and_the_servers_own_token(hub):
    report_port(40123, hub.environment)
    assert hub.requests == [("/hub/api/gipfel/server", "token t0", {"port": 40123})]


def test_a_hub_that_restarts_is_asked_again(hub):
    hub.statuses = [503]
    report_port(40123, hub.environment)
    assert len(hub.requests) == 2


def test_a_proxy_of_the_environment_never_sees_the_token(hub, monkeypatch):
    proxy = FakeHub()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    report_port(40123, hub.environment)
    assert (len(hub.requests), len(proxy.requests)) == (1, 0)
    proxy.shutdown()
    proxy.server_close()


def test_a_refusal_is_final(hub):
    hub.statuses = [403]
    with pytest.raises(urllib.error.HTTPError):
        report_port(40123, hub.environment)
    assert len(hub.requests) == 1


def test_a_server_that_names_no_kernelspecs_gets_private_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    app = BoundSocketServerApp()
    app.init_configurables()
    try:
        assert isinstance(app.kernel_spec_manager, PrivateKernelSpecs)
    finally:
        GatewayClient.clear_instance()
