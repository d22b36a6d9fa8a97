"""The registry as a site runs it: behind a real hub with this project's configuration."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hub_pages import HubPages, write_environment
from hub_process import HubProcess, proxy_folder
from kept_runtime import runtime_for_tests
from package_images import put
from playwright.sync_api import Page, expect
from test_hub_pages import serious_findings

_PROJECT = str(Path(__file__).resolve().parents[2] / "jupyterhub_config.py")
_SERVICE = "/services/gipfel-registry/"
_CONFIG = """\
exec(compile(open({project!r}).read(), {project!r}, 'exec'), {{**globals(), '__file__': {project!r}}})
# A user who may open the service's pages, but is not an operator.
access = "access:services!service=gipfel-registry"
c.JupyterHub.load_roles += [{{"name": "visitors", "users": ["paul"], "scopes": [access]}}]
"""
_RULES = """\
version: 1
rules:
  - name: test-ticket
    title: Names are not found
    source: the test
    when: {checks: [dns]}
    steps:
      - action: ticket
        text: |
          Node $node of $cluster.
          Said: $reason
"""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def hub(own_state: Path) -> Iterator[HubProcess]:
    """A hub with a registry, whose operator is olga; draining stays as it is shipped."""
    config, settings = own_state / "config.py", own_state / "registry.yaml"
    config.write_text(_CONFIG.format(project=_PROJECT))
    (own_state / "rules.yaml").write_text(_RULES)
    settings.write_text(f"clusters: [alps]\nrules: [{own_state}/rules.yaml]\n")
    environment = {
        "GIPFEL_SCHEDULER": "local",
        "GIPFEL_REGISTRY": "1",
        # No advisories: no image can be judged.
        "GIPFEL_SCAN_POLICY": "refuse",
        "GIPFEL_RUNTIME": str(runtime_for_tests()),
        "GIPFEL_REGISTRY_CONFIG": str(settings),
        "GIPFEL_REGISTRY_OPERATORS": "olga",
        "GIPFEL_REGISTRY_VOUCHED_TOKEN": "a-token-of-the-operators-own-runs",
    }
    with HubProcess(own_state, environment, proxy=proxy_folder(), config=config) as process:
        end = time.monotonic() + 60
        while httpx.get(process.url + _SERVICE + "api/steps", trust_env=False).status_code != 403:
            assert time.monotonic() < end, process.last_words()
            time.sleep(0.2)
        yield process


class Api:
    """The registry's API with one token."""

    def __init__(self, hub: HubProcess, token: str) -> None:
        self.url = hub.url + _SERVICE + "api/"
        self.headers = {"Authorization": f"token {token}"} if token else {}

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=self.headers, timeout=60, trust_env=False)

    def post(self, path: str, content: Any) -> httpx.Response:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return httpx.post(self.url + path, content=body, headers=self.headers, timeout=60, trust_env=False)

    def delete(self, path: str) -> httpx.Response:
        return httpx.delete(self.url + path, headers=self.headers, timeout=60, trust_env=False)


def report(node: str = "nid001", **entry: Any) -> dict[str, Any]:
    now = time.time_ns()
    words = {
        "node": node, "check": "xid", "type": "xid", "scope": "node", "verdict": "fail", "codes": [79],
        "reason": "XID 79 on 0000:01:00", "gpu_model": "NVIDIA GH200 120GB", "started_ns": now,
    }  # fmt: skip
    record = {
        "cluster": "alps", "job": "4711", "protocol": "quick", "started_ns": now - 10**9, "ended_ns": now,
        "complete": True, "entries": [words | entry],
    }  # fmt: skip
    return {"record": record, "versions": {"gipfel": "1"}}


@pytest.fixture(scope="module")
def api(hub: HubProcess) -> Callable[[str], Api]:
    return lambda name: Api(hub, hub.user(name).token if name else "")


def until(done: Callable[[], Any], hub: HubProcess) -> Any:
    end = time.monotonic() + 60
    while not (result := done()):
        assert time.monotonic() < end, hub.last_words()
        time.sleep(0.1)
    return result


def login(page: Page, hub: HubProcess, name: str) -> None:
    page.goto(f"{hub.url}/hub/login?next=/hub/home")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(hub.password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile("/hub/home"))


