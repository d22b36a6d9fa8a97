"""Page object of JupyterLab: the panel in the sidebar, a notebook with a widget, the theme."""

import contextlib
import time
from typing import Any

from playwright.sync_api import Locator, Page, expect

_LAB_LIMIT_MS = 60_000
_TOAST_MS = 2000
_PROMPT_MS = 10_000
_FIRST_VISIT_MS = 1000
_READ_TRACES = """node => (node.data ?? []).map(trace => ({
    name: trace.name, x: trace.x.length, last: trace.x.length ? Date.parse(trace.x.at(-1)) : null
}))"""


class LabPage:
    """One open lab."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(f"{page.url}: {error.stack}"))

    @property
    def panel(self) -> Locator:
        """The sidebar."""
        return self.page.locator("#gipfel-panel")

    @property
    def panel_figure(self) -> Locator:
        """The sidebar's first plot: of the job's GPUs where there are any, else of its host."""
        return self.panel.locator(".jp-Gipfel-figure").first

    @property
    def widget_figure(self) -> Locator:
        """The plots of the first widget in the notebook's outputs."""
        return self.page.locator(".jp-OutputArea-output .js-plotly-plot").first

    def wait_until_ready(self) -> None:
        """Wait for the lab's main area with its launcher."""
        self.wait_until_loaded()
        expect(self.page.locator(".jp-LauncherCard").first).to_be_visible(timeout=_LAB_LIMIT_MS)

    def wait_until_loaded(self) -> None:
        """Wait for the lab's main area."""
        expect(self.page.locator("#jp-main-dock-panel")).to_be_visible(timeout=_LAB_LIMIT_MS)
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0, timeout=_LAB_LIMIT_MS)

    def decline_news(self) -> None:
        """Answer the lab's question, where it asks one, whether it may fetch news."""
        question = self.page.locator(".Toastify__toast", has_text="Jupyter news")
        self.page.wait_for_timeout(_TOAST_MS)
        if question.count():
            question.get_by_role("button", name="No", exact=True).click()
            expect(question).to_have_count(0)

    def open_panel(self) -> None:
        """Press the mountain in the right sidebar, where the panel is not open as it is at a first visit."""
        self.page.wait_for_timeout(_FIRST_VISIT_MS)
        if not self.panel.is_visible():
            self.page.locator(".jp-SideBar .lm-TabBar-tab[data-id='gipfel-panel']").click()
        expect(self.panel).to_be_visible()
        self.skip_tour()

    def skip_tour(self) -> None:
        """Skip the tour, where this is a user's first visit."""
        tour = self.panel.get_by_role("region", name="Tour")
        if tour.count():
            tour.get_by_role("button", name="Skip").click()
            expect(tour).to_have_count(0)

    def open_section(self, name: str) -> Locator:
        """Select a section's tab in the open panel; returns the section."""
        self.panel.get_by_role("tab", name=name).click(timeout=_LAB_LIMIT_MS)
        section = self.panel.get_by_role("tabpanel", name=name)
        expect(section).to_be_visible()
        return section

    def close_left_sidebar(self) -> None:
        """Make room for the notebook; narrow windows have closed it already, and the lab remembers that."""
        current = self.page.locator(".jp-SideBar.jp-mod-left .lm-TabBar-tab.lm-mod-current")
        if current.count():
            current.first.click()

    def status(self) -> str:
        """The panel's words on how live it is."""
        return self.panel.get_by_role("status").first.inner_text()

    def run_cell(self, source: str) -> None:
        """Open a new notebook and run one cell."""
        self.page.locator(".jp-LauncherCard[data-category='Notebook']").first.click()
        editor = self.page.locator(".jp-Notebook .jp-CodeCell .cm-content").first
        editor.click(timeout=_LAB_LIMIT_MS)
        expect(
            self.page.locator(".jp-NotebookPanel-toolbar .jp-Notebook-ExecutionIndicator")
        ).to_have_attribute("data-status", "idle", timeout=_LAB_LIMIT_MS)
        # Typed at once: an editor that completes brackets would add its own.
        self.page.keyboard.insert_text(source)
        prompt = self.page.locator(".jp-Notebook .jp-CodeCell .jp-InputPrompt").first
        for limit_ms in (_PROMPT_MS, _PROMPT_MS, _LAB_LIMIT_MS):
            editor.click()
            self.page.keyboard.press("Shift+Enter")
            # The lab drops what is run while its connection to a new kernel is made, though it says idle.
            with contextlib.suppress(AssertionError):
                expect(prompt).not_to_have_text("[ ]:", timeout=limit_ms)
                return
        raise AssertionError(f"The lab does not run the cell {source!r}.")

    def choose_theme(self, name: str) -> None:
        """Choose a theme in the settings menu."""
        self.page.get_by_role("menuitem", name="Settings").click()
        self.page.locator(".lm-Menu-item", has_text="Theme").first.hover()
        self.page.locator(".lm-Menu-item", has_text=name).first.click()
        light = "false" if "Dark" in name else "true"
        expect(self.page.locator("body")).to_have_attribute("data-jp-theme-light", light)


def traces(figure: Locator) -> list[dict[str, Any]]:
    """Name, number of points and last x of every line that is drawn."""
    expect(figure).to_be_visible()
    read: list[dict[str, Any]] = figure.evaluate(_READ_TRACES)
    return read


def newest(figure: Locator) -> float:
    """The last x of all lines, 0 while there is none."""
    return max((trace["last"] or 0 for trace in traces(figure)), default=0)


def moves(figure: Locator, *, limit_s: float = 20) -> bool:
    """Return whether new points arrive."""
    before = newest(figure)
    end = time.monotonic() + limit_s
    while newest(figure) <= before:
        if time.monotonic() > end:
            return False
        figure.page.wait_for_timeout(300)
    return True
