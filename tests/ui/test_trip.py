"""A first visit by keyboard: login, form, lab, the first sentence of a score, a launch, a batch job, home.

Then the same session by mouse in other time zones, widths and colours.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_pages import HubPages
from hub_process import HubProcess
from lab_page import LabPage
from notebook_files import write_notebook
from playwright.sync_api import Browser, Locator, Page, expect
from test_hub_pages import AXE, VIOLATIONS

pytestmark = pytest.mark.browser

_USER = "tripper"
_LIMIT_MS = 120_000
_PROGRAM = """\
import torch, torch.distributed as dist
from gipfel_widgets import log
dist.init_process_group("gloo")
for step in range(1, 21):
    total = torch.ones(1)
    dist.all_reduce(total)
    log(step=step, total_steps=20, loss=2 / step)
print(f"the sum is {total.item():g}", flush=True)
dist.destroy_process_group()
"""
#: Time zone of the visit by keyboard, and its name as people read it.
_ZONE = os.environ.get("GIPFEL_TRIP_ZONE", "UTC")
_ZONE_NAME = {"UTC": "UTC", "Europe/Zurich": r"CES?T", "America/Los_Angeles": r"P[SD]T"}[_ZONE]
#: Of another visit by mouse: time zone, its name as people read it, width, colours.
_VISITS: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("Europe/Zurich", r"CES?T", 1400, {"color_scheme": "dark"}),
    ("America/Los_Angeles", r"P[SD]T", 320, {"forced_colors": "active"}),
)
_TABS = ("Saturation", "Workloads", "Runs", "Vetting", "Job")
#: The third is a window of 1400 by 900 pixels at 200 % zoom.
_SIZES = ((2560, 1200), (1400, 900), (700, 450), (320, 800))


#: Script that returns true once the tabs of the lab have been the same for two seconds.
_SETTLED = """() => {
  const tabs = document.querySelectorAll('#jp-main-dock-panel .lm-TabBar-tab, .jp-SideBar .lm-TabBar-tab');
  const seen = [...tabs].map(each => each.className + each.textContent).join();
  if (window.tabsSeen !== seen) {
    [window.tabsSeen, window.tabsSince] = [seen, performance.now()];
  }
  return performance.now() - window.tabsSince > 2000;
}"""


class Trip:
    """One way through the pages, by keyboard."""

    def __init__(self, page: Page, hub: HubProcess) -> None:
        self.page = page
        self.hub = hub
        self.lab = LabPage(page)
        self.panel = self.lab.panel

    def press(self, control: Locator, *, most: int = 150) -> None:
        """Go to a control with Tab, and press it."""
        expect(control).to_be_visible()
        self._tab_to(control, most)
        self.page.keyboard.press("Enter")

    def _tab_to(self, control: Locator, most: int) -> None:
        for _ in range(most):
            if control.evaluate("each => each === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not reach {control}.")

    def command(self, name: str) -> None:
        """Choose a command in the palette."""
        field = self.page.locator(".lm-CommandPalette-input")
        item = self.page.locator(".lm-CommandPalette-item.lm-mod-active")
        for limit_ms in (5_000, 10_000, 30_000):
            self.page.keyboard.press("ControlOrMeta+Shift+c")
            # What has just been opened may take the focus once more. So the name is written as one input,
            # and only into the palette: typed keys would be shortcuts of a notebook.
            with contextlib.suppress(AssertionError):
                expect(field).to_be_focused(timeout=limit_ms)
                self.page.keyboard.insert_text(name)
                expect(item).to_contain_text(name, timeout=limit_ms)
                expect(field).to_be_focused(timeout=limit_ms)
                self.page.keyboard.press("Enter")
                expect(field).to_be_hidden(timeout=limit_ms)
                return
            self.page.keyboard.press("Escape")
        raise AssertionError(f"The palette does not offer {name!r}.")

    def write(self, field: Locator, text: str) -> None:
        """Write into a field of a form."""
        self._tab_to(field, 40)
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.type(text)

    def start(self) -> None:
        """Log in, fill the form, and follow the waiting page to the lab."""
        page = self.page
        page.goto(f"{self.hub.url}/hub/login?next=/hub/spawn")
        self.write(page.get_by_label("Username"), _USER)
        self.write(page.get_by_label("Password"), self.hub.password)
        self.press(page.get_by_role("button", name="Sign in"))
        expect(page.locator("#spawn_form")).to_be_visible()
        self.write(page.get_by_label("GPUs per node"), "0")
        self.write(page.get_by_label("Time", exact=True), "30")
        self.press(page.get_by_role("button", name="Start", exact=True))
        HubPages(page, self.hub.url).wait_for_lab()

    def understand(self) -> None:
        """Read the first sentence of a score, and what the score is."""
        self.lab.wait_until_ready()
        self.lab.decline_news()
        tour = self.panel.get_by_role("region", name="Tour")
        if tour.count():
            self.press(tour.get_by_role("button", name="Skip"))
        source = self.panel.get_by_role("button", name="Show a simulated source")
        if source.count():
            self.press(source)
        sentence = self.panel.locator(".jp-Gipfel-largest")
        # Before there are samples for a score, it says what comes next.
        expect(sentence).to_contain_text(re.compile(r"Measuring 4 GPUs\. A score from 0|Most is lost"))
        expect(sentence).to_contain_text(re.compile(r"Most is lost [\w ]+: \d+ points\. (Advice|Profile)"))
        # A notice of the end is not due in the first quarter of a server's half an hour.
        expect(self.page.locator(".Toastify__toast", has_text="time ends")).to_have_count(0)
        expect(self.panel.locator(".jp-Gipfel-score")).to_contain_text(re.compile(r"\d+ ?of 100 · \w+"))
        help_ = self.panel.get_by_role("button", name="Explain: score")
        self.press(help_)
        expect(help_).to_have_attribute("aria-expanded", "true")
        note = self.panel.locator("[popover]:popover-open")
        expect(note).to_contain_text("from 0 to 100")
        box = note.bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= self.page.viewport_size["width"]
        self.page.keyboard.press("Escape")
        expect(help_).to_have_attribute("aria-expanded", "false")

    def launch(self) -> None:
        """Start a training of two processes from the launcher's tile, and see it end in the panel."""
        tile = self.page.locator(".jp-LauncherCard[data-category='Gipfel']", has_text="Training Launch")
        self.press(tile)
        form = self.page.locator(".jp-OutputArea").first
        start = form.get_by_role("button", name="Launch", exact=True)
        expect(start).to_be_visible()
        self.write(form.get_by_label("File"), "train.py")
        self.write(form.get_by_label("GPUs per node"), "2")
        self.press(start)
        log = self.page.locator(".jp-Gipfel-widget article").first.get_by_role("log")
        expect(log).to_contain_text("the sum is 2")

    def batch(self) -> None:
        """Run a notebook as a batch job, and open its result from the panel's list of workloads."""
        page = self.page
        self.command("Open from Path")
        expect(page.locator(".jp-Dialog input")).to_be_focused()
        page.keyboard.type("greet.ipynb")
        page.keyboard.press("Enter")
        notebook = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        expect(notebook).to_contain_text('print("Hello')
        # Until its kernel is ready, an opened notebook takes the focus from the palette.
        idle = notebook.locator(".jp-NotebookPanel-toolbar .jp-Notebook-ExecutionIndicator")
        expect(idle).to_have_attribute("data-status", "idle")
        page.wait_for_function(
            "document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden)').contains(document.activeElement)"
        )
        self.command("Run as Batch Job")
        self.press(page.get_by_role("button", name="Submit"))
        self.press(self.panel.get_by_role("tab", selected=True))
        page.keyboard.press("ArrowRight")
        works = self.panel.get_by_role("tabpanel", name="Workloads")
        expect(works.locator("li[data-state='COMPLETED']")).to_contain_text(
            re.compile(r"\b(\d+) of \1 cells")
        )
        expect(works.locator("article[data-status='completed']")).to_contain_text("2 ranks")
        expect(works).to_contain_text(re.compile(rf"\d\d:\d\d {_ZONE_NAME}"))
        self.press(works.get_by_role("button", name=re.compile("^Open: ")))
        expect(notebook.locator(".jp-OutputArea-output", has_text="Hello, Gipfel!")).to_be_visible()
        expect(idle).to_have_attribute("data-status", "idle")

    def go_home(self) -> Page:
        """Open the hub's home, and return its page."""
        with self.page.context.expect_page() as opened:
            self.command("Hub Control Panel")
        return opened.value


