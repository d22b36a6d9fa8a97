"""A service with a host name of its own, in a real hub with subdomains and its proxy."""

import html
import http.client
import json
import sys
import time
import urllib.parse
from http.cookies import SimpleCookie
from types import SimpleNamespace
from typing import Any

import pytest
from hub_servers import until
from jupyterhub.utils import subdomain_hook_idna, subdomain_hook_legacy

from gipfel_spawner.start.service_host import possible_host

_PROGRAM = """
import os, sys
from aiohttp import web

async def page(request):
    cookies = sorted(request.cookies)
    content = {"path": request.path, "cookies": cookies, "host": request.host}
    answer = web.json_response(content, headers={"X-Process": str(os.getpid())})
    answer.set_cookie("own", "1")
    answer.set_cookie("wide", "1", domain="hub.localhost")
    return answer

app = web.Application()
app.add_routes([web.get("/{any:.*}", page)])
web.run_app(app, path=sys.argv[1], print=None)
"""
_BLUEPRINT = """
name: board
title: Board
parts:
  board:
    command: ["${{python}}", -I, "{program}", "${{socket}}"]
    path: host
{more}resources: {{cpus: 1}}
"""
#: The next job is submitted with the second report, after 30 s.
_LIMIT_S = 60.0
_OVERLAP = """keep_up: true
handover: overlap
"""


class _Person:
    """A browser that resolves all names to the hub's proxy, and keeps cookies by host as browsers do."""

    def __init__(self, hub: Any, name: str) -> None:
        self._port = int(hub.public.rpartition(":")[2])
        self.hub = f"http://{hub.host}"
        self.cookies: dict[str, dict[str, str]] = {}
        self.visited: list[str] = []
        self.visit(f"{self.hub}/hub/login")
        form = {"username": name, "password": "x"}
        self.visit(f"{self.hub}/hub/login?_xsrf={self.cookies['hub.localhost']['_xsrf']}", form)

    def visit(self, url: str, form: dict[str, str] | None = None) -> tuple[int, str]:
        """Open a page, follow its redirects, and return its status and content."""
        for _ in range(20):
            status, content, location = self._ask(url, form)
            self.visited.append(url)
            if not location:
                return status, content
            url, form = urllib.parse.urljoin(url, location), None
        raise AssertionError(self.visited[-20:])

    def _ask(self, url: str, form: dict[str, str] | None) -> tuple[int, str, str]:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
        names = [each for each in self.cookies if host == each or (each[0] == "." and host.endswith(each))]
        jar = {key: value for each in names for key, value in self.cookies[each].items()}
        headers = {"Host": parts.netloc, "Accept": "text/html"}
        if jar:
            headers["Cookie"] = "; ".join(f"{key}={value}" for key, value in jar.items())
        body = urllib.parse.urlencode(form) if form else None
        if body:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request("POST" if body else "GET", parts._replace(scheme="", netloc="").geturl() or "/",
                           body, headers)  # fmt: skip
        answer = connection.getresponse()
        content = answer.read().decode()
        for line in answer.headers.get_all("Set-Cookie") or ():
            for each in SimpleCookie(line).values():
                domain = f".{each['domain'].lstrip('.')}" if each["domain"] else host
                self.cookies.setdefault(domain, {})[each.key] = each.value
        return answer.status, content, answer.getheader("Location", "")