def test_each_scope_opens_its_own_door(hub: HubProcess, api: Callable[[str], Api]) -> None:
    doors = ("steps", "audit", "worst/alps", "nodes/alps/nid001", "baselines/alps?model=x")
    # Who sends may ask what is usual, and nothing that names a node or a user.
    for name, usual in (("", 403), ("ada", 200), ("paul", 200)):
        assert [api(name).get(door).status_code for door in doors] == [403] * 4 + [usual], name
        assert api(name).post("steps/1", {"decision": "approve"}).status_code == 403
    assert [api("olga").get(door).status_code for door in doors] == [200] * 5
    assert api("").post("reports", report()).status_code == 403
    # A token that can do less than its owner.
    less = httpx.post(
        f"{hub.url}/hub/api/users/olga/tokens",
        json={"scopes": ["custom:gipfel-registry:read"]},
        headers=api("olga").headers,
        trust_env=False,
    )
    reader = Api(hub, less.json()["token"])
    assert [reader.get(door).status_code for door in doors[2:]] == [200] * 3
    assert [reader.get("steps").status_code, reader.post("reports", report()).status_code] == [403, 403]
    # The hub's own service, which may start servers, has no access here; nor does another method give access.
    assert Api(hub, hub.api_token).get("steps").status_code == 403
    assert httpx.request(
        "PUT", api("olga").url + "reports", headers=api("olga").headers, trust_env=False
    ).status_code in {
        403,
        405,
    }


def test_no_user_takes_the_name_of_a_service(hub: HubProcess, api: Callable[[str], Api]) -> None:
    vouched, taker = Api(hub, "a-token-of-the-operators-own-runs"), api("service:gipfel-vouched")
    assert vouched.post("reports", report("nid010", verdict="pass", codes=[])).status_code == 201
    for answer in (taker.delete("reports"), taker.post("reports", report("nid010"))):
        assert answer.status_code == 403
        assert "'service:'" in answer.json()["message"]
    assert vouched.delete("reports").json() == {"deleted": 1}


def test_a_report_is_taken_once_and_what_is_none_is_refused(api: Callable[[str], Api]) -> None:
    ada, sent = api("ada"), report("nid009", type="ecc", check="ecc", codes=[])
    assert [ada.post("reports", sent).status_code for _ in range(2)] == [201, 200]
    for content, words in (
        (b"", "not a valid report"),
        (b"[" * 100_000, "not a valid report"),
        (b'{"record": \xff}', "not a valid report"),
        ([], "not a valid report"),
        (report() | {"reporter": "olga"}, "reporter"),
        (report(vouched=True), "vouched"),
        (report(node="a\nb"), "line break"),
        (report(node="a\x00b"), "line break"),
        (report(node=""), "no node"),
        (report(verdict="splendid"), "verdict"),
        (report(reason="x" * 501), "reason"),
        (report(codes=list(range(33))), "codes"),
        (report() | {"versions": {str(n): "1" for n in range(51)}}, "versions"),
        ({"record": report()["record"] | {"cluster": "100%s"}}, "100%s"),
        (b'{"record": {"cluster": "\\ud800"}}', "not a valid report"),
    ):
        answer = ada.post("reports", content)
        assert answer.status_code in {400, 403}, content
        assert words in answer.json()["message"]
        assert "Traceback" not in answer.text
    # NaN is no JSON; a measurement that is none is none.
    assert (
        ada.post("reports", json.dumps(report("nid009", measurement=float("nan"))).encode()).status_code
        == 201
    )
    answers = []
    try:
        answers.append(ada.post("reports", b" " * (25 << 20)).status_code)
    except httpx.TransportError:
        answers.append(413)
    # The proxy says 503 where the service closes a connection that brings too much.
    assert answers[0] in {400, 413, 503}
    assert ada.delete("reports").json()["deleted"] >= 1
    assert api("olga").get("nodes/alps/nid009").json() == {"results": []}


