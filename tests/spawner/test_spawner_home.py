"""The hub's home in a real hub with tiny servers: cards, earlier sessions, requests of its buttons."""

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from hub_servers import environment, start, until

PAGES = ("import gipfel_spawner", "c.JupyterHub.template_paths = [gipfel_spawner.HUB_TEMPLATES]")


def post(hub: Any, browser: Any, path: str, content: Any, *, xsrf: str | None = None) -> tuple[int, Any]:
    """A request of the page's script, with the browser's cookies and its XSRF token."""
    request = urllib.request.Request(
        f"{hub.public}/hub/api/gipfel/users/{path}",
        data=json.dumps(content).encode(),
        headers={
            "Content-Type": "application/json",
            "X-XSRFToken": browser.xsrf() if xsrf is None else xsrf,
        },
    )
    try:
        with browser.opener.open(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def running(hub: Any, user: str, options: dict[str, Any]) -> str:
    """The token of a server that runs."""
    start(hub, user, {"user_options": options})
    until(lambda: hub.ready(user), 60, hub)
    return environment(hub, user)["JUPYTERHUB_API_TOKEN"]


def stopped(hub: Any, user: str) -> None:
    hub.call("DELETE", f"/users/{user}/server")
    until(lambda: hub.server(user) == {}, 60, hub)


@pytest.fixture(scope="module")
def home_hub(hub: Any, proxy: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A hub with our templates."""
    other = type(hub)(tmp_path_factory.mktemp("home"), proxy, PAGES)
    other.start()
    yield other
    for user in other.call("GET", "/users").content:
        other.call("DELETE", f"/users/{user['name']}/server")
    other.end()


def test_a_session_is_a_card_then_a_row_and_can_be_started_again(home_hub: Any) -> None:
    hub = home_hub
    token = running(hub, "anna", {"gpus": 2, "time": "2:00:00"})
    ends = int(time.time()) + 4380
    report = {"idle_s": 0, "ends": ends}
    assert hub.call("POST", "/gipfel/server/activity", report, token=token).status == 200
    browser = hub.browser("anna")
    page = browser.get("/hub/home")[1]
    card = page[page.index('data-server=""') : page.index("</section>")]
    assert 'data-state="running"' in card
    assert "2 GPUs" in card
    assert f"job {hub.job('anna')}" in card
    assert "1 h 12 min left" in card
    assert 'href="/user/anna/"' in card
    assert "Start again like this" not in page
    stopped(hub, "anna")
    page = browser.get("/hub/home")[1]
    assert 'data-state="running"' not in page
    assert "2 GPUs · 2 h" in page
    link = page.partition('href="/hub/gipfel/repeat/')[2].partition('"')[0]
    form = browser.get(f"/hub/gipfel/repeat/{link}")[1]
    assert 'name="gpus" type="number"' in form
    assert 'value="2:00:00"' in form
    # It is the user's own history: another user's number is not found.
    assert hub.browser("bert").get(f"/hub/gipfel/repeat/{link}")[0] == 404
    # Nothing was started.
    assert hub.server("anna") == {}


def test_a_session_that_did_not_start_is_a_card_with_its_cause(home_hub: Any) -> None:
    hub = home_hub
    start(hub, "dana", behaviour="die")
    until(lambda: hub.server("dana") == {}, 20, hub)
    browser = hub.browser("dana")
    until(lambda: "failed to start" in browser.get("/hub/home")[1], 20, hub)
    page = browser.get("/hub/home")[1]
    card = page[page.index('data-server=""') : page.index("</section>")]
    assert 'data-state="failed"' in card
    assert "✗" in card
    assert "/none.sqsh" in card
    assert ">Start</a>" in card
    assert "did not start" in browser.get("/hub/user/dana/")[1]


def test_what_a_user_typed_is_text_on_the_page(home_hub: Any) -> None:
    home_hub.call("POST", "/users/carl")
    evil = {"display_name": '"><script>alert(1)</script>'}
    assert home_hub.call("PUT", "/users/carl/servers/evil", evil).status == 201
    page = home_hub.browser("carl").get("/hub/home")[1]
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert 'data-server="evil" data-state="stopped"' in page


def test_only_the_user_reads_a_log_and_it_has_no_token(home_hub: Any) -> None:
    hub = home_hub
    token = running(hub, "dina", {})
    browser = hub.browser("dina")
    browser.get("/hub/home")
    status, answer = post(hub, browser, "dina/log", {"server": ""})
    assert status == 200
    assert token not in answer["text"]
    for content in ({"server": 3}, {"server": "", "path": "/etc/passwd"}, {"server": "a\nb"}):
        assert post(hub, browser, "dina/log", content)[0] == 400
    status, answer = post(hub, browser, "dina/log", {"server": "other"})
    assert (status, answer["problem"]) == (200, "This server is not running. Reload the page.")
    assert post(hub, browser, "dina/log", {"server": ""}, xsrf="wrong")[0] == 403
    other = hub.browser("emil")
    other.get("/hub/home")
    assert post(hub, other, "dina/log", {"server": ""})[0] == 404
    # An administrator's service may not read it either.
    assert hub.call("POST", "/gipfel/users/dina/log", {"server": ""}).status == 403
    # The server's own token does not have the scope.
    assert hub.call("POST", "/gipfel/users/dina/log", {"server": ""}, token=token).status in {403, 404}
    stopped(hub, "dina")


def test_a_site_without_extensions_says_so(home_hub: Any) -> None:
    running(home_hub, "fina", {})
    browser = home_hub.browser("fina")
    assert 'data-action="extend"' not in browser.get("/hub/home")[1]
    status, answer = post(home_hub, browser, "fina/extend", {"server": ""})
    assert status == 200
    assert answer["problem"].startswith("This server's time can't be extended.")
    stopped(home_hub, "fina")


def test_every_page_names_gipfel_and_has_its_style(home_hub: Any) -> None:
    browser = home_hub.browser("gert")
    for path in ("/hub/home", "/hub/spawn", "/hub/token", "/hub/login"):
        page = browser.get(path)[1]
        assert "gipfel/static/pages.css" in page, path
        assert "Gipfel" in page.partition("<title>")[2].partition("</title>")[0], path
    for name in ("pages.css", "home.js"):
        assert browser.get(f"/hub/gipfel/static/{name}")[0] == 200


def test_the_page_is_jupyterhubs_where_the_site_does_not_name_our_templates(hub: Any) -> None:
    status, page = hub.browser("hans").get("/hub/home")
    assert status == 200
    assert "Named Servers" in page
