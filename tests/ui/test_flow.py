"""The main flow in a browser: log in, choose an environment, wait, see saturation in panel and widget."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_pages import HubPages, write_environment
from hub_process import HubProcess
from lab_page import LabPage, moves, traces
from package_images import write_repository
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

_USER = "ada"
_ENVIRONMENT = "debian-slim"
_CELL = "from gipfel_widgets import Saturation\nSaturation()"

Screenshot = Callable[[Page, str], Path]


@pytest.fixture(scope="module")
def pages(
    hub: HubProcess, new_page: Callable[[], Page], state: Path, image: Path | None
) -> Iterator[HubPages]:
    """The first user, logged in, with two environments: one that is good and one without its image."""
    if image:
        (state / "sources").mkdir()
        lines = (
            f'image = "{image}"\nmounts = ["{state}/sources:{state}/sources"]\n[env]\nGREETING = "grüezi"\n'
        )
        write_environment(state, _USER, _ENVIRONMENT, lines)
    write_environment(state, _USER, "lost-image", 'image = "/nowhere/lost.sqsh"\n')
    # The hub process stops the servers of users that it knows.
    hub.user(_USER)
    pages = HubPages(new_page(), hub.url)
    pages.login(_USER, hub.password)
    yield pages
    pages.page.close()


@pytest.fixture(scope="module")
def lab(pages: HubPages, hub: HubProcess, image: Path | None, screenshot: Screenshot) -> Iterator[LabPage]:
    """The first user's lab, started through the form."""
    pages.open_form()
    pages.fill(edf=_ENVIRONMENT if image else "")
    screenshot(pages.page, "02-form-filled")
    pages.start()
    lab = LabPage(pages.page)
    pages.wait_for_lab(lambda page: screenshot(page, "05-waiting"))
    lab.wait_until_ready()
    lab.decline_news()
    yield lab
    hub.user(_USER).stop_server()


def test_the_form_offers_the_users_environments(
    pages: HubPages, screenshot: Screenshot, image: Path | None
) -> None:
    pages.open_form()
    offered = pages.page.get_by_label("Environment", exact=True).locator("option").all_inner_texts()
    names = {"lost-image"} | ({_ENVIRONMENT} if image else set())
    assert names <= set(offered)
    screenshot(pages.page, "01-form")
    pages.page.emulate_media(color_scheme="dark")
    pages.open_form()
    screenshot(pages.page, "01-form-dark")
    pages.page.emulate_media(color_scheme="light")


@pytest.mark.parametrize(
    ("name", "edf", "path", "said"),
    [
        ("missing-image", "lost-image", "", "/nowhere/lost.sqsh"),
        ("missing-file", "", "/nowhere/environment.toml", "/nowhere/environment.toml"),
    ],
)
def test_a_bad_environment_is_one_line_in_the_form(
    pages: HubPages, screenshot: Screenshot, name: str, edf: str, path: str, said: str
) -> None:
    pages.open_form()
    pages.fill(edf=edf, path=path)
    pages.start()
    line = pages.alert()
    screenshot(pages.page, f"03-form-{name}")
    assert said in line
    assert "\n" not in line
    assert "Traceback" not in pages.page.content()
    again = pages.page.get_by_role("link", name="Change and retry")
    expect(pages.page.locator("#spawn_form").or_(again)).to_be_visible()


def test_the_form_works_by_keyboard_alone(
    hub: HubProcess, new_page: Callable[[], Page], screenshot: Screenshot
) -> None:
    user = hub.user("grace")
    page = new_page()
    try:
        page.goto(f"{hub.url}/hub/login?next=/hub/spawn")
        _tab_to(page, "username_input")
        page.keyboard.type("grace")
        _tab_to(page, "password_input")
        page.keyboard.type(hub.password)
        page.keyboard.press("Enter")
        expect(page.locator("#spawn_form")).to_be_visible()
        _tab_to(page, "gipfel-edf")
        _tab_to(page, "gipfel-gpus")
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type("0")
        _tab_to(page, "gipfel-time")
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type("10")
        screenshot(page, "04-form-by-keyboard")
        page.keyboard.press("Enter")
        HubPages(page, hub.url).wait_for_lab()
    finally:
        page.close()
        user.stop_server()


def _tab_to(page: Page, element: str, *, most: int = 25) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(most):
        if page.evaluate("document.activeElement?.id") == element:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach #{element}.")


def test_the_waiting_page_tells_what_happens(lab: LabPage, pages: HubPages) -> None:
    assert any("Job " in words for words in pages.told), pages.told


