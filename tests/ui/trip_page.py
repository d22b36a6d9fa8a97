"""A first visit, from login to home, by keyboard or by mouse, in any time zone, window and colours."""

import contextlib
import itertools
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub_pages import HubPages
from hub_process import HubProcess
from lab_page import LabPage
from notebook_files import write_notebook
from playwright.sync_api import Browser, Locator, Page, expect
from test_hub_pages import serious_findings

#: Time zones, with their names as people read them.
ZONES = {"UTC": "UTC", "Europe/Zurich": r"CES?T", "America/Los_Angeles": r"P[SD]T"}
#: Width, height and device pixels per pixel; the last is a window of 1400 by 900 pixels at 200 % zoom.
WINDOWS = {"1400": (1400, 900, 1), "320": (320, 800, 1), "2560": (2560, 1200, 1), "zoom": (700, 450, 2)}
COLORS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "forced": {"forced_colors": "active"},
}
HANDS = ("keyboard", "mouse")
_LIMIT_MS = 60_000
_SIDEBAR_PX = 640
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
#: A lab that follows the browser's colours.
_THEME = {"theme": "JupyterLab Light", "adaptive-theme": True}


@dataclass(frozen=True)
class Way:
    """How somebody goes: by keyboard or mouse, and with which browser."""

    hand: str
    zone: str
    window: str
    colors: str

    def __str__(self) -> str:
        return "-".join((self.hand, self.zone.rpartition("/")[2], self.window, self.colors)).lower()


