"""The hub's home in a browser: a session from its card to a row that is started again, narrow and dark."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_pages import HubPages
from hub_process import HubProcess
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

_USER = "irma"


@pytest.fixture(scope="module")
def pages(hub: HubProcess, new_page: Callable[[], Page]) -> Iterator[HubPages]:
    hub.user(_USER)
    pages = HubPages(new_page(), hub.url)
    pages.page.on("pageerror", lambda error: pages.errors.append(f"{pages.page.url}: {error.stack}"))
    pages.login(_USER, hub.password)
    yield pages
    pages.page.close()


def test_a_session_is_connected_stopped_and_started_again(
    pages: HubPages, hub: HubProcess, screenshot: Callable[[Page, str], Path]
) -> None:
    page = pages.page
    pages.fill(time="45")
    pages.start()
    pages.wait_for_lab()
    page.goto(f"{hub.url}/hub/home")
    card = page.get_by_role("region", name="Session default")
    expect(card).to_have_attribute("data-state", "running")
    expect(card).to_contain_text("no container · no GPUs on local")
    expect(card.get_by_role("link", name="Connect")).to_have_attribute("href", f"/user/{_USER}/")
    screenshot(page, "28-home")
    card.get_by_role("button", name="Log").click()
    expect(page.get_by_role("dialog", name="Log of default")).to_contain_text("Jupyter Server")
    page.keyboard.press("Escape")
    # A refresh of the page, every 15 s, does not take the keyboard's focus away.
    card.get_by_role("button", name="Log").evaluate("each => { each.dataset.old = '1'; each.focus(); }")
    expect(card.locator("[data-old]")).to_have_count(0)
    expect(card.get_by_role("button", name="Log")).to_be_focused()
    card.get_by_text("Stop", exact=True).click()
    card.get_by_role("button", name="Stop default now").click()
    expect(page.get_by_text("No session is running.")).to_be_visible()
    row = page.locator("#gipfel-earlier tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("stopped")
    # The browser's time zone, not UTC and not the hub's.
    expect(row.locator("time")).to_have_text(re.compile(r"P[SD]T|GMT-[78]"))
    row.get_by_role("link", name="Start again like").click()
    expect(page.get_by_label("Time", exact=True)).to_have_value("45")
    assert hub.user(_USER).server() is None


def test_a_named_session_is_created_and_deleted(pages: HubPages, hub: HubProcess) -> None:
    page = pages.page
    page.goto(f"{hub.url}/hub/home")
    page.get_by_label("Name of the session").fill("Grüne Wiese")
    page.get_by_role("button", name="New session").click()
    expect(page.locator("#spawn_form")).to_be_visible()
    page.goto(f"{hub.url}/hub/home")
    card = page.get_by_role("region", name="Session Grüne Wiese")
    expect(card).to_have_attribute("data-state", "stopped")
    card.get_by_text("Delete", exact=True).click()
    card.get_by_role("button", name="Delete Grüne Wiese now").click()
    expect(card).to_have_count(0)


def test_a_service_is_started_by_click_and_opened_from_its_card(
    pages: HubPages, hub: HubProcess, tmp_path: Path, screenshot: Callable[[Page, str], Path]
) -> None:
    (tmp_path / "curve of run 7.txt").write_text("loss\n")
    page = pages.page
    pages.open_form()
    page.get_by_label("What to start").select_option(label="Files of a directory")
    expect(page.get_by_label("logdir (required)")).to_be_hidden()
    page.get_by_label("directory (required)").fill(str(tmp_path))
    expect(page.locator("#gipfel-summary")).to_contain_text("Files of a directory")
    screenshot(page, "30-form-service")
    pages.start()
    # The form was that of the default server: the service got one of its own.
    page.wait_for_url(f"{hub.url}/user/{_USER}/files/", timeout=60_000)
    expect(page.get_by_role("link", name="curve of run 7.txt")).to_be_visible()
    seen = {each["name"]: each["path"] for each in page.context.cookies() if "path" in each}
    assert seen["gipfel-service-session"] == f"/user/{_USER}/files/"
    page.goto(f"{hub.url}/hub/home")
    card = page.get_by_role("region", name="Session files")
    expect(card).to_contain_text("service files")
    expect(card.get_by_role("link", name="Open")).to_have_attribute("href", f"/user/{_USER}/files/")
    screenshot(page, "31-home-service")
    card.get_by_text("Stop", exact=True).click()
    card.get_by_role("button", name="Stop files now").click()
    expect(card).to_have_attribute("data-state", "stopped", timeout=30_000)


def test_the_home_fits_a_narrow_window_in_the_dark(
    pages: HubPages, hub: HubProcess, screenshot: Callable[[Page, str], Path]
) -> None:
    page = pages.page
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 320, "height": 900})
    page.goto(f"{hub.url}/hub/home")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    screenshot(page, "29-home-narrow-dark")


def test_the_pages_threw_nothing(pages: HubPages) -> None:
    assert not [each for each in pages.errors if "/hub/" in each.partition(": ")[0]]
