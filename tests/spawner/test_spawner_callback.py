"""Permissions of a server's token at the hub: report its port and activity, request time, nothing else."""

import json
import socket
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gipfel_spawner import EDFSpawner

ROUTES = ("/gipfel/server", "/gipfel/server/activity", "/gipfel/server/extend")


def until(done: Any, limit: float, hub: Any) -> Any:
    end = time.monotonic() + limit
    while not (result := done()):
        assert time.monotonic() < end, hub.log()
        time.sleep(0.1)
    return result


def token_of(hub: Any, user: str) -> str:
    path: Path = hub.user_home(user) / "environment.json"
    until(lambda: path.exists() and path.read_text().endswith("}"), 20, hub)
    return str(json.loads(path.read_text())["JUPYTERHUB_API_TOKEN"])


def start(hub: Any, user: str, behaviour: str = "wait") -> str:
    hub.call("POST", f"/users/{user}")
    (hub.user_home(user) / "behaviour").write_text(behaviour)
    assert hub.call("POST", f"/users/{user}/server", {}).status in {201, 202}, hub.log()
    return token_of(hub, user)


@pytest.fixture(scope="module")
def waiting(hub: Any) -> Any:
    """The token of a server that has not given its port yet."""
    yield start(hub, "vera")
    hub.call("DELETE", "/users/vera/server")
    until(lambda: hub.server("vera") == {}, 30, hub)


def names_of_a_spawner() -> list[str]:
    return sorted(
        {*dir(EDFSpawner), *EDFSpawner.class_trait_names(), "__dict__", "_port_taken", "user"} - {"port"}
    )


def untouched(hub: Any) -> bool:
    return bool(hub.server("vera").get("pending") == "spawn")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(names_of_a_spawner()) | st.text(max_size=20),
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=20)
    | st.lists(st.integers(), max_size=3),
    with_port=st.booleans(),
)
def test_no_attribute_of_the_spawner_can_be_set(
    hub: Any, waiting: str, name: str, value: Any, with_port: bool
) -> None:
    content = ({"port": 8888} if with_port else {}) | {name: value}
    if set(content) == {"port"}:
        return
    assert hub.call("POST", "/gipfel/server", content, token=waiting).status == 400


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=900) | st.text(max_size=200).map(lambda text: json.dumps(text).encode()))
def test_no_body_but_a_port_is_taken(hub: Any, waiting: str, raw: bytes) -> None:
    for route in ROUTES:
        assert hub.call("POST", route, token=waiting, raw=raw).status == 400


def test_every_attribute_was_refused_and_the_start_goes_on(hub: Any, waiting: str) -> None:
    for name in names_of_a_spawner():
        assert hub.call("POST", "/gipfel/server", {"port": 8888, name: 8888}, token=waiting).status == 400, (
            name
        )
    assert untouched(hub)


def test_the_tokens_of_others_and_of_earlier_starts_are_refused(hub: Any, waiting: str) -> None:
    hub.call("POST", "/users/walt")
    earlier = start(hub, "walt", "")
    until(lambda: hub.ready("walt"), 20, hub)
    hub.call("DELETE", "/users/walt/server")
    until(lambda: hub.server("walt") == {}, 20, hub)
    own = hub.call("POST", "/users/vera/tokens", {}).content["token"]
    other = hub.call("POST", "/users/walt/tokens", {}).content["token"]
    bodies = {ROUTES[0]: {"port": 8888}, ROUTES[1]: {"idle_s": 1}, ROUTES[2]: {"extend": True}}
    for token in (earlier, own, other, hub.token, "wrong", ""):
        for route, body in bodies.items():
            assert hub.call("POST", route, body, token=token).status == 403, (route, token)
    assert untouched(hub)


def test_the_stock_route_and_its_attributes_are_gone(hub: Any, waiting: str) -> None:
    assert hub.call("POST", "/batchspawner", {"port": 8888}, token=waiting).status == 404
    assert untouched(hub)


def test_a_hub_with_the_stock_spawner_keeps_its_route(new_hub: Any) -> None:
    hub = new_hub("c.JupyterHub.spawner_class = 'batchspawner.SlurmSpawner'")
    hub.call("POST", "/users/stock")
    token = hub.call("POST", "/users/stock/tokens", {}).content["token"]
    answer = hub.call("POST", "/batchspawner", {}, token=token)
    assert (answer.status, answer.content["message"]) == (200, "BatchSpawner data configured")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "how", ["Content-Length: 1000000000", "Content-Length: 1001", "Transfer-Encoding: chunked"]
)
def test_a_long_body_is_refused_before_it_is_read(hub: Any, waiting: str, route: str, how: str) -> None:
    address = urlsplit(hub.hub)
    with socket.create_connection((address.hostname or "", address.port or 0), 10) as connection:
        head = f"POST /hub/api{route} HTTP/1.1\r\nHost: x\r\nAuthorization: token {waiting}\r\n{how}\r\n\r\n"
        connection.sendall(head.encode())
        if "chunked" in how:
            connection.sendall(b"3e9\r\n" + b"x" * 1001 + b"\r\n")
        # Nothing of the body was sent, or no end of it, and the answer is there.
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_a_port_is_taken_once(hub: Any) -> None:
    token = start(hub, "xena", "silent")
    until(lambda: hub.server("xena").get("pending") == "spawn", 20, hub)
    assert hub.call("POST", "/gipfel/server", {"port": 40_000}, token=token).status == 200
    for port in (40_000, 40_001):
        assert hub.call("POST", "/gipfel/server", {"port": port}, token=token).status == 403
    hub.call("DELETE", "/users/xena/server")
    until(lambda: hub.server("xena") == {}, 30, hub)


