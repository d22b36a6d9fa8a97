"""Requests of the form's page to a real hub: permissions, rate limits, and their cost for the cluster."""

import json
import os
import pwd
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BUSY = (
    "normal|normal*|up|1-00:00:00|1|mixed|gpu:gh200:4|gpu:gh200:3(IDX:0-2)|1:00:00|16|65536|\n"
    "normal|normal*|up|1-00:00:00|1|idle|gpu:gh200:4|gpu:gh200:0(IDX:N/A)|1:00:00|16|65536|\n"
)


def ask(
    hub: Any, browser: Any, user: str, what: str, content: Any, *, xsrf: str | None = None, **headers: str
) -> tuple[int, Any]:
    """A question as the page's script puts it: with the browser's cookies and its XSRF token."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    token = browser.xsrf() if xsrf is None else xsrf
    request = urllib.request.Request(
        f"{hub.public}/hub/api/gipfel/users/{user}/{what}",
        data=data,
        headers={"Content-Type": "application/json", "X-XSRFToken": token, **headers},
    )
    try:
        with browser.opener.open(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def logged_in(hub: Any, user: str) -> Any:
    browser = hub.browser(user)
    browser.get("/hub/spawn")
    return browser


def environment(hub: Any, user: str, name: str, text: str) -> Path:
    folder: Path = hub.user_home(user) / ".edf"
    folder.mkdir(exist_ok=True, mode=0o700)
    (folder / f"{name}.toml").write_text(text)
    return folder / f"{name}.toml"


def test_the_page_has_its_script_from_the_hub_and_none_inside(hub: Any) -> None:
    browser = logged_in(hub, "ada")
    page = browser.get("/hub/spawn")[1]
    form = page[page.index('id="gipfel-form"') : page.index("</form>")]
    assert "<script>" not in form
    assert "onclick" not in form
    for name in ("edfcheck.js", "form.js", "security.js", "environment.js", "form.css"):
        assert f"/hub/gipfel/static/{name}?v=" in page
        assert browser.get(f"/hub/gipfel/static/{name}")[0] == 200
    for path in ("../form.py", "..%2fform.py", "%2e%2e/form.py", "none.js", ""):
        assert browser.get(f"/hub/gipfel/static/{path}")[0] in {403, 404}


def test_a_start_on_this_machine_is_now_and_a_field_error_names_its_field(hub: Any) -> None:
    browser = logged_in(hub, "ada")
    assert ask(hub, browser, "ada", "expected-start", {"gpus": 0}) == (200, {"start": "", "text": "now"})
    for content, field in (
        ({"nodes": 2}, "nodes"),
        ({"cpus": 4000}, "cpus"),
        ({"memory": "9000T"}, "memory"),
        ({"partition": "x"}, "partition"),
        ({"account": "x"}, "account"),
        ({"engine": "docker"}, "engine"),
        *(() if find_spec("notebook") else (({"interface": "notebook"}, "interface"),)),
        ({"time": "soon"}, "time"),
        ({"cmd": "sh"}, ""),
    ):
        status, answer = ask(hub, browser, "ada", "expected-start", content)
        assert status == 200
        assert answer["field"] == field
        assert "\n" not in answer["problem"]
    assert not hub.job("ada")


def test_an_environment_is_checked_by_a_process_of_the_user(hub: Any) -> None:
    browser = logged_in(hub, "bea")
    environment(hub, "bea", "broken", 'workdir = "/tmp"\nimage = 3\n')
    environment(hub, "bea", "good", 'workdir = "/tmp"\n[env]\nA = "1"\n')
    status, answer = ask(hub, browser, "bea", "environment", {"edf": "broken"})
    assert (status, answer["valid"], answer["edf"]) == (200, False, None)
    assert (answer["diagnostics"][0]["line"], answer["diagnostics"][0]["key"]) == (2, "image")
    assert answer["diagnostics"][0]["fix"]
    status, answer = ask(hub, browser, "bea", "environment", {"edf": "good"})
    assert answer["edf"]["env"] == {"A": "1"}
    status, answer = ask(hub, browser, "bea", "environment", {"edf": "~/.edf/good.toml"})
    assert answer["valid"]
    # A name is neither an option nor another user's file.
    for edf in ("--help", "../x", "a\nb"):
        assert "problem" in ask(hub, browser, "bea", "environment", {"edf": edf})[1]


def test_an_image_needs_a_runtime_and_pasted_text_is_checked_as_a_file_is(hub: Any) -> None:
    browser = logged_in(hub, "eve")
    image = hub.user_home("eve") / "image"
    (image / "bin").mkdir(parents=True)
    text = f'image = "{image}"\nmounts = ["/tmp/nowhere-at-all:/data"]\n'
    path = environment(hub, "eve", "boxed", text)

    def errors(what: str, content: dict[str, Any]) -> list[tuple[str, int | None]]:
        status, answer = ask(hub, browser, "eve", what, content)
        assert (status, answer["valid"]) == (200, False)
        found = [each for each in answer["diagnostics"] if each["severity"] == "error"]
        assert all(each["fix"] for each in found)
        return [(each["code"], each["line"]) for each in found]

    assert errors("environment", {"edf": "boxed"}) == [("mount-source", 2)]
    assert errors("draft", {"toml": text}) == [("mount-source", 2)]
    text = text.partition("\n")[0] + "\n"
    path.write_text(text)
    # All of it is here, and the hub of this test has nothing to serve notebooks in an image with.
    assert errors("environment", {"edf": "boxed"}) == [("no-runtime", None)]
    assert errors("draft", {"toml": text}) == [("no-runtime", None)]
    status, answer = ask(hub, browser, "eve", "draft", {"name": "later", "toml": text, "save": True})
    assert (status, answer["name"], answer["valid"]) == (200, "later", False)


def test_a_draft_is_saved_once_and_overwritten_only_on_purpose(hub: Any) -> None:
    browser = logged_in(hub, "carl")
    draft = {"name": "mine", "toml": 'workdir = "/tmp"\n', "save": True}
    status, answer = ask(hub, browser, "carl", "draft", draft)
    path = hub.user_home("carl") / ".edf/mine.toml"
    assert (status, answer["saved"], answer["name"]) == (200, str(path), "mine")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    other = {**draft, "toml": 'workdir = "/"\n'}
    assert ask(hub, browser, "carl", "draft", other)[1]["exists"]
    assert path.read_text() == draft["toml"]
    assert ask(hub, browser, "carl", "draft", {**other, "replace": True})[1]["saved"]
    assert path.read_text() == other["toml"]
    assert [each.name for each in path.parent.iterdir()] == ["mine.toml"]
    # What is wrong is not saved, nor through a link that leads elsewhere.
    wrong = {**draft, "name": "wrong", "toml": "image = 3"}
    assert "not saved" in ask(hub, browser, "carl", "draft", wrong)[1]["problem"]
    outside = hub.user_home("carl") / "outside"
    (path.parent / "link.toml").symlink_to(outside)
    assert ask(hub, browser, "carl", "draft", {**draft, "name": "link"})[1]["exists"]
    assert not outside.exists()
    assert not (path.parent / "wrong.toml").exists()


def test_values_become_text_and_a_bad_one_names_its_key(hub: Any) -> None:
    browser = logged_in(hub, "dora")
    values = {
        "workdir": '/a "b"\\c',
        "mounts": ["/tmp:/x", "/tmp:/y"],
        "env": {"A": "ü=1"},
        "writable": False,
    }
    status, answer = ask(hub, browser, "dora", "draft", {"values": values})
    assert status == 200
    assert answer["toml"] == (
        'workdir = "/a \\"b\\"\\\\c"\nwritable = false\nmounts = [\n  "/tmp:/x",\n  "/tmp:/y",\n]\n\n'
        '[env]\nA = "ü=1"\n'
    )
    answer = ask(hub, browser, "dora", "draft", {"values": {"env": {"NOT-ONE": "1"}}})[1]
    assert answer["key"] == "env"
    assert ask(hub, browser, "dora", "draft", {"values": {"cmd": "x"}})[1]["key"] == "cmd"


@pytest.mark.parametrize(
    "content",
    [
        {"name": "../evil", "toml": "", "save": True},
        {"name": ".hidden", "toml": "", "save": True},
        {"name": "a\nb", "toml": ""},
        {"name": "x" * 200, "toml": ""},
        {"toml": "x" * 70_000},
        {"toml": "", "mode": "0777"},
        {"toml": 1},
    ],
)
def test_a_draft_that_is_none_runs_nothing(hub: Any, content: dict[str, Any]) -> None:
    browser = logged_in(hub, "emil")
    status, answer = ask(hub, browser, "emil", "draft", content)
    assert status == 200
    assert "is not valid" in answer["problem"]
    assert "\n" not in answer["problem"]
    assert not (hub.user_home("emil") / ".edf").exists()


@pytest.mark.parametrize("what", ["expected-start", "environment", "draft"])
class TestWhoMayAsk:
    def test_nobody_without_the_pages_token(self, hub: Any, what: str) -> None:
        browser = logged_in(hub, "fred")
        for xsrf in ("", "wrong"):
            assert ask(hub, browser, "fred", what, {}, xsrf=xsrf)[0] == 403
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert ask(hub, browser, "fred", what, b"edf=x", **form)[0] == 403

    def test_no_other_user(self, hub: Any, what: str) -> None:
        browser = logged_in(hub, "fred")
        logged_in(hub, "gerda")
        for name in ("gerda", "nobody-at-all"):
            assert ask(hub, browser, name, what, {})[0] in {403, 404}

    def test_no_servers_own_token(self, hub: Any, what: str) -> None:
        hub.call("POST", "/users/hans")
        hub.call("POST", "/users/hans/server", {})
        path = hub.user_home("hans") / "environment.json"
        end = time.monotonic() + 30
        while not (path.exists() and path.read_text().endswith("}")):
            assert time.monotonic() < end, hub.log()
            time.sleep(0.1)
        token = json.loads(path.read_text())["JUPYTERHUB_API_TOKEN"]
        assert hub.call("POST", f"/gipfel/users/hans/{what}", {}, token=token).status in {403, 404}
        hub.call("DELETE", "/users/hans/server")

    def test_nothing_but_a_small_object(self, hub: Any, what: str) -> None:
        browser = logged_in(hub, "fred")
        for raw in (b"", b"null", b"[]", b"{", b"\xff", b"[" * 100_000):
            assert ask(hub, browser, "fred", what, raw)[0] == 400
        assert ask(hub, browser, "fred", what, b" " * 200_000)[0] == 413
        assert ask(hub, browser, "fred", what, {"x" * 100_000: 1})[0] == 200

    def test_not_by_a_link(self, hub: Any, what: str) -> None:
        browser = logged_in(hub, "fred")
        assert browser.get(f"/hub/api/gipfel/users/fred/{what}?_xsrf={browser.xsrf()}")[0] in {403, 405}


def test_who_asks_too_often_is_told_when_to_ask_again(hub: Any) -> None:
    browser = logged_in(hub, "ines")
    answers = [ask(hub, browser, "ines", "expected-start", {}) for _ in range(41)]
    assert [status for status, _ in answers] == [200] * 40 + [429]
    assert "Try again in" in answers[-1][1]["message"]
    assert ask(hub, logged_in(hub, "jan"), "jan", "expected-start", {})[0] == 200


def test_two_named_servers_keep_their_environments(hub: Any) -> None:
    hub.call("POST", "/users/karl")
    for name in ("one", "two"):
        environment(hub, "karl", name, 'workdir = "/tmp"\n')
        assert hub.call("POST", f"/users/karl/servers/{name}", {"edf": name}).status in {201, 202}
    end = time.monotonic() + 40
    while True:
        servers = hub.call("GET", "/users/karl").content["servers"]
        if sum(bool(each["ready"]) for each in servers.values()) == 2:
            break
        assert time.monotonic() < end, hub.log()
        time.sleep(0.2)
    assert {name: each["user_options"]["edf"] for name, each in servers.items()} == {
        "one": "one",
        "two": "two",
    }
    assert servers["one"]["state"]["job_id"] != servers["two"]["state"]["job_id"]
    # A third one is offered what the last one had.
    page = logged_in(hub, "karl").get("/hub/spawn/karl/three")[1]
    assert '<option value="two" selected>' in page
    for name in ("one", "two"):
        hub.call("DELETE", f"/users/karl/servers/{name}")


def test_a_mistake_in_a_link_or_a_form_is_one_line_in_the_log(new_hub: Any) -> None:
    hub = new_hub()
    browser = logged_in(hub, "lea")
    browser.get("/hub/spawn?opt-time=0")
    browser.get("/hub/spawn?opt-edf=x")
    browser.post(f"/hub/spawn?_xsrf={browser.xsrf()}", {"time": "100%s"})
    log = hub.log()
    assert "Traceback" not in log
    assert "with query arguments: The value for the time is not valid" in log
    assert "with form: The value for the time is not valid: '100%s'" in log


@pytest.fixture
def slurm_hub(new_hub: Any, tmp_path: Path) -> Any:
    """A hub with small programs in Slurm's place that count how often they run."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "sinfo": f"[ -e {tmp_path}/silent ] && sleep 60; printf '%s' '{BUSY}'",
        "sacctmgr": "echo 'physics|physics||normal,long|normal'; echo 'course|physics|||'",
        "scontrol": "echo 'No reservations in the system'",
        "sbatch": "echo 'sbatch: Job 2 to start at 2099-11-21T17:11:33 using 2 processors on nodes n1' >&2",
    }
    for name, body in programs.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/{name}.calls\n{body}\n')
        path.chmod(0o755)
    hub = new_hub(
        "c.EDFSpawner.scheduler = 'slurm'",
        "c.EDFSpawner.answer_limit = 1",
        environment={"PATH_FIRST": str(folder)},
    )
    hub.user = pwd.getpwuid(os.getuid()).pw_name
    hub.calls = lambda name: len((tmp_path / f"{name}.calls").read_text().splitlines())
    hub.silence = (tmp_path / "silent").touch
    return hub


