"""The real notebook server under a real hub: its ports, its reports, and its end."""

import json
import shutil
import socket
import sqlite3
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import websocket

from gipfel_cluster.process.tree import Process

REAL = (f"c.EDFSpawner.python = {sys.executable!r}", "c.Spawner.default_url = '/lab'")
QUICK = "c.Spawner.args = ['--GipfelExtension.report_interval=0.5', '--GipfelExtension.orphan_grace=3']"
FIRST_PORT = 28400


def until(done: Any, limit: float, hub: Any) -> Any:
    end = time.monotonic() + limit
    while not (result := done()):
        assert time.monotonic() < end, hub.log()
        time.sleep(0.1)
    return result


def servers(hub: Any, user: str) -> dict[str, Any]:
    content: dict[str, Any] = hub.call("GET", f"/users/{user}").content["servers"]
    return content


def keeper(hub: Any, job: str) -> Process:
    return Process.model_validate_json((hub.folder / "state/jobs" / job / "supervisor.json").read_text())


def log_of(hub: Any, user: str, job: str) -> str:
    return str((hub.user_home(user) / ".gipfel/logs" / f"server-{job}.log").read_text())


def free_pair() -> int:
    """Return the first of two consecutive free ports."""
    for first in range(FIRST_PORT, FIRST_PORT + 500, 2):
        try:
            for port in (first, first + 1):
                socket.create_server(("", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def ask(hub: Any, user: str, token: str, path: str, server: str = "", content: Any = None) -> Any:
    request = urllib.request.Request(
        f"{hub.public}/user/{user}/{server + '/' if server else ''}{path}",
        data=None if content is None else json.dumps(content).encode(),
        headers={"Authorization": f"token {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read() or b"null")


def own_token(hub: Any, user: str) -> str:
    return str(hub.call("POST", f"/users/{user}/tokens", {}).content["token"])


def test_two_servers_of_a_user_share_a_range_and_the_third_says_that_it_is_full(new_hub: Any) -> None:
    first = free_pair()
    hub = new_hub(*REAL, f"c.EDFSpawner.server_ports = '{first}-{first + 1}'")
    hub.call("POST", "/users/ada")
    for name in ("one", "two"):
        hub.call("POST", f"/users/ada/servers/{name}", {})
    until(lambda: all(servers(hub, "ada").get(name, {}).get("ready") for name in ("one", "two")), 60, hub)
    ports = {state["state"]["port"] for state in servers(hub, "ada").values()}
    assert ports == {first, first + 1}
    token = own_token(hub, "ada")
    assert all(ask(hub, "ada", token, "api/status", name)["kernels"] == 0 for name in ("one", "two"))
    hub.call("POST", "/users/ada/servers/three", {})
    until(lambda: "three" not in servers(hub, "ada"), 60, hub)
    lines = [json.loads(line) for line in (hub.folder / "state/audit.jsonl").read_text().splitlines()]
    (failure,) = [line for line in lines if line["event"] == "failure"]
    assert f"All ports {first}-{first + 1} of {socket.gethostname()} are in use." in failure["reason"]
    for name in ("one", "two"):
        hub.call("DELETE", f"/users/ada/servers/{name}")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="This machine has no IPv6.")
def test_a_hub_and_nodes_of_ipv6_find_each_other(hub: Any, proxy: str, tmp_path: Path) -> None:
    (tmp_path / "ipv6_spawner.py").write_text(
        "from gipfel_cluster.scheduler.local import LocalScheduler\n"
        "from gipfel_spawner import EDFSpawner\n"
        "async def address(self, node):\n"
        "    return '::1'\n"
        "LocalScheduler.address = address\n"
        "class SixSpawner(EDFSpawner):\n"
        "    def get_env(self):\n"
        "        self.ip = '::1'\n"
        "        return super().get_env()\n"
    )
    more = (
        *REAL,
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})",
        "from ipv6_spawner import SixSpawner",
        "c.JupyterHub.spawner_class = SixSpawner",
        "c.JupyterHub.hub_ip = '::1'",
    )
    six = type(hub)(tmp_path, proxy, more)
    six.hub = six.hub.replace("127.0.0.1", "[::1]")
    six.start()
    try:
        _reach_by_ipv6(six)
    finally:
        six.call("DELETE", "/users/sina/server")
        until(lambda: servers(six, "sina") == {}, 30, six)
        six.end()


def _reach_by_ipv6(hub: Any) -> None:
    hub.call("POST", "/users/sina")
    hub.call("POST", "/users/sina/server", {})
    until(lambda: servers(hub, "sina").get("", {}).get("ready"), 60, hub)
    token = own_token(hub, "sina")
    assert ask(hub, "sina", token, "api/status")["kernels"] == 0
    port = servers(hub, "sina")[""]["state"]["port"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 2)


def test_a_server_that_a_restored_database_does_not_know_ends_itself_with_a_line(new_hub: Any) -> None:
    hub = new_hub(*REAL, QUICK)
    hub.call("POST", "/users/otto")
    hub.end()
    shutil.copy(hub.folder / "hub.sqlite", hub.folder / "backup.sqlite")
    hub.start()
    hub.call("POST", "/users/otto/server", {})
    until(lambda: servers(hub, "otto").get("", {}).get("ready"), 60, hub)
    job = servers(hub, "otto")[""]["state"]["job_id"]
    process = keeper(hub, job)
    hub.end(hard=True)
    (hub.folder / "hub.sqlite").unlink()
    shutil.copy(hub.folder / "backup.sqlite", hub.folder / "hub.sqlite")
    # A hub that is down ends no server, even for longer than a server tolerates refusals.
    time.sleep(5)
    assert process.alive
    hub.start()
    assert servers(hub, "otto") == {}
    until(lambda: not process.alive, 30, hub)
    assert "The hub has refused this server's token for 3 s, so the server stops." in log_of(hub, "otto", job)


def test_a_database_that_believes_in_a_server_that_is_gone_is_put_right(new_hub: Any) -> None:
    hub = new_hub(*REAL, QUICK)
    hub.call("POST", "/users/pia")
    hub.call("POST", "/users/pia/server", {})
    until(lambda: servers(hub, "pia").get("", {}).get("ready"), 60, hub)
    job = servers(hub, "pia")[""]["state"]["job_id"]
    with (
        sqlite3.connect(hub.folder / "hub.sqlite") as live,
        sqlite3.connect(hub.folder / "old.sqlite") as copy,
    ):
        live.backup(copy)
    hub.call("DELETE", "/users/pia/server")
    until(lambda: servers(hub, "pia") == {}, 30, hub)
    assert not keeper(hub, job).alive
    hub.end()
    shutil.copy(hub.folder / "old.sqlite", hub.folder / "hub.sqlite")
    hub.start()
    until(lambda: servers(hub, "pia") == {}, 30, hub)
    hub.call("POST", "/users/pia/server", {})
    until(lambda: servers(hub, "pia").get("", {}).get("ready"), 60, hub)
    assert servers(hub, "pia")[""]["state"]["job_id"] != job
    hub.call("DELETE", "/users/pia/server")


def test_an_idle_server_is_warned_and_culled_a_busy_one_is_not(new_hub: Any) -> None:
    service = {
        "name": "culling",
        "command": [sys.executable, "-m", "gipfel_spawner.culling", "--every", "0.5"],
    }
    scopes = ["list:users", "read:servers", "delete:servers"]
    hub = new_hub(
        *REAL,
        QUICK,
        "c.EDFSpawner.idle_limit = 8",
        "c.EDFSpawner.idle_warning = 4",
        "c.EDFSpawner.default_time = '2:00:00'",
        f"c.JupyterHub.services += [{service!r}]",
        f"c.JupyterHub.load_roles += [{{'name': 'culling', 'services': ['culling'], 'scopes': {scopes!r}}}]",
    )
    hub.call("POST", "/users/rolf")
    hub.call("POST", "/users/rolf/server", {"user_options": {"gpus": 2}})
    until(lambda: servers(hub, "rolf").get("", {}).get("ready"), 60, hub)
    token = own_token(hub, "rolf")
    kernel = ask(hub, "rolf", token, "api/kernels", content={"name": "python3"})["id"]
    client = websocket.create_connection(
        f"ws{hub.public[4:]}/user/rolf/api/kernels/{kernel}/channels",
        header=[f"Authorization: token {token}"],
        timeout=20,
    )
    header = {"msg_id": "1", "msg_type": "execute_request", "username": "", "session": "1", "version": "5.3"}
    code = "import time; time.sleep(14)"
    content = {
        "code": code,
        "silent": False,
        "store_history": False,
        "user_expressions": {},
        "allow_stdin": False,
    }
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    client.send(json.dumps(message))
    end = time.monotonic() + 11
    while time.monotonic() < end:
        # An open tab polls all the time; that does not count as use.
        leaving = ask(hub, "rolf", token, "gipfel/lifetime")
        assert leaving["idle"] is None
        time.sleep(1)
    (row,) = hub.call("GET", "/gipfel/servers").content["servers"]
    assert row["busy_with"] == ["1 busy kernel"]
    idle = until(lambda: ask(hub, "rolf", token, "gipfel/lifetime")["idle"], 30, hub)
    assert idle["stop_ms"] - idle["since_ms"] >= 8_000
    ask(hub, "rolf", token, "gipfel/lifetime/keep-alive", content={})
    assert ask(hub, "rolf", token, "gipfel/lifetime")["idle"] is None
    until(lambda: servers(hub, "rolf") == {}, 40, hub)
    lines = [json.loads(line) for line in (hub.folder / "state/audit.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "cull"]
    assert 3.9 < lines[1]["gpu_hours_saved"] < 4.0
    client.close()