def test_a_forged_report_moves_nothing_and_two_users_do(hub: HubProcess, api: Callable[[str], Api]) -> None:
    for job in range(3):
        forged = report("nid666")
        forged["record"]["job"] = str(job)
        assert api("ada").post("reports", forged).status_code == 201
    assert api("ada").post("reports", report()).status_code == 201
    assert api("bob").post("reports", report()).status_code == 201
    (step,) = until(lambda: api("olga").get("steps").json()["steps"], hub)
    assert (step["node"], step["action"], step["rule"]) == ("nid001", "drain", "gpu-lost")
    answer = api("olga").post(f"steps/{step['id']}", {"decision": "approve"})
    assert answer.status_code == 409
    assert "drain.cluster in its settings is empty" in answer.json()["message"]
    assert [api("olga").post("steps/999", {"decision": "approve"}).status_code] == [409]
    assert api("olga").post("steps/1", {"decision": "rm"}).status_code == 400
    vouched = Api(hub, "a-token-of-the-operators-own-runs")
    assert vouched.post("reports", report("nid002", type="dns", check="dns", codes=[])).status_code == 201
    until(lambda: len(api("olga").get("steps").json()["steps"]) == 2, hub)
    assert vouched.get("steps").status_code == 403


def test_a_users_server_may_send_for_them(hub: HubProcess, api: Callable[[str], Api]) -> None:
    user = hub.user("cleo")
    user.start_server({"gpus": 0, "time": "30"})
    code = (
        "import os, time\n"
        "from gipfel_extension.vetting.history.site_registry import share_record\n"
        "from gipfel_extension.vetting.history.store import HistoryEntry, VettingRecord\n"
        "n = time.time_ns()\n"
        "e = HistoryEntry(node='nid003', check='dns', type='dns', scope='node', verdict='pass')\n"
        "when = {'started_ns': n, 'ended_ns': n}\n"
        "r = VettingRecord(cluster='alps', job='1', protocol='quick', entries=(e,), **when)\n"
        "print(share_record(r, environment=os.environ))\n"
        "os.environ['GIPFEL_SHARE_VETTING'] = 'yes'\n"
        "print(share_record(r, environment=os.environ))\n"
    )
    try:
        with user.kernel() as kernel:
            said = kernel.run(code).text
    finally:
        user.stop_server()
    assert "you have not agreed" in said
    assert "were sent" in said
    (result,) = api("olga").get("nodes/alps/nid003").json()["results"]
    assert (result["reporter"], result["vouched"]) == ("cleo", False)


def test_the_page_refuses_a_user_without_the_scope(
    hub: HubProcess, new_page: Callable[[], Page], screenshot: Callable[[Page, str], Path]
) -> None:
    for name in ("ada", "paul"):
        page = new_page()
        login(page, hub, name)
        answer = page.goto(hub.url + _SERVICE)
        assert answer
        assert answer.status == 403, name
        expect(page.get_by_text("nid001")).to_have_count(0)
    expect(page.get_by_text("You lack the role for this page.")).to_be_visible()
    screenshot(page, "registry-refused")
    assert serious_findings(page) == []
    answer = page.goto(hub.url + _SERVICE + "nodes/alps/nid001")
    assert answer
    assert answer.status == 403


def _assert_name_and_clock(page: Page, digits: str = "") -> None:
    """The page has Gipfel's name, and its times have the browser's zone or, by the button, UTC."""
    bar = page.get_by_role("navigation", name="Registry")
    expect(bar.get_by_role("link", name="Gipfel", exact=True)).to_have_attribute(
        "href", re.compile("/hub/home$")
    )
    expect(bar).not_to_contain_text("JupyterHub")
    assert page.title().endswith("· Gipfel")
    time_of, clock = page.locator("main time").first, bar.locator("[data-gipfel-clock]")
    expect(time_of).to_have_text(re.compile(f"{digits}.*P[SD]T$"))
    expect(clock).to_have_text(re.compile("P[SD]T"))
    clock.click()
    expect(time_of).to_have_text(re.compile(f"{digits}.*UTC$"))
    clock.click()
    expect(time_of).to_have_text(re.compile("P[SD]T$"))


