"""The hub's pages: axe-core, narrow windows, time zones, and the administrators' table."""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hub_pages import HubPages
from hub_process import HubProcess
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser

_USER = "root"  # Who runs the hub of one machine is its administrator.
AXE = Path(__file__).resolve().parents[2] / "extension/node_modules/axe-core/axe.min.js"
VIOLATIONS = """async () => (await axe.run(document, {preload: false})).violations
    .filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => [each.id, each.nodes.map((node) => [node.target, node.failureSummary])])"""
_LOOKS: tuple[tuple[Any, int], ...] = (("light", 1400), ("dark", 320))
#: The stream of a start whose job is in the queue.
_QUEUED = 'retry: 3600000\ndata: {"progress": 20, "message": "Job 7 waits for 4 GPUs on normal."}\n\n'
_WINTER = "gipfelTime.format(new Date('2026-01-15T13:32:00Z'), 'moment')"


def serious_findings(page: Page, where: str = "document") -> Any:
    """Return what axe-core finds serious or critical in a page, or in the element of a CSS selector."""
    # As text: a page whose policy forbids inline scripts would refuse a script element.
    page.evaluate(AXE.read_text())
    return page.evaluate(VIOLATIONS.replace("document", where if where == "document" else repr(where), 1))


def check(page: Page, path: str, *, then: Callable[[Page], object] = lambda page: None) -> None:
    """Open a page light and wide, dark and narrow: nothing serious, and nothing wider than the window."""
    for scheme, width in _LOOKS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(path)
        then(page)
        found = serious_findings(page)
        assert not found, f"{path} {scheme} {width}: {json.dumps(found, indent=1)}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1400, "height": 900})


@pytest.fixture(scope="module")
def pages(hub: HubProcess, new_page: Callable[[], Page]) -> Iterator[HubPages]:
    """An administrator who has not logged in yet."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: run `jlpm install` in extension/.")
    hub.user(_USER)
    pages = HubPages(new_page(), hub.url)
    yield pages
    pages.page.close()


def test_login_and_an_address_without_a_page_have_no_serious_findings(pages: HubPages) -> None:
    page = pages.page
    check(page, f"{pages.url}/hub/login")
    check(page, f"{pages.url}/hub/login", then=_mistype_password)
    check(page, f"{pages.url}/hub/nowhere")
    expect(page.get_by_role("link", name="Go to your sessions")).to_be_visible()


def _mistype_password(page: Page) -> None:
    page.get_by_label("Username").fill(_USER)
    page.get_by_label("Password").fill("mistyped")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("Invalid username or password")).to_be_visible()


def test_home_form_and_a_failure_have_none(
    pages: HubPages, hub: HubProcess, screenshot: Callable[[Page, str], Path]
) -> None:
    page = pages.page
    pages.login(_USER, hub.password)
    check(page, f"{hub.url}/hub/home")
    check(page, f"{hub.url}/hub/spawn")
    check(page, f"{hub.url}/hub/spawn", then=lambda page: page.locator("#gipfel-new-open").click())
    hub.call("POST", f"/users/{_USER}/servers/lost", json={"edf": "/nowhere/lost.toml"})
    failure = f"{hub.url}/hub/spawn-pending/{_USER}/lost"
    check(page, failure, then=lambda page: page.get_by_role("link", name="Change and retry").wait_for())
    screenshot(page, "30-failure")


def test_the_waiting_page_and_that_of_tokens_have_none(
    pages: HubPages, hub: HubProcess, screenshot: Callable[[Page, str], Path]
) -> None:
    page = pages.page
    waiting = f"{hub.url}/hub/spawn-pending/{_USER}/slow"
    with ThreadPoolExecutor(1) as background:
        background.submit(hub.call, "POST", f"/users/{_USER}/servers/slow", json={})
        _keep_waiting(page, waiting)
    check(page, waiting, then=_open_log)
    screenshot(page, "31-waiting")
    check(page, f"{hub.url}/hub/token", then=_request_token)
    screenshot(page, "31-token")
    hub.call("DELETE", f"/users/{_USER}/servers/slow", json={"remove": True})


def _keep_waiting(page: Page, url: str) -> None:
    """Let a page of a start stay as it is while the start goes on."""
    shown = page.request.get(url).text()
    while "gipfel-steps" not in shown:
        shown = page.request.get(url).text()
    page.route(url, lambda route: route.fulfill(content_type="text/html", body=shown))
    page.route("**/progress*", lambda route: route.fulfill(content_type="text/event-stream", body=_QUEUED))


def _open_log(page: Page) -> None:
    expect(page.locator("#progress-message")).to_contain_text("waits for 4 GPUs")
    page.locator("#progress-details > summary").click()


def _request_token(page: Page) -> None:
    page.get_by_label("Note").fill("of the tests")
    page.get_by_role("button", name="Request new API token").click()
    expect(page.locator("#token-result")).not_to_be_empty()
    page.locator("#api-tokens-table summary").first.click()


def test_the_administrators_table_is_sorted_and_filtered(
    pages: HubPages, hub: HubProcess, screenshot: Callable[[Page, str], Path]
) -> None:
    page = pages.page
    for name, time in (("brief", "30"), ("long", "4:00:00")):
        hub.call("POST", f"/users/{_USER}/servers/{name}", json={"time": time})
    try:
        hub.wait_for_servers(_USER, "brief", "long")
        check(page, f"{hub.url}/hub/gipfel/servers")
        rows = page.locator(".gipfel-servers tbody tr:visible")
        expect(rows).to_have_count(2)
        # Four hours, then half an hour: by the moment, not by the text.
        left = page.get_by_role("button", name="Time left")
        left.click()
        expect(rows.first).to_contain_text("/ brief")
        left.click()
        expect(rows.first).to_contain_text("/ long")
        expect(page.get_by_role("columnheader", name="Time left")).to_have_attribute(
            "aria-sort", "descending"
        )
        ends = rows.first.locator("[data-label='Time left'] time")
        expect(ends).to_have_attribute("title", re.compile("^ends .*P[SD]T$"))
        page.get_by_label("Filter").fill("brief")
        expect(rows).to_have_count(1)
        screenshot(page, "31-servers")
        page.get_by_label("Filter").fill("")
        # A refresh brings what has changed, and keeps the order.
        page.clock.install()
        page.reload()
        page.get_by_role("button", name="Time left").click()
        hub.call("DELETE", f"/users/{_USER}/servers/brief")
        expect(rows).to_have_count(2)
        page.clock.run_for(31_000)
        expect(rows.filter(has_text="/ brief").filter(has_text="running")).to_have_count(0)
        expect(rows.first).to_contain_text("/ long")
    finally:
        for name in ("brief", "long"):
            hub.call("DELETE", f"/users/{_USER}/servers/{name}", json={"remove": True})


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("UTC", r"1:32\sPM UTC$"),
        ("Europe/Zurich", r"2:32\sPM CET$"),
        ("America/Los_Angeles", r"5:32\sAM PST$"),
        ("Asia/Kathmandu", r"7:17\sPM GMT\+5:45$"),
    ],
)
def test_times_have_the_browsers_zone_and_its_name(
    browser: Browser, hub: HubProcess, zone: str, shown: str
) -> None:
    context = browser.new_context(timezone_id=zone, locale="en-US")
    try:
        page = context.new_page()
        page.goto(f"{hub.url}/hub/login")
        assert re.search(shown, page.evaluate(_WINTER))
    finally:
        context.close()
