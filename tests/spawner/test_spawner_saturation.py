"""The page of servers shows how GPUs are used where users share it: a real hub and a real server."""

import json
import sys
import time
import urllib.request
from typing import Any

import pytest

REAL = (f"c.EDFSpawner.python = {sys.executable!r}", "c.Spawner.default_url = '/lab'")
PAGES = (
    "import gipfel_spawner",
    "c.JupyterHub.template_paths = [gipfel_spawner.HUB_TEMPLATES]",
    "c.Authenticator.admin_users = {'root'}",
    'c.Spawner.args = ["--GipfelExtension.sources=synthetic:training"]',
)


def until(done: Any, limit: float, hub: Any) -> Any:
    end = time.monotonic() + limit
    while not (result := done()):
        assert time.monotonic() < end, hub.log()
        time.sleep(0.3)
    return result


def ask(hub: Any, user: str, path: str, content: Any = None) -> Any:
    token = hub.call("POST", f"/users/{user}/tokens", {}).content["token"]
    request = urllib.request.Request(
        f"{hub.public}/user/{user}/{path}",
        data=None if content is None else json.dumps(content).encode(),
        headers={"Authorization": f"token {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def cell(page: str, user: str) -> str:
    row = page[page.index(f"<strong>{user}</strong>") :]
    return row.partition('data-label="Saturation">')[2].partition("</td>")[0]


@pytest.fixture
def admins_hub(new_hub: Any) -> Any:
    return new_hub(*REAL, *PAGES)


def test_a_score_is_shown_only_with_consent_and_never_holds_the_page_up(admins_hub: Any) -> None:
    hub = admins_hub
    hub.call("POST", "/users/ada")
    hub.call("POST", "/users/ada/server", {})
    until(lambda: hub.ready("ada"), 90, hub)
    ask(hub, "ada", "gipfel/telemetry/source", {"source": "synthetic:training"})
    browser = hub.browser("root")
    until(lambda: ask(hub, "ada", "gipfel/saturation")["figures"]["heat"]["data"], 60, hub)

    def shown() -> str:
        status, page = browser.get("/hub/gipfel/servers")
        assert status == 200
        return cell(page, "ada")

    until(lambda: shown() == "not shared", 60, hub)
    ask(hub, "ada", "gipfel/sharing", {"saturation": True})
    assert until(lambda: "of 100" in shown() and shown(), 120, hub).endswith("(simulated)")
    # The hub's tokens reach this one server, and end by themselves.
    tokens = hub.call("GET", "/users/ada/tokens").content["api_tokens"]
    (own,) = [token for token in tokens if token["note"].startswith("gipfel: saturation")]
    assert {scope for scope in own["scopes"] if scope.startswith("access")} == {"access:servers!server=ada/"}
    assert own["expires_at"]
    hub.call("DELETE", "/users/ada/server")
    until(lambda: hub.server("ada") == {}, 60, hub)