@pytest.fixture
def trip(hub: HubProcess, browser: Browser) -> Iterator[Trip]:
    """The first visit of a user."""
    user = hub.user(_USER)
    context = browser.new_context(viewport={"width": 1400, "height": 900}, timezone_id=_ZONE)
    context.set_default_timeout(_LIMIT_MS)
    yield Trip(context.new_page(), hub)
    context.close()
    for _, _, width, _ in _VISITS:
        hub.call("DELETE", f"/users/{_USER}/servers/second-{width}", json={"remove": True})
    if user.server() is not None:
        user.stop_server()


def test_from_login_to_the_first_sentence_a_launch_a_batch_notebook_and_home(
    trip: Trip, state: Path, screenshot: Callable[[Page, str], Path]
) -> None:
    trip.start()
    trip.understand()
    screenshot(trip.page, "60-first-sentence")
    directory = state / "users" / _USER
    (directory / "train.py").write_text(_PROGRAM)
    write_notebook(directory / "greet.ipynb", body='print("Hello, Gipfel!")')
    trip.launch()
    screenshot(trip.page, "66-launch")
    trip.batch()
    screenshot(trip.page, "67-result")
    home = trip.go_home()
    card = home.get_by_role("region", name="Session default")
    expect(card).to_have_attribute("data-state", "running")
    expect(card.locator("time").first).to_have_attribute("title", re.compile(f"{_ZONE_NAME}$"))
    home.add_script_tag(path=AXE)
    _assert_accessible(home, "document", "home")
    screenshot(home, "68-home")
    home.close()
    _look_at_the_panel(trip.page, trip, screenshot)
    for zone, name, width, look in _VISITS:
        context = trip.page.context.browser.new_context(
            viewport={"width": width, "height": 900},
            timezone_id=zone,
            **look,
        )
        context.set_default_timeout(_LIMIT_MS)
        page = context.new_page()
        _start_by_mouse(page, trip.hub, name, screenshot)
        _visit_by_mouse(page, trip.hub, name, screenshot)
        context.close()
    assert trip.lab.errors == []