def all_ways() -> list[Way]:
    """Return every way; in the first 12, each value of a dimension meets each of every other."""
    zones = list(ZONES)
    first = [
        Way(HANDS[(j + i // 2) % 2], zones[(i + j) % 3], window, colors)
        for i, window in enumerate(WINDOWS)
        for j, colors in enumerate(COLORS)
    ]
    every = [Way(*each) for each in itertools.product(HANDS, ZONES, WINDOWS, COLORS)]
    return list(dict.fromkeys((*first, *every)))


class Trip:
    """One person's way through the pages."""

    def __init__(
        self, way: Way, hub: HubProcess, state: Path, browser: Browser, look: Callable[[Page, str], object]
    ) -> None:
        width, height, scale = WINDOWS[way.window]
        self._context = browser.new_context(
            viewport={"width": width, "height": height},
            device_scale_factor=scale,
            timezone_id=way.zone,
            **COLORS[way.colors],
        )
        self._context.set_default_timeout(_LIMIT_MS)
        self.way = way
        self.name = str(way).replace("-", "")
        self.zone = ZONES[way.zone]
        self.hub = hub
        self.page = self._context.new_page()
        self.lab = LabPage(self.page)
        self.seconds_to_sentence = 0.0
        self._look = look
        self._home = state / "users" / self.name

    @property
    def panel(self) -> Locator:
        """The panel where it is shown: in the sidebar, or in the main area of a narrow window."""
        return self.page.locator("#gipfel-panel, #gipfel-wide-panel").locator("visible=true")

    @property
    def by_mouse(self) -> bool:
        """Whether the mouse presses what is pressed."""
        return self.way.hand == "mouse"

    @property
    def is_narrow(self) -> bool:
        """Whether the window has no room for a sidebar."""
        return WINDOWS[self.way.window][0] < _SIDEBAR_PX

    def close(self) -> None:
        """Close the browser's window."""
        self._context.close()

    def stop_server(self) -> None:
        """Stop the server, and wait until it has stopped."""
        user = self.hub.user(self.name)
        if user.server() is not None:
            user.stop_server()

    def go(self) -> None:
        """Go the whole way, and look at each page."""
        self.start()
        self.understand()
        self.launch()
        self.batch()
        self.look_at_job()
        self.go_home()
        assert self.lab.errors == []

    def press(self, control: Locator, *, most: int = 150) -> None:
        """Click a control, or go to it with Tab and press Enter."""
        expect(control).to_be_visible()
        if self.by_mouse:
            control.click()
        else:
            self._tab_to(control, most)
            self.page.keyboard.press("Enter")

    def _tab_to(self, control: Locator, most: int) -> None:
        for _ in range(most):
            if control.evaluate("each => each === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not reach {control}.")

    def write(self, field: Locator, text: str) -> None:
        """Write into a field of a form."""
        if self.by_mouse:
            field.click()
        else:
            self._tab_to(field, 40)
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.type(text)

    def command(self, name: str) -> None:
        """Choose a command in the palette by keyboard, in the menu File by mouse."""
        if self.by_mouse:
            self.page.locator(".lm-MenuBar-item", has_text="File").click()
            self.page.locator(".lm-Menu-item", has_text=name).last.click()
        else:
            self.call(name)

    def call(self, name: str) -> None:
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

    def start(self) -> None:
        """Log in, fill the form, and follow the waiting page to the lab."""
        page = self.page
        page.goto(f"{self.hub.url}/hub/login?next=/hub/spawn")
        self.look_at("login")
        self.write(page.get_by_label("Username"), self.name)
        self.write(page.get_by_label("Password"), self.hub.password)
        self.press(page.get_by_role("button", name="Sign in"))
        expect(page.locator("#spawn_form")).to_be_visible()
        if self.by_mouse:
            page.get_by_role("group", name="Presets").get_by_role("button", name="CPU only").click()
        else:
            self.write(page.get_by_label("GPUs per node"), "0")
        self.write(page.get_by_label("Time", exact=True), "30")
        expect(page.locator("#gipfel-summary")).to_contain_text("no GPU on local")
        self.look_at("form")
        self._write_files()
        self._started = time.monotonic()
        self.press(page.get_by_role("button", name="Start", exact=True))
        expect(page.locator("#progress-details > summary")).to_have_text(
            re.compile(rf"Event log \({self.zone}\)")
        )
        self._assert_narrow_enough()
        HubPages(page, self.hub.url).wait_for_lab()

    def _write_files(self) -> None:
        settings = self._home / ".jupyter/lab/user-settings/@jupyterlab/apputils-extension"
        settings.mkdir(parents=True)
        (settings / "themes.jupyterlab-settings").write_text(json.dumps(_THEME))
        (self._home / "train.py").write_text(_PROGRAM)
        write_notebook(self._home / "greet.ipynb", body='print("Hello, Gipfel!")')

    def understand(self) -> None:
        """Read the first sentence of a score, and what the score is."""
        self.lab.wait_until_loaded()
        self.lab.decline_news()
        if self.is_narrow:
            # It opens by itself only where there is room for a sidebar.
            self._open_panel()
        else:
            self.press(self.panel.get_by_role("region", name="Tour").get_by_role("button", name="Skip"))
        self.press(self.panel.get_by_role("button", name="Show simulated GPUs"))
        sentence = self.panel.locator(".jp-Gipfel-largest")
        # Before there are samples for a score, it says what comes next.
        expect(sentence).to_contain_text(re.compile(r"Measuring 4 GPUs\. A score from 0|Most is lost"))
        expect(sentence).to_contain_text(re.compile(r"Most is lost [\w ]+: \d+ points\. (Advice|Profile)"))
        self.seconds_to_sentence = time.monotonic() - self._started
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
        self.look_at("sentence", self.panel)

    def launch(self) -> None:
        """Start a training of two processes from the launcher's tile, and see it end."""
        tile = self.page.locator(".jp-LauncherCard[data-category='Gipfel']", has_text="Training Launch")
        if not tile.locator("visible=true").count():
            self.command("New Launcher")
        self.press(tile.locator("visible=true"))
        form = self.page.locator(".jp-OutputArea").first
        start = form.get_by_role("button", name="Launch", exact=True)
        expect(start).to_be_visible()
        self.write(form.get_by_label("File"), "train.py")
        self.write(form.get_by_label("GPUs per node"), "2")
        more = form.get_by_label("More fields")
        if self.by_mouse:
            more.click()
        else:
            self._tab_to(more, 20)
            self.page.keyboard.press("Space")
        expect(form.get_by_label("Time", exact=True)).to_be_visible()
        self.look_at("launch-form", form)
        if self.way.colors == "forced":
            expect(start).to_have_css("border-top-style", "solid")
        self.press(start)
        article = self.page.locator(".jp-Gipfel-widget article").first
        expect(article.get_by_role("log")).to_contain_text("the sum is 2")
        self.look_at("launch", article)

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
        status = page.locator("#jp-main-statusbar")
        expect(status).to_contain_text("| Idle")
        page.wait_for_function(
            "document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden)').contains(document.activeElement)"
        )
        if self.by_mouse:
            self._click_in_toolbar(notebook, "gipfel:run-as-batch-job")
        else:
            self.call("Run as Batch Job")
        submit = page.get_by_role("button", name="Submit")
        expect(submit).to_be_visible()
        self.look_at("batch", page.locator(".jp-Dialog-content"))
        self.press(submit)
        works = self._open_workloads()
        expect(works.locator("li[data-state='COMPLETED']")).to_contain_text(
            re.compile(r"\b(\d+) of \1 cells")
        )
        expect(works.locator("article[data-status='completed']")).to_contain_text("2 ranks")
        expect(works).to_contain_text(re.compile(rf"\d\d:\d\d {self.zone}"))
        self.look_at("workloads", self.panel)
        self._assert_reachable_below_notifications()
        self.press(works.get_by_role("button", name=re.compile("^Open: ")))
        expect(notebook.locator(".jp-OutputArea-output", has_text="Hello, Gipfel!")).to_be_visible()
        expect(status).to_contain_text("| Idle")
        self.look_at("result")

    def _assert_reachable_below_notifications(self) -> None:
        """Check that the end of the panel can be scrolled out from under notifications."""
        notice = self.page.locator(".Toastify__toast").first
        expect(notice).to_be_visible()
        self.panel.evaluate("each => each.scrollTo(0, each.scrollHeight)")
        last = self.panel.get_by_role("tabpanel").locator("visible=true").bounding_box()
        covered = notice.bounding_box()
        assert last
        assert covered
        assert last["y"] + last["height"] <= covered["y"], f"{self.way}: {covered} covers the end of {last}."

    def _click_in_toolbar(self, notebook: Locator, command: str) -> None:
        if not notebook.locator(f"[data-command='{command}']").locator("visible=true").count():
            # Buttons for which there is no room are behind the last one.
            notebook.locator(".jp-Toolbar-responsive-opener").click()
        self.page.locator(f"[data-command='{command}']").locator("visible=true").click()

    def _open_panel(self) -> None:
        if self.by_mouse:
            self.page.locator(".jp-SideBar .lm-TabBar-tab[data-id='gipfel-panel']").click()
        else:
            self.call("Open the Gipfel Panel")
        expect(self.panel).to_be_visible()

    def _open_workloads(self) -> Locator:
        if not self.panel.count():
            self._open_panel()
        self._select_tab("Workloads")
        return self.panel.get_by_role("tabpanel", name="Workloads")

    def _select_tab(self, name: str) -> None:
        tab = self.panel.get_by_role("tab", name=name)
        if self.by_mouse:
            tab.click()
        else:
            selected = self.panel.get_by_role("tab", selected=True)
            self._tab_to(selected, 150)
            for _ in range(8):
                if tab.get_attribute("aria-selected") == "true":
                    break
                self.page.keyboard.press("ArrowRight")
        expect(tab).to_have_attribute("aria-selected", "true")

    def look_at_job(self) -> None:
        """Open the job page from the panel."""
        if not self.panel.count():
            self._open_panel()
        self._select_tab("Job")
        self.press(self.panel.get_by_role("button", name=re.compile("Open")).last)
        job = self.page.locator(".jp-Gipfel-job")
        expect(job.locator(".jp-Gipfel-job-fresh")).to_contain_text(
            re.compile(rf"\d\d:\d\d:\d\d {self.zone}")
        )
        self.look_at("job", job)

    def go_home(self) -> None:
        """Open the hub's home, and see the session there."""
        with self._context.expect_page() as opened:
            self.command("Hub Control Panel")
        home = opened.value
        card = home.get_by_role("region", name="Session default")
        expect(card).to_have_attribute("data-state", "running")
        expect(card.locator("time").first).to_have_attribute("title", re.compile(f"{self.zone}$"))
        lab, self.page = self.page, home
        self.look_at("home")
        self.page = lab
        home.close()

    def look_at(self, what: str, part: Locator | None = None) -> None:
        """Keep a picture; nothing serious for axe-core, and nothing wider than its window."""
        self._look(self.page, f"6-{self.way}-{what}")
        if part is None:
            self._assert_narrow_enough()
            found = None if "/lab" in self.page.url else serious_findings(self.page)
        else:
            self.assert_fits(part, what)
            part.evaluate("each => each.setAttribute('data-looked-at', '')")
            found = serious_findings(self.page, "[data-looked-at]")
            part.evaluate("each => each.removeAttribute('data-looked-at')")
        assert not found, f"{self.way}, {what}: {json.dumps(found, indent=1)}"

    def assert_fits(self, part: Locator, what: str) -> None:
        """Nothing in a part of the page is wider than it."""
        wide, room = part.evaluate("each => [each.scrollWidth, each.clientWidth]")
        assert wide <= room + 1, f"{self.way}, {what}: {wide} pixels wide in {room}."

    def _assert_narrow_enough(self) -> None:
        wide = self.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= self.page.viewport_size["width"], f"{self.way}: {wide} pixels wide."
