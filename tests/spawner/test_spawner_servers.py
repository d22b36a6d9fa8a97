"""The administrators' page, its JSON, culling and the audit log, in a real hub with tiny servers."""

import http.client
import json
import re
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hub_servers import environment, until

from gipfel_cluster.process.tree import Process

_SERVICE = {
    "name": "culling",
    "command": [sys.executable, "-m", "gipfel_spawner.culling", "--every", "0.5"],
}
_SCOPES = ["list:users", "read:servers", "delete:servers"]
LIMITS = ("c.EDFSpawner.idle_limit = 60", "c.EDFSpawner.idle_warning = 10")
CULLING = (
    *LIMITS,
    f"c.JupyterHub.services += [{_SERVICE!r}]",
    f"c.JupyterHub.load_roles += [{{'name': 'culling', 'services': ['culling'], 'scopes': {_SCOPES!r}}}]",
)
PAGES = (
    "import gipfel_spawner",
    "c.JupyterHub.template_paths = [gipfel_spawner.HUB_TEMPLATES]",
    "c.Authenticator.admin_users = {'root'}",
)


def start(hub: Any, user: str, options: dict[str, Any] | None = None, behaviour: str = "") -> str:
    """The token of a server that runs."""
    hub.call("POST", f"/users/{user}")
    (hub.user_home(user) / "behaviour").write_text(behaviour)
    hub.call("POST", f"/users/{user}/server", options or {})
    if behaviour != "die":
        until(lambda: hub.ready(user), 30, hub)
    return environment(hub, user)["JUPYTERHUB_API_TOKEN"]


def stop(hub: Any, *users: str) -> None:
    for user in users:
        hub.call("DELETE", f"/users/{user}/server")
    for user in users:
        until(lambda user=user: hub.server(user) == {}, 30, hub)


def audit(hub: Any, user: str = "") -> list[dict[str, Any]]:
    path: Path = hub.folder / "state/audit.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["user"] == user or not user]


def report(hub: Any, token: str, **content: Any) -> None:
    answer = hub.call("POST", "/gipfel/server/activity", {"idle_s": 0, **content}, token=token)
    assert answer.status == 200, answer


