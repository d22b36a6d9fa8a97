"""End of a server in a browser: notices in JupyterLab, more time, and the administrators' page."""

import os
import pwd
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_pages import HubPages
from hub_process import HubProcess, proxy_folder
from lab_page import LabPage
from playwright.sync_api import Page, Route, expect
from test_hub_pages import check, serious_findings

pytestmark = pytest.mark.browser

_PROJECT = str(Path(__file__).resolve().parents[2] / "jupyterhub_config.py")
_CONFIG = """\
exec(compile(open({project!r}).read(), {project!r}, 'exec'), {{**globals(), '__file__': {project!r}}})
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.Authenticator.allow_all = True
# Sees JupyterHub's own page for administrators, which Gipfel's administrators don't get.
c.Authenticator.admin_users = {{"chief"}}
# A server that counts as idle after half a minute.
c.Spawner.args = ["--GipfelExtension.time_left_notices=1", "--GipfelExtension.report_interval=1"]
"""
_ENVIRONMENT = {
    "GIPFEL_SCHEDULER": "local",
    "GIPFEL_CLUSTER": "workstation",
    "GIPFEL_EXTEND_BY": "1:00:00",
    "GIPFEL_IDLE_LIMIT": "100",
    "GIPFEL_IDLE_WARNING": "70",
}

# By default the administrator of a hub of one machine.
_OWNER = pwd.getpwuid(os.getuid()).pw_name
Screenshot = Callable[[Page, str], Path]


@pytest.fixture(scope="module")
def password() -> str:
    return secrets.token_urlsafe(18)


@pytest.fixture(scope="module")
def hub(own_state: Path, password: str) -> Iterator[HubProcess]:
    """A hub whose servers end soon."""
    config = own_state / "config.py"
    config.write_text(_CONFIG.format(project=_PROJECT, password=password))
    with HubProcess(own_state, _ENVIRONMENT, proxy=proxy_folder(), config=config) as process:
        process.password = password
        yield process


def _with_notice(route: Route) -> None:
    """Add a notice that is due at once: a server leaves those of its first minutes out."""
    answer = route.fetch()
    if answer.ok:
        lifetime = answer.json()
        route.fulfill(response=answer, json=lifetime | {"notices_s": [540, *lifetime["notices_s"]]})
    else:
        route.fulfill(response=answer)


@pytest.fixture(scope="module")
def lab(hub: HubProcess, new_page: Callable[[], Page]) -> LabPage:
    """A lab with eight minutes left."""
    hub.user("ada")
    pages = HubPages(new_page(), hub.url)
    pages.page.route("**/gipfel/lifetime?*", _with_notice)
    pages.login("ada", hub.password)
    pages.fill(time="8")
    pages.start()
    lab = LabPage(pages.page)
    pages.wait_for_lab()
    lab.wait_until_ready()
    lab.decline_news()
    return lab


def test_the_lab_says_how_much_time_is_left_and_extends_it(lab: LabPage, screenshot: Screenshot) -> None:
    notice = lab.page.locator(".Toastify__toast", has_text="This server's time ends at")
    expect(notice).to_be_visible()
    expect(notice).to_contain_text(re.compile(r"ends at \d\d:\d\d P[DS]T\. Save your work\."))
    lab.open_panel()
    expect(lab.panel.locator("header")).to_contain_text("7 min left")
    screenshot(lab.page, "30-time-left")
    notice.get_by_role("button", name="Extend by 1 h").click()
    expect(notice).to_have_count(0)
    expect(lab.panel.locator("header")).to_contain_text("1 h 7 min left")


def test_an_idle_lab_is_warned_and_can_be_kept(lab: LabPage, screenshot: Screenshot) -> None:
    notice = lab.page.locator(".Toastify__toast", has_text="Nothing has run here since")
    expect(notice).to_be_visible(timeout=90_000)
    screenshot(lab.page, "31-idle")
    lab.choose_theme("JupyterLab Dark")
    expect(lab.page.locator("#jupyterlab-splash")).to_have_count(0)
    screenshot(lab.page, "31-idle-dark")
    notice.get_by_role("button", name="Keep it running").click()
    expect(notice).to_have_count(0)