def test_the_panel_moves(lab: LabPage, screenshot: Screenshot) -> None:
    screenshot(lab.page, "06-lab")
    lab.close_left_sidebar()
    lab.open_panel()
    expect(lab.panel).to_contain_text("Saturation")
    assert moves(lab.panel_figure)
    screenshot(lab.page, "07-panel")
    assert {"CPU"} & {word for trace in traces(lab.panel_figure) for word in str(trace["name"]).split()}


def test_the_simulated_source_shows_four_gpus_and_says_so(lab: LabPage, screenshot: Screenshot) -> None:
    lab.panel.get_by_role("button", name="Show simulated GPUs").click()
    expect(lab.panel.get_by_role("status").first).to_contain_text("simulated")
    expect(lab.panel.locator("header")).to_contain_text("4 \N{MULTIPLICATION SIGN}")
    expect(lab.panel_figure).to_have_attribute("data-figure", "job")
    expect(lab.panel_figure).to_contain_text("imulated")
    assert moves(lab.panel_figure)
    assert any("ensor" in str(trace["name"]) for trace in traces(lab.panel_figure))
    heat = lab.panel.locator("[data-figure='heat']")
    expect(heat.locator(".heatmaplayer image")).to_be_visible()
    assert heat.evaluate("node => node.data[0].z.length") == 4
    screenshot(lab.page, "08-panel-simulated")


def test_the_widget_moves(lab: LabPage, screenshot: Screenshot) -> None:
    lab.run_cell(_CELL)
    assert moves(lab.widget_figure)
    assert any("ensor" in str(trace["name"]) for trace in traces(lab.widget_figure))
    screenshot(lab.page, "09-widget")


def test_the_dark_theme_is_followed(lab: LabPage, screenshot: Screenshot) -> None:
    lab.choose_theme("JupyterLab Dark")
    assert moves(lab.panel_figure)
    screenshot(lab.page, "10-dark")
    lab.choose_theme("JupyterLab Light")


def test_a_narrow_window_keeps_the_panel_readable(lab: LabPage, screenshot: Screenshot) -> None:
    lab.page.set_viewport_size({"width": 640, "height": 900})
    lab.page.wait_for_timeout(500)
    screenshot(lab.page, "11-narrow")
    box = lab.panel_figure.bounding_box()
    assert box
    assert box["width"] >= 300
    assert box["x"] + box["width"] <= 640
    assert moves(lab.panel_figure)
    lab.page.set_viewport_size({"width": 1400, "height": 900})


def test_the_verdict_on_the_image_is_in_panel_and_job_page(
    lab: LabPage, image: Path | None, screenshot: Screenshot
) -> None:
    if image is None:
        pytest.skip("There is no image.")
    section = lab.open_section("Job")
    line = section.locator(".jp-Gipfel-security")
    expect(line).to_contain_text("Known vulnerabilities: 1 critical")
    expect(line).to_contain_text("Policy of the site: report")
    screenshot(lab.page, "12-security-panel")
    line.get_by_role("button", name="Details of the verdict").click()
    tab = lab.page.locator(".jp-Gipfel-job-security")
    expect(tab).to_contain_text("critical: CVE-2026-1 in bash")
    expect(tab.get_by_role("row", name="CVE-2026-2")).to_contain_text("no packages are installed here")
    screenshot(lab.page, "12-security-job-page")
    lab.choose_theme("JupyterLab Dark")
    lab.page.set_viewport_size({"width": 720, "height": 900})
    screenshot(lab.page, "12-security-job-page-dark")
    lab.page.set_viewport_size({"width": 1400, "height": 900})
    lab.choose_theme("JupyterLab Light")
    lab.page.locator(".jp-Gipfel-job").get_by_role("tab", name="Overview").click()
    expect(lab.page.locator(".jp-Gipfel-job .jp-Gipfel-security")).to_contain_text("1 critical")


#: What a recorder and a gate write in a run folder; tests/cluster lets them write it.
_TRAFFIC = """\
import json, os
from gipfel_extension.telemetry.events import report_to_job
report_to_job(os.environ, "network_rate", "The job reached 40 new destinations within a minute.", "test")
row = dict(node="n", name="paste.example", protocol="tcp", reason="not in the list", address="", port=443,
           count=3, sent=0, received=0, first_ns=1, last_ns=2, allowed=False)
os.makedirs(os.environ["GIPFEL_RUN"] + "/gate", mode=0o700, exist_ok=True)
with open(os.environ["GIPFEL_RUN"] + "/gate/n-1.jsonl", "w") as file:
    file.write(json.dumps(row) + "\\n")
print("written")
"""