def test_an_operator_reads_decides_and_copies(
    hub: HubProcess, new_page: Callable[[], Page], screenshot: Callable[[Page, str], Path]
) -> None:
    page = new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    login(page, hub, "olga")
    page.goto(hub.url + _SERVICE)
    row = page.get_by_role("row").filter(has_text="nid001")
    expect(row).to_contain_text("2 users")
    expect(row).to_contain_text("2 of 2 bad")
    card = page.get_by_role("listitem").filter(has_text="A GPU has fallen off the bus")
    expect(card).to_contain_text("RESTART_BM")
    assert problems == []
    _assert_name_and_clock(page)
    # The time in a step's text too; the text of a ticket, which is sent elsewhere, keeps UTC.
    expect(card.locator("p", has_text="2 reports by 2 users since")).to_contain_text(
        re.compile("P[SD]T. Last")
    )
    expect(page.locator("main")).not_to_contain_text("UTC")
    screenshot(page, "registry-light")
    assert serious_findings(page) == []
    page.get_by_label("Toggle dark mode").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    screenshot(page, "registry-dark")
    assert serious_findings(page) == []
    card.get_by_role("button", name="drain").click()
    expect(page.get_by_role("alert")).to_contain_text("drain.cluster in its settings is empty")
    problems.clear()  # The browser says that the answer was a refusal.
    ticket = page.get_by_role("listitem").filter(has_text="Names are not found")
    assert ticket.get_by_label("Ticket").input_value().startswith("Node nid002 of alps.\nSaid: XID 79")
    ticket.get_by_role("button", name="Copy").click()
    expect(ticket.get_by_role("button", name=re.compile("Copied|Selected"))).to_be_visible()
    ticket.get_by_role("button", name="Done").click()
    expect(page.get_by_text("Names are not found")).to_have_count(0)
    card.get_by_role("button", name="Dismiss the case").click()
    expect(page.get_by_text("No steps to decide.")).to_be_visible()
    page.get_by_role("row").filter(has_text="nid001").get_by_role("link").click()
    expect(page.get_by_role("row").filter(has_text="XID 79 on 0000:01:00")).to_have_count(2)
    screenshot(page, "registry-node")
    assert serious_findings(page) == []
    page.get_by_role("link", name="Audit").click()
    expect(page.get_by_role("row").filter(has_text="dismiss").first).to_contain_text("olga")
    # Local time with its zone's name, to the second, and in UTC by the button.
    _assert_name_and_clock(page, r"\d\d:\d\d:\d\d\s[AP]M ")
    page.set_viewport_size({"width": 320, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    screenshot(page, "registry-audit-320")
    page.set_viewport_size({"width": 1400, "height": 900})
    screenshot(page, "registry-audit")
    assert serious_findings(page) == []
    assert problems == []
    # The session's cookie alone, as a form on another site would send it, decides nothing.
    for key in ("", "?_xsrf=", "?_xsrf=MnxhYmM6ZGVm"):
        form = {"step": "1", "decision": "approve"}
        assert page.request.post(hub.url + _SERVICE + key, form=form).status == 403
    answer = page.request.get(hub.url + _SERVICE)
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "<script>" not in answer.text()
    assert 'style="' not in answer.text()
    answer = page.goto(hub.url + _SERVICE + "nodes/alps/%3Cb%3E")
    assert answer
    assert answer.status == 404
    assert page.request.get(hub.url + _SERVICE + "static/../../__main__.py").status in {403, 404}


def test_the_form_says_that_the_sites_policy_refuses_an_image(
    hub: HubProcess, own_state: Path, new_page: Callable[[], Page], screenshot: Callable[[Page, str], Path]
) -> None:
    image = put(own_state / "foreign", {"etc/os-release": "ID=debian\nVERSION_ID=12\n"})
    write_environment(own_state, "mia", "foreign", f'image = "{image}"\n')
    hub.user("mia")
    pages = HubPages(new_page(), hub.url)
    page = pages.page
    try:
        pages.login("mia", hub.password)
        for scheme, width in (("light", 1400), ("dark", 320)):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            pages.open_form()
            page.get_by_label("Environment", exact=True).select_option("foreign")
            found = page.locator(".gipfel-security")
            expect(found).to_have_attribute("data-level", "fail")
            expect(found).to_contain_text("ould not be judged: There is no mirror of advisories")
            expect(found).to_contain_text("Policy of the site: refuse.")
            found.scroll_into_view_if_needed()
            screenshot(page, f"24-form-refused-{scheme}-{width}")
        pages.start()
        line = pages.alert()
        screenshot(page, "24-form-refused-start")
        assert "refuses the image" in line
    finally:
        page.close()