def test_the_homes_card_shows_what_the_lab_shares_and_extends_the_session(
    hub: HubProcess, lab: LabPage, screenshot: Screenshot
) -> None:
    lab.choose_theme("JupyterLab Light")
    lab.open_section("Saturation").get_by_role("button", name="Show simulated GPUs").click()
    expect(lab.panel.locator(".jp-Gipfel-largest")).to_contain_text("Most is lost")
    home = lab.page.context.new_page()
    home.goto(f"{hub.url}/hub/home")
    card = home.get_by_role("region", name="Session default")
    expect(card).to_have_attribute("data-state", "running")
    # Nothing of the use of GPUs is shown without the user's consent.
    assert card.locator(".gipfel-card-score").count() == 0
    consent = lab.panel.get_by_label("Share this server's score")
    consent.click()
    expect(consent).to_be_checked()
    score = re.compile(r"\d+ of 100 · .+ · simulated")
    end = time.monotonic() + 90
    while not score.search(card.inner_text()):
        assert time.monotonic() < end, card.inner_text()
        home.wait_for_timeout(2000)
        home.reload()
    spark = card.get_by_role("img", name=re.compile("SM"))
    expect(spark.locator("polyline")).to_have_attribute("points", re.compile(r"\d"))
    assert serious_findings(home) == []
    home.emulate_media(color_scheme="dark")
    home.reload()
    expect(spark).to_be_visible()
    screenshot(home, "32-home-score-dark")
    home.emulate_media(color_scheme="light")
    home.reload()
    expect(spark).to_be_visible()
    screenshot(home, "32-home-score")
    left = card.locator("time")
    expect(left).to_contain_text("1 h")
    card.get_by_role("button", name="Extend by 1 h").click()
    expect(left).to_contain_text("2 h")
    expect(home.locator("#gipfel-problem")).to_be_hidden()
    home.close()


def test_an_administrator_stops_a_server_by_keyboard(
    hub: HubProcess, lab: LabPage, new_page: Callable[[], Page], screenshot: Screenshot
) -> None:
    page = new_page()
    page.goto(f"{hub.url}/hub/login?next=/hub/home")
    page.get_by_label("Username").fill(_OWNER)
    page.get_by_label("Password").fill(hub.password)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Servers", exact=True).click()
    row = page.locator(".gipfel-servers tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("ada")
    expect(row).to_contain_text("2 h")
    # Its script filters, and sorts by a column.
    page.get_by_label("Filter").fill("no such user")
    expect(row).to_be_hidden()
    page.get_by_label("Filter").fill("ADA")
    expect(row).to_be_visible()
    page.get_by_role("button", name="Time left").click()
    expect(page.get_by_role("columnheader", name="Time left")).to_have_attribute("aria-sort", "ascending")
    _shots(page, screenshot)
    page.locator(".gipfel-servers summary").focus()
    page.keyboard.press("Enter")
    button = page.get_by_role("button", name="Stop ada now")
    expect(button).to_be_visible()
    page.keyboard.press("Tab")
    expect(button).to_be_focused()
    screenshot(page, "32-servers-stop")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Servers")
    end = time.monotonic() + 30
    while page.get_by_text("No servers are running.").count() == 0:
        assert time.monotonic() < end
        page.wait_for_timeout(500)
        page.reload()
    page.close()
    # Who is not an administrator reads how to become one.
    answer = lab.page.request.get(f"{hub.url}/hub/gipfel/servers")
    assert answer.status == 403
    assert "GIPFEL_ADMINS" in answer.text()


def test_jupyterhubs_page_for_administrators_has_no_serious_findings(
    hub: HubProcess, new_page: Callable[[], Page], screenshot: Screenshot
) -> None:
    page = new_page()
    page.goto(f"{hub.url}/hub/login?next=/hub/home")
    page.get_by_label("Username").fill("chief")
    page.get_by_label("Password").fill(hub.password)
    page.get_by_role("button", name="Sign in").click()
    check(page, f"{hub.url}/hub/admin", then=_open_user)
    screenshot(page, "32-admin")
    page.close()


def _open_user(page: Page) -> None:
    expect(page.locator("#react-admin-hook")).to_contain_text("chief")


def _shots(page: Page, screenshot: Screenshot) -> None:
    """Light, dark and narrow; nothing may be wider than the window."""
    screenshot(page, "32-servers")
    page.emulate_media(color_scheme="dark")
    page.reload()
    screenshot(page, "32-servers-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 400, "height": 900})
    page.reload()
    screenshot(page, "32-servers-narrow")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.set_viewport_size({"width": 1400, "height": 900})
    page.reload()


def test_the_page_threw_nothing(lab: LabPage) -> None:
    assert not lab.errors
