"""A widget in a notebook that is opened again: its saved view first, the live one when the kernel answers."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_page import LabPage, moves
from lab_server import LabServer
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

_LIMIT_MS = 120_000
_BUSY_CELL = """\
import pathlib, time
from gipfel_widgets import Saturation
view = Saturation()
display(view)
while not pathlib.Path("go-on").exists():
    time.sleep(0.1)
"""


def save(page: Page, notebook: Path) -> None:
    """Save it, the widget's output with it."""
    end = time.monotonic() + _LIMIT_MS / 1000
    while "vnd.gipfel.live" not in notebook.read_text():
        assert time.monotonic() < end
        page.keyboard.press("Control+s")
        page.wait_for_timeout(500)


def test_a_saved_view_is_there_while_its_kernel_is_busy_and_lives_afterwards(
    new_page: Callable[[], Page], screenshot: Callable[[Page, str], object]
) -> None:
    page = new_page()
    lab = LabPage(page)
    output = page.locator(".jp-Notebook .jp-OutputArea-output").first
    live, saved = output.locator(".gipfel-figure"), output.locator(".jp-Gipfel-renderedPlotly")
    with LabServer("host") as server:
        page.goto(server.url)
        lab.wait_until_ready()
        lab.run_cell(_BUSY_CELL)
        expect(live).to_be_visible(timeout=_LIMIT_MS)
        expect(saved).to_have_count(0)
        save(page, server.folder / "Untitled.ipynb")
        page.reload()
        expect(saved.locator(".main-svg").first).to_be_visible(timeout=_LIMIT_MS)
        expect(output).to_contain_text("Saved view.")
        expect(output.get_by_text(re.compile("Loading widget|Error displaying"))).to_be_hidden()
        screenshot(page, "23-saved-view")
        (server.folder / "go-on").touch()
        expect(live).to_be_visible(timeout=_LIMIT_MS)
        expect(saved).to_have_count(0)
        assert moves(live)
        assert not lab.errors
    page.close()