def test_a_service_that_needs_it_has_a_host_of_its_own(new_hub: Any) -> None:
    hub = new_hub(f"c.EDFSpawner.python = {sys.executable!r}", host="hub.localhost")
    for name in ("ada", "ben"):
        hub.call("POST", f"/users/{name}")
    home = hub.user_home("ada")
    (home / "board.py").write_text(_PROGRAM)
    blueprints = home / ".gipfel/blueprints"
    blueprints.mkdir(parents=True)
    (blueprints / "board.yaml").write_text(_BLUEPRINT.format(program=home / "board.py", more=""))
    port = hub.host.rpartition(":")[2]
    own, path = f"http://board--ada.hub.localhost:{port}", f"http://ada.hub.localhost:{port}/user/ada/board/"
    assert hub.call("POST", "/users/ada/servers/board", {"service": "board"}).status in {201, 202}

    def is_up() -> bool:
        return bool(hub.call("GET", "/users/ada").content["servers"].get("board", {}).get("ready"))

    until(is_up, 60, hub)
    ada = _Person(hub, "ada")
    status, content = ada.visit(f"{path}deep/page?x=1")
    # From the path, which the hub's pages link to, over the login, to the page on the service's own host.
    assert status == 200, ada.visited
    assert json.loads(content) == {"path": "/deep/page", "cookies": [], "host": "localhost"}
    assert ada.visited[-1] == f"{own}/deep/page?x=1"
    # Its cookies are of its host, and the hub's stay away from it.
    assert "own" in ada.cookies["board--ada.hub.localhost"]
    assert all("wide" not in jar for host, jar in ada.cookies.items() if host.startswith("."))
    shown = json.loads(ada.visit(f"{own}/user/ada/board/")[1])
    assert (shown["path"], shown["cookies"]) == ("/user/ada/board/", ["own", "wide"])
    # No page of it has the origin of its user's other servers, however the path is written.
    for target in ("//board--ada.hub.localhost/x", "bo%61rd", "x\\y"):
        written = path.replace("board/", target) if "%" in target else path + target
        status, location = _Person._ask(ada, written, None)[::2]
        assert status in {302, 404}, target
        assert location.startswith((own, f"{ada.hub}/hub/"))
    ben = _Person(hub, "ben")
    status, content = ben.visit(f"{own}/")
    assert status == 403, (ben.visited, content)
    token = hub.call("POST", "/users/ada/tokens", {"scopes": ["access:servers!server=ada/board"]}).content
    headers = {"Host": own.removeprefix("http://"), "Authorization": f"Bearer {token['token']}"}

    def program(host: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
        connection.request("GET", "/api", headers={**headers, "Host": host})
        return connection.getresponse().status

    assert program(headers["Host"]) == 200
    hub.end(hard=True)
    hub.start()
    until(lambda: is_up() and program(headers["Host"]) == 200, 60, hub)
    assert ada.visit(f"{own}/again")[0] == 200
    hub.call("DELETE", "/users/ada/servers/board")
    until(lambda: program(headers["Host"]) != 200 and not is_up(), 30, hub)
    assert program(headers["Host"]) in {302, 403, 404, 424}


def test_the_same_host_answers_from_the_next_job_before_and_after_the_time_limit(new_hub: Any) -> None:
    hub = new_hub(f"c.EDFSpawner.python = {sys.executable!r}", host="hub.localhost")
    hub.call("POST", "/users/ada")
    home = hub.user_home("ada")
    (home / "board.py").write_text(_PROGRAM)
    (home / ".gipfel/blueprints").mkdir(parents=True)
    blueprint = _BLUEPRINT.format(program=home / "board.py", more=_OVERLAP)
    (home / ".gipfel/blueprints/board.yaml").write_text(blueprint)
    port = int(hub.host.rpartition(":")[2])
    own = f"board--ada.hub.localhost:{port}"
    begun = time.monotonic()
    options = {"service": "board", "time": "00:01:00"}
    assert hub.call("POST", "/users/ada/servers/board", options).status in {201, 202}
    token = hub.call("POST", "/users/ada/tokens", {"scopes": ["access:servers!server=ada/board"]}).content

    def process() -> tuple[int, str | None]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/", headers={"Host": own, "Authorization": f"Bearer {token['token']}"})
        answer = connection.getresponse()
        return answer.status, answer.getheader("X-Process")

    first = until(lambda: found if (found := process())[0] == 200 else None, 60, hub)
    seen = [first]

    def has_next() -> bool:
        seen.append(process())
        return seen[-1] != first

    until(has_next, _LIMIT_S + 30, hub)
    assert time.monotonic() - begun < _LIMIT_S, "the next job takes over before the time limit"
    while time.monotonic() - begun < _LIMIT_S + 10:
        seen.append(process())
        time.sleep(0.2)
    # No request failed, and none was answered by the earlier job once the next one had taken over.
    assert {status for status, _ in seen} == {200}
    change = next(place for place, each in enumerate(seen) if each != first)
    assert first not in seen[change:]
    # The next job has sessions of its own: the hub's login leads back without a question.
    ada = _Person(hub, "ada")
    assert ada.visit(f"http://{own}/deep")[0] == 200
    assert ada.visited[-1] == f"http://{own}/deep"
    hub.call("DELETE", "/users/ada/servers/board")


def test_the_form_says_why_a_service_can_have_no_host_of_its_own(hub: Any) -> None:
    hub.call("POST", "/users/cyd")
    home = hub.user_home("cyd")
    (home / ".gipfel/blueprints").mkdir(parents=True)
    (home / ".gipfel/blueprints/board.yaml").write_text(_BLUEPRINT.format(program="/x", more=""))
    hub.call("POST", "/users/cyd/servers/board", {"service": "board"})
    events = hub.call("GET", "/users/cyd/servers/board/progress").body.decode()
    assert "Board needs a host name of its own" in html.unescape(events), events
    assert "share one host name" in html.unescape(events)


@pytest.mark.parametrize(
    ("server", "user", "hook", "reason"),
    [
        ("board", "ada", subdomain_hook_idna, ""),
        # A user could have the name board--ada.
        ("board", "ada", subdomain_hook_legacy, "somebody else"),
        # board--service is the host name of a service of the hub.
        ("board", "service", subdomain_hook_idna, "somebody else"),
        ("u-board", "1a2b3c4", subdomain_hook_idna, "somebody else"),
        ("xn", "ada", subdomain_hook_idna, "somebody else"),
        ("board", "a" * 60, subdomain_hook_idna, "too long"),
    ],
)
def test_a_host_name_can_be_that_of_nobody_else(server: str, user: str, hook: Any, reason: str) -> None:
    domain = "hub.example.org"
    settings = {"subdomain_host": f"https://{domain}:8443", "domain": domain, "subdomain_hook": hook}
    owner = SimpleNamespace(name=user, domain=hook(user, domain, kind="user"), settings=settings)
    origin, why = possible_host(owner, server)
    if reason:
        assert origin == ""
        assert reason in why
    else:
        assert (origin, why) == (f"https://{server}--{user}.{domain}:8443", "")