def test_the_operators_page_shows_vulnerabilities_and_traffic_and_ends_the_network_of_gates(
    lab: LabPage, hub: HubProcess, new_page: Callable[[], Page], image: Path | None, screenshot: Screenshot
) -> None:
    if image is None:
        pytest.skip("There is no image.")
    with hub.user(_USER).kernel() as kernel:
        done = kernel.run(_TRAFFIC)
    assert "written" in done.text, done
    hub.user("root")
    operator = HubPages(new_page(), hub.url)
    try:
        operator.login("root", hub.password)
        for scheme, width in (("light", 1400), ("dark", 1400), ("light", 320), ("dark", 320)):
            operator.page.emulate_media(color_scheme=scheme)
            operator.page.set_viewport_size({"width": width, "height": 900})
            operator.page.goto(f"{hub.url}/hub/gipfel/servers")
            row = operator.page.locator(".gipfel-servers tbody tr", has_text=_USER)
            expect(row).to_contain_text("▲ 1 critical")
            expect(row).to_contain_text("1 excepted")
            expect(row).to_contain_text("▲ network over the limit")
            expect(row).to_contain_text("gate open, 3 refused")
            # Numbers and known words alone.
            words = (image.name, "CVE-", "bash", "paste.example")
            assert not any(word in operator.page.content() for word in words)
            assert operator.page.evaluate(
                "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            )
            row.scroll_into_view_if_needed()
            screenshot(operator.page, f"12-security-operators-{scheme}-{width}")
        row.locator("summary").click()
        row.get_by_role("button", name="End the network of its gates").click()
        row = operator.page.locator(".gipfel-servers tbody tr", has_text=_USER)
        expect(row).to_contain_text("gate closed, 3 refused")
        screenshot(operator.page, "12-security-operators-ended")
        (log,) = hub.log.parent.glob("*audit*.jsonl")
        (event,) = (each for each in map(json.loads, log.open()) if each["event"] == "network")
        assert (event["user"], event["by"], event["reason"]) == (_USER, "root", "network of its gates ended")
    finally:
        operator.page.close()


def test_save_this_environment_is_in_the_menu_and_says_why_it_can_not(
    lab: LabPage, image: Path | None, screenshot: Screenshot
) -> None:
    if image is None:
        pytest.skip("There is no image.")
    page = lab.page
    page.locator(".lm-MenuBar-item", has_text="Gipfel").click()
    page.locator(".lm-Menu").get_by_text("Save This Environment…").click()
    dialog = page.locator(".jp-Dialog")
    screenshot(page, "13-save-environment")
    dialog.locator("input").fill("../outside")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_contain_text("is outside of the server's root")
    dialog.locator(".jp-Dialog-button").last.click()
    expect(dialog).to_have_count(0)
    page.locator(".lm-MenuBar-item", has_text="Gipfel").click()
    page.locator(".lm-Menu").get_by_text("Save This Environment…").click()
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_contain_text("Nothing was installed with pip or apt")
    dialog.locator(".jp-Dialog-button").last.click()
    expect(dialog).to_have_count(0)


_INSTALL = """\
import subprocess
apt = "apt-get -qq -o APT::Sandbox::User=root"
script = f'''set -e
echo "deb [trusted=yes] file:{folder} ./" > /etc/apt/sources.list.d/own.list
{apt} update -o Dir::Etc::sourcelist=/dev/null
{apt} install -y gipfel-hello'''
done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
print(done.returncode, done.stdout, done.stderr)
"""


def test_what_apt_has_installed_from_a_repository_is_saved_from_the_menu(
    lab: LabPage, hub: HubProcess, state: Path, image: Path | None, screenshot: Screenshot
) -> None:
    if image is None:
        pytest.skip("There is no image.")
    sources = state / "sources"
    write_repository(sources)
    user = hub.user(_USER)
    with user.kernel() as kernel:
        done = kernel.run(f"folder = {str(sources)!r}\n{_INSTALL}")
    assert done.text.startswith("0 "), done
    page = lab.page
    page.locator(".lm-MenuBar-item", has_text="Gipfel").click()
    page.locator(".lm-Menu").get_by_text("Save This Environment…").click()
    dialog = page.locator(".jp-Dialog")
    dialog.locator("input").fill("saved")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_contain_text("1 package was installed")
    expect(dialog).to_contain_text("gipfel-hello=1.2-3")
    expect(dialog.locator("pre")).to_contain_text(f"--mount {sources}")
    screenshot(page, "13-saved-environment")
    dialog.locator(".jp-Dialog-button").last.click()
    (file,) = (state / "users" / _USER).rglob("saved/Containerfile")
    assert "gipfel-hello=1.2-3" in file.read_text()


def test_the_page_threw_nothing(lab: LabPage) -> None:
    assert not lab.errors