def _start_by_mouse(page: Page, hub: HubProcess, zone: str, screenshot: Callable[[Page, str], Path]) -> None:
    """Log in, fill the form of a second session, and wait for its page; times are in a time zone."""
    width = page.viewport_size["width"]
    page.goto(f"{hub.url}/hub/login?next=/hub/spawn/{_USER}/second-{width}")
    for label, text in (("Username", _USER), ("Password", hub.password)):
        page.get_by_label(label).click()
        page.keyboard.type(text)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("group", name="Presets").get_by_role("button", name="CPU only").click()
    expect(page.locator("#gipfel-summary")).to_contain_text("no GPU on local")
    _assert_narrow_enough(page)
    screenshot(page, f"69-form-{width}")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator("#progress-details > summary")).to_have_text(re.compile(rf"Event log \({zone}\)"))
    _assert_narrow_enough(page)
    screenshot(page, f"69-waiting-{width}")


def _visit_by_mouse(page: Page, hub: HubProcess, zone: str, screenshot: Callable[[Page, str], Path]) -> None:
    """Follow the home's card to the lab, read panel and job page, and return; times are in a time zone."""
    width = page.viewport_size["width"]
    page.goto(f"{hub.url}/hub/home")
    expect(page.get_by_role("region", name=f"Session second-{width}")).to_be_visible()
    card = page.get_by_role("region", name="Session default")
    expect(card.locator("time").first).to_have_attribute("title", re.compile(f"{zone}$"))
    _assert_narrow_enough(page)
    screenshot(page, f"69-home-{width}")
    card.get_by_role("link", name="Connect").click()
    page.wait_for_url(re.compile("/lab"))
    expect(page.locator("#jupyterlab-splash")).to_have_count(0)
    page.locator(".jp-SideBar .lm-TabBar-tab[data-id='gipfel-panel']").wait_for()
    panel = page.locator("#gipfel-panel, #gipfel-wide-panel").locator("visible=true")
    # What the lab restores a moment later may cover the panel, and a click on its tab would hide it.
    page.wait_for_function(_SETTLED)
    if not panel.count():
        page.locator(".jp-SideBar .lm-TabBar-tab[data-id='gipfel-panel']").click()
    panel.get_by_role("tab", name="Workloads").click()
    expect(panel.locator("article[data-status='completed']")).to_contain_text(
        re.compile(rf"\d\d:\d\d {zone}")
    )
    _assert_fits(panel, f"{width} pixels")
    screenshot(page, f"69-panel-{width}")
    panel.get_by_role("tab", name="Job").click()
    panel.get_by_role("button", name=re.compile("Open")).last.click()
    job = page.locator(".jp-Gipfel-job")
    expect(job.locator(".jp-Gipfel-job-fresh")).to_contain_text(re.compile(rf"\d\d:\d\d:\d\d {zone}"))
    _assert_fits(job, f"the job page at {width} pixels")
    screenshot(page, f"69-job-{width}")
    page.add_script_tag(path=AXE)
    _assert_accessible(page, "'.jp-Gipfel-job'", f"job page at {width} pixels")


