"""The hub's home in a browser: a session from its card to a row that is started again, narrow and dark."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_pages import HubPages
from hub_process import HubProcess, proxy_folder
from hub_user import HubUser
from lab_page import LabPage
from many_nodes import record_node
from playwright.sync_api import Page, expect
from test_hub_pages import serious_findings

from gipfel_extension.cli.report import report_link

pytestmark = pytest.mark.browser

_USER = "irma"
_CONFIG = Path(__file__).resolve().parents[2] / "jupyterhub_config.py"
#: A site that lets one user see another's servers.
_WITH_A_COLLEAGUE = f"""load_subconfig({str(_CONFIG)!r})
role = {{"name": "colleague", "users": ["otto"], "scopes": ["access:servers!user=irma"]}}
c.JupyterHub.load_roles = [*c.JupyterHub.load_roles, role]
"""


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
    expect(page.locator("#gipfel-usage")).to_contain_text("GPU hours")
    expect(page.locator("#gipfel-free")).to_contain_text("local")
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


_PIPE = """
name: pipe
title: Pipe
parts:
  pipe:
    command:
      - ${python}
      - -c
      - "import socketserver as s, sys; s.UnixStreamServer(sys.argv[1], s.BaseRequestHandler).serve_forever()"
      - ${socket}
    path: raw
    ready: {accepts: connections}
"""


_PIPE_API = f"/hub/api/users/{_USER}/servers/pipe"


def _start_pipe(owner: HubUser, folder: Path) -> None:
    blueprint = folder / "pipe.yaml"
    blueprint.write_text(_PIPE)
    assert owner._client.post(_PIPE_API, json={"service": str(blueprint)}).status_code in {201, 202}


def test_a_service_is_shared_and_its_access_ended_by_click(
    pages: HubPages, hub: HubProcess, tmp_path: Path, screenshot: Callable[[Page, str], Path]
) -> None:
    owner, other = hub.user(_USER), hub.user("otto")
    _start_pipe(owner, tmp_path)
    page = pages.page
    page.goto(f"{hub.url}/hub/home")
    card = page.get_by_role("region", name="Session pipe")
    expect(card).to_have_attribute("data-state", "running", timeout=60_000)
    card.locator("summary", has_text="Share").click()
    card.get_by_label("Name of the user or group").fill("otto")
    card.get_by_role("button", name="Share pipe").click()
    expect(card).to_contain_text("Shared with user otto", timeout=30_000)
    screenshot(page, "33-home-shared")
    assert "Shared with you" in other.home_page(hub.password)
    card.get_by_role("button", name="End the access of user otto to pipe").click()
    expect(card).not_to_contain_text("Shared with", timeout=30_000)
    assert "Shared with you" not in other.home_page(hub.password)
    owner._client.delete(_PIPE_API)
    expect(card).to_have_attribute("data-state", "stopped", timeout=30_000)


def test_a_service_is_shared_from_the_panel_and_its_access_ended_by_click(
    pages: HubPages, hub: HubProcess, tmp_path: Path, screenshot: Callable[[Page, str], Path]
) -> None:
    owner, other = hub.user(_USER), hub.user("otto")
    _start_pipe(owner, tmp_path)
    pages.open_form()
    pages.fill()
    pages.start()
    pages.wait_for_lab()
    lab = LabPage(pages.page)
    lab.wait_until_loaded()
    lab.decline_news()
    lab.choose_theme("JupyterLab Light")
    lab.open_panel()
    card = lab.open_section("Workloads").locator("[data-workload='service:pipe']")
    expect(card).to_have_attribute("data-state", "running", timeout=60_000)
    card.get_by_role("button", name="Share: service pipe").click()
    dialog = pages.page.get_by_role("dialog")
    # Its own user needs no share: the form keeps what was filled in.
    dialog.get_by_label("Name").fill(_USER)
    dialog.get_by_role("button", name="Share").click()
    expect(dialog.get_by_role("alert")).to_contain_text("yours already", timeout=30_000)
    dialog.get_by_label("Name").fill("otto")
    dialog.get_by_label("For").select_option(label="8 hours")
    screenshot(pages.page, "34-panel-share")
    dialog.get_by_role("button", name="Share").click()
    expect(card).to_contain_text("Shared with the user otto until", timeout=30_000)
    expect(card.locator("time[datetime]").last).to_have_text(re.compile(r"until .*P[SD]T"))
    assert serious_findings(pages.page, "#gipfel-panel") == [], "a shared service"
    screenshot(pages.page, "34-panel-shared-light")
    lab.choose_theme("JupyterLab Dark")
    screenshot(pages.page, "34-panel-shared-dark")
    assert "Shared with you" in other.home_page(hub.password)
    card.get_by_role("button", name="End access: of otto to pipe").click()
    expect(card).not_to_contain_text("Shared with", timeout=30_000)
    assert "Shared with you" not in other.home_page(hub.password)
    assert not lab.errors
    owner._client.delete(_PIPE_API)
    owner.stop_server()


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


def test_a_colleague_with_rights_opens_the_link_to_a_run_and_others_do_not(
    own_state: Path, new_page: Callable[[], Page], screenshot: Callable[[Page, str], Path]
) -> None:
    telemetry = own_state / "users" / _USER / ".gipfel/runs/made-1/telemetry"
    telemetry.mkdir(parents=True)
    record_node(telemetry, 60)
    config = own_state / "colleague.py"
    config.write_text(_WITH_A_COLLEAGUE)
    environment = {"GIPFEL_SCHEDULER": "local", "GIPFEL_CLUSTER": "workstation"}
    with HubProcess(own_state, environment, proxy=proxy_folder(), config=config) as hub:
        hub.user(_USER)
        owner = HubPages(new_page(), hub.url)
        owner.login(_USER, hub.password)
        owner.fill()
        owner.start()
        owner.wait_for_lab()
        link = report_link(f"{hub.url}/user/{_USER}", "made-1")
        for name, text in (("otto", "Score"), ("eve", "403")):
            hub.user(name)
            other = HubPages(new_page(), hub.url)
            other.login(name, hub.password)
            other.page.goto(link)
            # JupyterHub asks whether another user's server may know who opens it.
            confirm = other.page.get_by_role("button", name="Authorize")
            heading = other.page.get_by_role("heading", name=text)
            expect(confirm.or_(heading).first).to_be_visible()
            if confirm.count():
                confirm.click()
            expect(heading.first).to_be_visible()
            screenshot(other.page, f"31-run-link-{name}")
            other.page.close()
        owner.page.close()