def test_two_servers_of_a_user_have_a_token_and_a_port_each(hub: Any) -> None:
    first = start(hub, "yara", "")
    until(lambda: hub.ready("yara"), 20, hub)
    (hub.user_home("yara") / "environment.json").unlink()
    (hub.user_home("yara") / "behaviour").write_text("wait")
    hub.call("POST", "/users/yara/servers/two", {})
    second = token_of(hub, "yara")
    assert first != second
    assert hub.call("POST", "/gipfel/server", {"port": 40_000}, token=first).status == 403
    (hub.user_home("yara") / "behaviour").unlink()

    def both() -> bool:
        servers = hub.call("GET", "/users/yara").content["servers"]
        return set(servers) == {"", "two"} and all(each["ready"] for each in servers.values())

    until(both, 20, hub)
    hub.call("DELETE", "/users/yara/server")
    hub.call("DELETE", "/users/yara/servers/two")


def test_a_port_outside_the_sites_range_is_refused(new_hub: Any) -> None:
    hub = new_hub("c.EDFSpawner.server_ports = '8400-8499'")
    token = start(hub, "zoe", "silent")
    environment = json.loads((hub.user_home("zoe") / "environment.json").read_text())
    assert environment["GIPFEL_SERVER_PORTS"] == "8400-8499"
    for port in (8399, 8500, 65535):
        answer = hub.call("POST", "/gipfel/server", {"port": port}, token=token)
        assert (answer.status, answer.content["message"]) == (400, "The port must be one of 8400-8499.")
    assert hub.call("POST", "/gipfel/server", {"port": 8400}, token=token).status == 200
    hub.call("DELETE", "/users/zoe/server")


@pytest.mark.parametrize("ports", ["80-90", "many", "8499-8400"])
def test_a_range_that_is_none_stops_the_hub_at_its_start(ports: str) -> None:
    with pytest.raises(Exception, match="server_ports"):
        EDFSpawner(server_ports=ports)


@pytest.fixture(scope="module")
def running(hub: Any) -> Any:
    """The token of a server that runs."""
    token = start(hub, "ulla", "")
    until(lambda: hub.ready("ulla"), 20, hub)
    yield token
    hub.call("DELETE", "/users/ulla/server")
    until(lambda: hub.server("ulla") == {}, 30, hub)


class TestReports:
    """Reports of a running server on its use."""

    def test_a_report_is_answered_with_the_end(self, hub: Any, running: str) -> None:
        ends = int(time.time()) + 3600
        answer = hub.call("POST", ROUTES[1], {"idle_s": 5, "ends": ends}, token=running)
        assert (answer.status, answer.content["ends"], answer.content["extend_s"]) == (200, ends, 0)

    @pytest.mark.parametrize(
        "content",
        [
            {},
            {"idle_s": -1},
            {"idle_s": True},
            {"idle_s": "5"},
            {"idle_s": 1.5},
            {"idle_s": 1, "busy_with": "x"},
            {"idle_s": 1, "busy_with": ["x"] * 7},
            {"idle_s": 1, "busy_with": ["x" * 61]},
            {"idle_s": 1, "busy_with": ["a\nb"]},
            {"idle_s": 1, "ends": 10**12},
            {"idle_s": 1, "cull_due": False},
            {"idle_s": 1, "user": "root"},
        ],
    )
    def test_a_report_holds_nothing_else(self, hub: Any, running: str, content: dict[str, Any]) -> None:
        assert hub.call("POST", ROUTES[1], content, token=running).status == 400

    def test_words_of_a_user_are_escaped_where_an_administrator_reads_them(
        self, hub: Any, running: str
    ) -> None:
        word = f"<script>{uuid.uuid4()}</script>"
        assert hub.call("POST", ROUTES[1], {"idle_s": 0, "busy_with": [word]}, token=running).status == 200
        servers = hub.call("GET", "/gipfel/servers").content["servers"]
        assert [each["busy_with"] for each in servers if each["user"] == "ulla"] == [[word]]

    def test_time_is_extended_only_where_the_site_says_so(self, hub: Any, running: str) -> None:
        for wish in (False, 1, "true", None):
            answer = hub.call("POST", ROUTES[2], {"extend": wish}, token=running)
            assert (answer.status, "Give" in answer.content["message"]) == (400, True), wish
        answer = hub.call("POST", ROUTES[2], {"extend": True}, token=running)
        assert (answer.status, answer.content["message"]) == (
            409,
            "This server's time can't be extended. Save your work before it ends.",
        )