def _assert_accessible(page: Page, where: str, what: str) -> None:
    found = page.evaluate(VIOLATIONS.replace("document", where))
    assert not found, f"{what}: {json.dumps(found, indent=1)}"


def _assert_narrow_enough(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def _look_at_the_panel(page: Page, trip: Trip, screenshot: Callable[[Page, str], Path]) -> None:
    """Open each tab: nothing serious for axe-core, and nothing wider than the panel at any size."""
    page.add_script_tag(path=AXE)
    for name in _TABS:
        trip.lab.open_section(name)
        found = page.evaluate(VIOLATIONS.replace("document", "'#gipfel-panel'"))
        assert not found, f"{name}: {json.dumps(found, indent=1)}"
        _assert_fits(trip.panel, name)
        screenshot(page, f"61-panel-{name.lower()}")
    trip.lab.open_section("Saturation")
    page.emulate_media(forced_colors="active")
    screenshot(page, "62-forced-colours")
    page.emulate_media(forced_colors="none")
    for width, height in _SIZES:
        page.set_viewport_size({"width": width, "height": height})
        # Without room for a sidebar, the panel opens in the main area.
        shown = page.locator("#gipfel-wide-panel") if width < 640 else trip.panel
        expect(shown).to_be_visible()
        _assert_fits(shown, f"{width} pixels")
        screenshot(page, f"63-lab-{width}")
    page.set_viewport_size({"width": 1400, "height": 900})
    for command, kind in (("Open the Table of Runs", "runs"), ("Open the Job Page", "job")):
        trip.command(command)
        main = page.locator("#jp-main-dock-panel")
        expect(main.locator({"runs": ".jp-Gipfel-runs", "job": ".jp-Gipfel-job"}[kind]).first).to_be_visible()
        found = page.evaluate(VIOLATIONS.replace("document", "'#jp-main-dock-panel'"))
        assert not found, f"{kind}: {json.dumps(found, indent=1)}"
        screenshot(page, f"64-{kind}")
    trip.lab.choose_theme("JupyterLab Dark")
    screenshot(page, "65-dark")
    trip.lab.choose_theme("JupyterLab Light")


def _assert_fits(panel: Locator, what: str) -> None:
    wide, room = panel.evaluate("each => [each.scrollWidth, each.clientWidth]")
    assert wide <= room + 1, f"{what}: the panel is {wide} pixels wide in {room}."
