"""A hub that restarts neither cancels nor loses a job."""

import json
import sqlite3
import time
import urllib.request
from typing import Any

import pytest

from gipfel_cluster.process.tree import Process


def until(done: Any, limit: float, hub: Any) -> Any:
    end = time.monotonic() + limit
    while not (result := done()):
        assert time.monotonic() < end, hub.log()
        time.sleep(0.1)
    return result


def start(hub: Any, user: str, behaviour: str = "") -> Process:
    hub.call("POST", f"/users/{user}")
    (hub.user_home(user) / "behaviour").write_text(behaviour)
    hub.call("POST", f"/users/{user}/server", {})
    job = until(lambda: hub.job(user), 20, hub)
    environment = hub.user_home(user) / "environment.json"
    until(lambda: environment.exists() and environment.read_text().endswith("}"), 20, hub)
    return Process.model_validate_json((hub.folder / "state/jobs" / job / "supervisor.json").read_text())


@pytest.mark.parametrize("hard", [False, True])
def test_a_running_server_is_taken_up(new_hub: Any, hard: bool) -> None:
    hub = new_hub()
    keeper = start(hub, "ada")
    until(lambda: hub.ready("ada"), 30, hub)
    job, url = hub.job("ada"), hub.server("ada")["url"]
    hub.end(hard=hard)
    assert keeper.alive
    hub.start()
    until(lambda: hub.ready("ada"), 30, hub)
    assert keeper.alive
    assert (hub.job("ada"), hub.server("ada")["url"]) == (job, url)
    hub.call("DELETE", "/users/ada/server")
    until(lambda: not keeper.alive, 20, hub)


@pytest.mark.parametrize("hard", [False, True])
def test_a_starting_server_is_awaited(new_hub: Any, hard: bool) -> None:
    hub = new_hub("c.JupyterHub.init_spawners_timeout = 1")
    keeper = start(hub, "ben", "wait")
    job = hub.job("ben")
    hub.end(hard=hard)
    assert keeper.alive
    hub.start()
    time.sleep(2)
    assert keeper.alive
    assert hub.server("ben")["pending"] == "spawn"
    (hub.user_home("ben") / "behaviour").unlink()
    until(lambda: hub.ready("ben"), 30, hub)
    assert hub.job("ben") == job
    token = json.loads((hub.user_home("ben") / "environment.json").read_text())["JUPYTERHUB_API_TOKEN"]
    assert hub.call("POST", "/gipfel/server", {"port": 9999}, token=token).status == 403
    request = urllib.request.Request(f"{hub.public}/user/ben/", headers={"Authorization": f"token {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.read() == b"hello from ben"
    hub.call("DELETE", "/users/ben/server")
    until(lambda: not keeper.alive, 20, hub)


def test_a_job_that_ended_meanwhile_is_cleaned_up(new_hub: Any) -> None:
    hub = new_hub("c.JupyterHub.init_spawners_timeout = 1")
    keeper = start(hub, "cora", "wait")
    hub.end()
    keeper.signal(15)
    until(lambda: not keeper.alive, 15, hub)
    hub.start()
    until(lambda: hub.server("cora") == {}, 20, hub)
    hub.call("DELETE", "/users/cora/server")


def test_a_job_that_ends_while_it_is_awaited_again_is_cleaned_up(new_hub: Any) -> None:
    hub = new_hub("c.JupyterHub.init_spawners_timeout = 1")
    keeper = start(hub, "dirk", "wait")
    hub.end()
    hub.start()
    assert keeper.alive
    keeper.signal(15)
    until(lambda: hub.server("dirk") == {}, 30, hub)
    # The user can start again.
    hub.call("POST", "/users/dirk/server", {})
    (hub.user_home("dirk") / "behaviour").unlink()
    until(lambda: hub.ready("dirk"), 30, hub)
    hub.call("DELETE", "/users/dirk/server")


def test_a_port_that_was_given_just_before_a_crash_is_kept(new_hub: Any) -> None:
    hub = new_hub("c.JupyterHub.init_spawners_timeout = 1")
    keeper = start(hub, "fred")
    until(lambda: hub.ready("fred"), 30, hub)
    hub.end(hard=True)
    # What the database holds between the callback and the end of the start.
    with sqlite3.connect(hub.folder / "hub.sqlite") as database:
        database.execute("UPDATE servers SET ip = '', port = 0")
    hub.start()
    until(lambda: hub.ready("fred"), 30, hub)
    assert keeper.alive
    token = json.loads((hub.user_home("fred") / "environment.json").read_text())["JUPYTERHUB_API_TOKEN"]
    request = urllib.request.Request(f"{hub.public}/user/fred/", headers={"Authorization": f"token {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.read() == b"hello from fred"
    hub.call("DELETE", "/users/fred/server")
    until(lambda: not keeper.alive, 20, hub)


def test_a_start_can_be_stopped_after_a_restart(new_hub: Any) -> None:
    hub = new_hub("c.JupyterHub.init_spawners_timeout = 1")
    keeper = start(hub, "emma", "wait")
    hub.end()
    hub.start()
    until(lambda: hub.server("emma").get("pending") == "spawn", 10, hub)
    assert hub.call("DELETE", "/users/emma/server").status in {202, 204}
    until(lambda: not keeper.alive, 20, hub)
    until(lambda: hub.server("emma") == {}, 10, hub)
    (hub.user_home("emma") / "behaviour").unlink()
    assert hub.call("POST", "/users/emma/server", {}).status in {201, 202}
    until(lambda: hub.ready("emma"), 30, hub)
    hub.call("DELETE", "/users/emma/server")