def test_pages_share_one_question_and_a_start_asks_only_for_its_own_options(slurm_hub: Any) -> None:
    hub = slurm_hub
    browser = logged_in(hub, hub.user)
    for _ in range(10):
        page = browser.get("/hub/spawn")[1]
    assert "normal: 5 of 8 gh200 idle · 1 of 2 nodes idle · up to 1-00:00:00" in page
    assert '<option value="physics">' in page
    assert "Default: physics" in page
    assert hub.calls("sinfo") == 1
    assert hub.calls("sacctmgr") == 1
    for _ in range(5):
        status, answer = ask(hub, browser, hub.user, "expected-start", {"gpus": 2, "account": "course"})
    assert status == 200
    assert answer["text"].startswith("2099-11-21 17:11 ")
    assert hub.calls("sbatch") == 1
    refused = ask(hub, browser, hub.user, "expected-start", {"account": "theirs"})[1]
    assert refused == {
        "problem": "You have no account theirs. Pick one of physics, course.",
        "field": "account",
    }
    answer = hub.call("POST", f"/users/{hub.user}/server", {"account": "theirs"})
    assert answer.status == 400
    assert "You have no account theirs" in answer.content["message"]
    assert hub.calls("sbatch") == 1


def test_old_news_are_shown_with_their_age(slurm_hub: Any) -> None:
    hub = slurm_hub
    browser = logged_in(hub, hub.user)
    assert "gh200 idle" in browser.get("/hub/spawn")[1]
    hub.silence()
    time.sleep(31)
    browser.get("/hub/spawn")
    began = time.monotonic()
    time.sleep(1.5)
    page = browser.get("/hub/spawn")[1]
    assert "5 of 8 gh200 idle" in page
    assert "The information about partitions is" in page
    assert "Slurm did not answer within 1 s (sinfo)." in page
    assert time.monotonic() - began < 5
    assert hub.calls("sinfo") == 2