@pytest.fixture(scope="module")
def admin_hub(hub: Any, proxy: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A hub with an administrator and our templates."""
    other = type(hub)(tmp_path_factory.mktemp("admin"), proxy, PAGES)
    other.start()
    yield other
    for user in other.call("GET", "/users").content:
        other.call("DELETE", f"/users/{user['name']}/server")
    other.end()


def test_the_list_says_who_runs_what_where(hub: Any) -> None:
    token = start(hub, "anna", {"user_options": {"gpus": 2, "time": "2:00:00"}})
    ends = int(time.time()) + 7200
    report(hub, token, idle_s=90, ends=ends)
    (row,) = [
        each for each in hub.call("GET", "/gipfel/servers").content["servers"] if each["user"] == "anna"
    ]
    assert (row["server"], row["job_id"], row["gpus"], row["idle_s"]) == ("", hub.job("anna"), 2, 90)
    assert (row["state"], row["cull_due"], row["pending"]) == ("RUNNING", False, False)
    assert row["nodes"]
    assert row["since"].endswith("+00:00")
    assert row["ends"].endswith("+00:00")
    stop(hub, "anna")
    assert not [
        each for each in hub.call("GET", "/gipfel/servers").content["servers"] if each["user"] == "anna"
    ]


def test_a_server_that_starts_is_listed_and_can_be_stopped(hub: Any) -> None:
    hub.call("POST", "/users/bert")
    (hub.user_home("bert") / "behaviour").write_text("wait")
    hub.call("POST", "/users/bert/server", {})
    until(lambda: hub.job("bert"), 20, hub)
    (row,) = [
        each for each in hub.call("GET", "/gipfel/servers").content["servers"] if each["user"] == "bert"
    ]
    assert row["pending"]
    assert hub.call("POST", "/gipfel/servers/stop", {"user": "bert"}).status == 202
    until(lambda: hub.server("bert") == {}, 30, hub)


def test_scopes_decide_who_sees_and_stops_what(hub: Any) -> None:
    start(hub, "carl")
    plain = hub.call("POST", "/users/carl/tokens", {}).content["token"]
    hub.call("POST", "/users/dina")
    other = hub.call("POST", "/users/dina/tokens", {}).content["token"]
    for token in (plain, other, "wrong", ""):
        assert hub.call("GET", "/gipfel/servers", token=token).status == 403
    for token, status in ((other, 404), ("wrong", 403), ("", 403)):
        assert hub.call("POST", "/gipfel/servers/stop", {"user": "carl"}, token=token).status == status
    assert hub.ready("carl")
    # A user may stop their own server with any client.
    assert hub.call("POST", "/gipfel/servers/stop", {"user": "carl"}, token=plain).status == 202
    until(lambda: hub.server("carl") == {}, 30, hub)


@pytest.mark.parametrize(
    "content", [{}, {"user": ""}, {"user": "a\nb"}, {"user": "x", "event": "cull"}, [], {"user": "x" * 5000}]
)
def test_a_stop_names_a_server_and_nothing_else(hub: Any, content: Any) -> None:
    assert hub.call("POST", "/gipfel/servers/stop", content).status == 400


def test_a_server_that_is_used_or_whose_user_was_not_warned_is_not_culled(new_hub: Any) -> None:
    hub = new_hub(*LIMITS)
    token = start(hub, "emil")
    for content in ({}, {"idle_s": 100}, {"idle_s": 59, "warned_s": 30}, {"idle_s": 100, "warned_s": 9}):
        report(hub, token, **content)
        assert hub.call("POST", "/gipfel/servers/stop", {"user": "emil", "idle": True}).status == 409
    assert hub.ready("emil")
    stop(hub, "emil")


def test_culling_stops_what_is_idle_keeps_what_is_used_and_says_what_it_saved(new_hub: Any) -> None:
    hub = new_hub(*CULLING, *PAGES[:2], "c.EDFSpawner.default_time = '4:00:00'")
    idle = start(hub, "fina", {"user_options": {"gpus": 3}})
    used = start(hub, "gero", {"user_options": {"gpus": 4}})
    silent = start(hub, "hugo", {"user_options": {"gpus": 4}})
    assert silent
    report(hub, used, idle_s=0, busy_with=["GPU 93%"], ends=int(time.time()) + 7200)
    report(hub, idle, idle_s=3600, warned_s=600, ends=int(time.time()) + 7200)
    until(lambda: hub.server("fina") == {}, 20, hub)
    (line,) = [each for each in audit(hub, "fina") if each["event"] == "cull"]
    assert (line["by"], line["reason"], line["gpus"]) == ("culling", "idle for 60 min", 3)
    assert line["gpu_hours_saved"] == pytest.approx(6.0, abs=0.1)
    assert hub.call("GET", "/gipfel/servers").content["saved_gpu_hours"] == line["gpu_hours_saved"]
    _, page = hub.browser("fina").get("/hub/user/fina/lab")
    assert f"Job {line['job_id']} was stopped: idle for 60 min." in page
    time.sleep(1.5)
    assert hub.ready("gero")
    assert hub.ready("hugo")
    stop(hub, "gero", "hugo")


def test_a_server_cannot_claim_more_saved_hours_than_it_was_given(new_hub: Any) -> None:
    hub = new_hub(*CULLING)
    token = start(hub, "ivar", {"user_options": {"gpus": 2, "time": "1:00:00"}})
    report(hub, token, idle_s=3600, warned_s=600, ends=10**11)
    until(lambda: hub.server("ivar") == {}, 20, hub)
    (line,) = [each for each in audit(hub, "ivar") if each["event"] == "cull"]
    assert line["gpu_hours_saved"] == 2.0


def test_the_audit_log_tells_a_servers_life_and_no_secret(hub: Any) -> None:
    token = start(hub, "ilse", {"user_options": {"gpus": 1, "nodes": 1}})
    job = hub.job("ilse")
    stop(hub, "ilse")
    first, second = audit(hub, "ilse")
    assert (first["event"], first["job_id"], first["gpus"], first["cluster"]) == ("start", job, 1, "local")
    assert (second["event"], second["job_id"], second["state"]) == ("stop", job, "CANCELLED")
    assert second["nodes"]
    path: Path = hub.folder / "state/audit.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token not in path.read_text()
    assert "JUPYTERHUB" not in path.read_text()


def test_the_audit_log_tells_a_failure_once(hub: Any) -> None:
    token = start(hub, "jana", behaviour="die")
    until(lambda: hub.server("jana") == {}, 20, hub)
    events = until(lambda: [each for each in audit(hub, "jana") if each["event"] == "failure"], 10, hub)
    assert [each["event"] for each in audit(hub, "jana")] == ["start", "failure"]
    assert events[0]["reason"].startswith(f"Job {events[0]['job_id']} ended")
    assert "/none.sqsh" in events[0]["reason"]
    assert token not in json.dumps(events)


def test_the_audit_log_tells_an_end_that_nobody_asked_for(hub: Any) -> None:
    start(hub, "karl")
    keeper = hub.folder / "state/jobs" / hub.job("karl") / "supervisor.json"
    process = Process.model_validate_json(keeper.read_text())
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    server = Process.of(int(children[0]))
    assert server
    server.signal(9)
    until(lambda: hub.server("karl") == {}, 20, hub)
    last = audit(hub, "karl")[-1]
    assert (last["event"], last["state"]) == ("end", "FAILED")


def test_no_audit_log_where_the_site_wants_none(new_hub: Any) -> None:
    hub = new_hub("c.EDFSpawner.audit_log = 'none'")
    start(hub, "lisa")
    stop(hub, "lisa")
    assert not (hub.folder / "state/audit.jsonl").exists()


class TestPage:
    """The administrators' page in a browser."""

    def test_an_administrator_finds_reads_and_stops(self, admin_hub: Any) -> None:
        token = start(admin_hub, "mona", {"user_options": {"gpus": 2}})
        report(admin_hub, token, busy_with=["<b>GPU</b> 9%"], ends=int(time.time()) + 4380)
        browser = admin_hub.browser("root")
        assert 'href="/hub/gipfel/servers"' in browser.get("/hub/home")[1]
        status, page = browser.get("/hub/gipfel/servers")
        assert status == 200
        assert "1 server of 1 user" in " ".join(page.split())
        assert "holds 2 GPUs." in " ".join(page.split())
        assert "&lt;b&gt;GPU&lt;/b&gt; 9%" in page
        assert "<b>GPU" not in page
        assert "1 h 12 min" in page
        form = {"user": "mona", "server": ""}
        status, page = browser.post(f"/hub/gipfel/servers?_xsrf={browser.xsrf()}", form)
        assert status == 200
        until(lambda: admin_hub.server("mona") == {}, 30, admin_hub)
        (line,) = [each for each in audit(admin_hub, "mona") if each["event"] == "stop"]
        assert line["by"] == "root"
        assert "No servers are running." in browser.get("/hub/gipfel/servers")[1]

    def test_a_form_without_the_pages_own_key_stops_nothing(self, admin_hub: Any) -> None:
        start(admin_hub, "nils")
        browser = admin_hub.browser("root")
        browser.get("/hub/gipfel/servers")
        for key in ("", "?_xsrf=", "?_xsrf=MnxhYmM6ZGVm"):
            assert browser.post(f"/hub/gipfel/servers{key}", {"user": "nils", "server": ""})[0] == 403
        assert admin_hub.ready("nils")
        stop(admin_hub, "nils")

    def test_who_is_no_administrator_has_neither_link_nor_page(self, admin_hub: Any) -> None:
        start(admin_hub, "olaf")
        browser = admin_hub.browser("petra")
        assert "gipfel/servers" not in browser.get("/hub/home")[1]
        assert browser.get("/hub/gipfel/servers")[0] == 403
        assert (
            browser.post(f"/hub/gipfel/servers?_xsrf={browser.xsrf()}", {"user": "olaf", "server": ""})[0]
            == 403
        )
        assert admin_hub.ready("olaf")
        stop(admin_hub, "olaf")

    def test_the_page_works_where_the_site_does_not_name_our_templates(self, hub: Any) -> None:
        browser = hub.browser("quirin")
        status, page = browser.get("/hub/gipfel/servers")
        assert status == 403
        assert re.search("403", page)


def test_pages_of_a_service_are_shared_where_each_user_has_a_host(new_hub: Any) -> None:
    hub = new_hub(
        f"c.EDFSpawner.python = {sys.executable!r}",
        *PAGES,
        "c.JupyterHub.load_groups = {'lab': {'users': ['ada', 'cy']}, 'others': {'users': ['cy']}}",
        host="hub.localhost",
    )
    tokens = {}
    for name in ("ada", "ben", "cy"):
        hub.call("POST", f"/users/{name}")
        tokens[name] = hub.call("POST", f"/users/{name}/tokens", {}).content["token"]
    (hub.user_home("ada") / "shown.html").write_text("<h1>Ada's page</h1>")
    options = {"service": "files", "parameters": {"directory": str(hub.user_home("ada"))}}
    assert hub.call("POST", "/users/ada/servers/board", options).status in {201, 202}

    def page(user: str, host: str = f"ada.{hub.host}") -> tuple[int, str]:
        headers = {"Host": host, "Authorization": f"Bearer {tokens.get(user, 'x' * 40)}"}
        connection = http.client.HTTPConnection("127.0.0.1", int(hub.public.rpartition(":")[2]), timeout=30)
        connection.request("GET", "/user/ada/board/shown.html", headers=headers)
        answer = connection.getresponse()
        content = answer.read().decode()
        return answer.status, content if answer.status == 200 else ""

    def share(owner: str, **content: Any) -> Any:
        content = {"service": "board", "kind": "user", "seconds": 3600, **content}
        return hub.call("POST", f"/gipfel/users/{owner}/share", content, token=tokens[owner])

    until(lambda: page("ada")[0] == 200, 60, hub)
    # The page is of the owner's host, and of no other.
    assert page("ada", hub.host)[1] == ""
    assert [page(each)[0] for each in ("ben", "cy", "nobody")] == [403, 403, 403]
    assert [each["name"] for each in share("ada", name="ben").content["shares"]] == ["ben"]
    assert "others" in share("ada", name="others", kind="group").content["problem"]
    given = share("ada", name="lab", kind="group").content
    # A group is shared with as its members.
    assert given["refusal"] == ""
    assert sorted((each["kind"], each["name"]) for each in given["shares"]) == [
        ("user", "ben"),
        ("user", "cy"),
    ]
    # A refusal counts for two seconds in the front door.
    until(lambda: page("ben") == page("cy") == (200, "<h1>Ada's page</h1>"), 20, hub)
    assert "There is no service board" in share("ben", name="cy").content["problem"]
    assert share("ada", name="ben", seconds=0).content["shares"][0]["name"] == "cy"
    assert share("ada", name="lab", kind="group", seconds=0).content["shares"] == []
    until(lambda: page("ben")[0] == page("cy")[0] == 403, 30, hub)
    assert page("ada")[0] == 200
    hub.call("DELETE", "/users/ada/servers/board")
